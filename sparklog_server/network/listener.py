"""One listening socket: its port, and its connections, each counted in before it costs anything.

A port is taken when the broker starts, so that one that is taken already is told before anything is written.
It listens only while it can answer: else clients are refused at once, and go on to another broker, instead
of hanging in the kernel's queue for as long as the broker waits for its node id, or coming back to one that
is out of touch.

Invariants: no more connections than the quota says, in all (then nobody is accepted: they queue in the
    kernel) and per address (then the new one is closed). The port is nobody else's from `bind` to `close`.
Sources: Kafka SocketServer.Acceptor (opens its socket when requests are processed), ConnectionQuotas.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

from sparklog_server.network.shared import Shared
from sparklog_server.settings.addresses import (
    AdvertisedListener,
    ListenerAddress,
    bind_host,
    new_socket,
    plain_host,
)

_log = logging.getLogger("sparklog_server.network")
_BACKLOG = 1024
_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RETRY_SECONDS = 0.1
OnAccept = Callable[[socket.socket, str, AdvertisedListener], None]


class Listener:
    """See the module's docstring."""

    def __init__(self, shared: Shared, address: ListenerAddress, on_accept: OnAccept) -> None:
        self._shared = shared
        self._on_accept = on_accept
        self.address = address
        self.advertised = AdvertisedListener(address.host, address.port)
        self._socket: socket.socket | None = None
        self._listens = asyncio.Event()

    def bind(self) -> None:
        """Take the port; 0 takes any free one. Whoever connects is refused."""
        host, settings = bind_host(self.address.host), self._shared.settings
        sock = new_socket(host)
        try:
            if settings.socket_receive_buffer_bytes != -1:  # before listen: it decides the window scale
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.socket_receive_buffer_bytes)
            _bind(sock, (host, self.address.port))
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            self._explain(error)
            raise
        self._socket = sock
        port = sock.getsockname()[1]
        self.address = self.address.with_port(port)
        self.advertised = settings.advertised(self.address)

    def listen(self) -> None:
        """Have the kernel take connections from now on; again, after `refuse`."""
        assert self._socket is not None
        if self._listens.is_set():
            return
        try:
            # The connections have it from here: what is left of them keeps no next process from the port.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._explain(error)
            raise
        self._listens.set()

    def refuse(self) -> None:
        """Have the kernel refuse who connects, and who is not accepted yet, until `listen` is called again.

        A system that cannot (Linux can) goes on to listen.
        """
        assert self._socket is not None
        if not self._listens.is_set():
            return
        with contextlib.suppress(OSError):
            # Before: where nobody listens, who reuses addresses could have this one as well.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            self._socket.shutdown(socket.SHUT_RD)
            self._listens.clear()

    async def accept(self) -> None:
        """Accept until cancelled."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        quota = self._shared.quota
        while True:
            await quota.wait_for_room()
            await self._listens.wait()
            try:
                sock, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    _log.error("%s: cannot accept: %s", self.address, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not await self._has_room(sock):
                sock.close()
                continue
            host = plain_host(str(peer[0]))
            metrics = self._shared.metrics
            reason = "" if quota.has_room_for(host) else "max.connections"
            if not reason and not quota.try_add(host):
                reason = "max.connections.per.ip"
            if reason:
                metrics.connection_refused(reason)
                _log.info("%s: connection from %s refused: %s", self.address, host, reason)
                sock.close()
                continue
            metrics.connection_accepted()
            self._set_options(sock)
            self._on_accept(sock, host, self.advertised)

    async def _has_room(self, sock: socket.socket) -> bool:
        """Wait until one that was accepted may be counted in: another listener may have had the last place.
        False: this one has been told to refuse since.
        """
        try:
            await self._shared.quota.wait_for_room()
        except asyncio.CancelledError:
            sock.close()
            raise
        return self._listens.is_set()

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()

    def _explain(self, error: OSError) -> None:
        error.add_note(
            f"cannot listen on {self.address}: give listeners an address of this machine, and a free port"
        )

    def _set_options(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        size = self._shared.settings.socket_send_buffer_bytes
        if size != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def _bind(sock: socket.socket, address: tuple[str, int]) -> None:
    """For this socket alone: two may share a port with SO_REUSEADDR for as long as neither listens.

    So without it, unless connections of a process that has ended are left: those need it, at this moment.
    A port that the kernel has chosen it would take back when the socket listens no more, one that it was
    told to give it would not: so any port is asked for twice.
    """
    host, port = address
    if port == 0:
        with new_socket(host) as chosen:
            chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            chosen.bind(address)
            _bind_beside(sock, (host, chosen.getsockname()[1]))
        return
    try:
        sock.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        _bind_beside(sock, address)


def _bind_beside(sock: socket.socket, address: tuple[str, int]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
