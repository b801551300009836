"""The network side of the broker: its listeners, its connections, and the check of all connections.

Not here: handling of requests (api/), a single connection (connection.py).
Concurrency: event loop. One task per listener, one per connection, one that checks all connections
    periodically: idle ones, clients that send or read too slowly, clients that left while waiting.
Sources: Kafka SocketServer.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from sparklog.clock import Clock
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.network.connection import (
    NO_SECURITY,
    Channel,
    Connection,
    Dispatch,
    RunBlocking,
    Shared,
)
from sparklog_server.network.frames import ConnectionQuota
from sparklog_server.network.tls import Certificates, finished, handshake_budget
from sparklog_server.runtime.budget import Budget
from sparklog_server.settings.network import (
    AdvertisedListener,
    ListenerAddress,
    NetworkSettings,
    bind_host,
    new_socket,
    plain_host,
)
from sparklog_server.settings.security import SecuredListener, SecuritySettings

# --- listener ----------------------------------------------------------------------------------------
#
# The broker binds its ports when it starts, so that a port in use is reported before anything is written.
# It listens only while it can answer. Otherwise clients are refused immediately and try another broker: they
# would hang in the kernel's queue while the broker waits for its node id, or return to a disconnected broker.
#
# Invariants: no more connections than the quota allows, in total (further ones queue in the kernel) and per
#     address (further ones are closed). No other process can bind the port between `bind` and `close`.
# Sources: Kafka SocketServer.Acceptor (opens its socket when requests are processed), ConnectionQuotas.


_BACKLOG = 1024
_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_RETRY_SECONDS = 0.1
OnAccept = Callable[[socket.socket, str, AdvertisedListener, Channel], None]


class Listener:
    """One listening socket. Each connection is counted against the quota before it gets any resources."""

    def __init__(
        self, shared: Shared, address: ListenerAddress, on_accept: OnAccept, channel: Channel = NO_SECURITY
    ) -> None:
        self._shared = shared
        self._on_accept = on_accept
        self.channel = channel
        self.address = address
        self.advertised = AdvertisedListener(address.host, address.port)
        self._socket: socket.socket | None = None
        self._listens = asyncio.Event()

    def bind(self) -> None:
        """Bind the port; 0 binds any free one. Clients that connect are refused."""
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
        """Accept connections in the kernel from now on; also after `refuse`."""
        assert self._socket is not None
        if self._listens.is_set():
            return
        try:
            # Connections inherit it: their remains (TIME_WAIT) do not keep the next process from the port.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._explain(error)
            raise
        self._listens.set()

    def refuse(self) -> None:
        """Have the kernel refuse new connections, and those not accepted yet, until `listen` is called again.

        A system without support for that (Linux has it) continues to listen.
        """
        assert self._socket is not None
        if not self._listens.is_set():
            return
        with contextlib.suppress(OSError):
            # Before: on a port without a listener, other sockets with SO_REUSEADDR could bind it as well.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            self._socket.shutdown(socket.SHUT_RD)
            self._listens.clear()

    async def accept(self) -> None:
        """Accept until cancelled."""
        assert self._socket is not None
        quota = self._shared.quota
        while True:
            await quota.wait_for_room()
            await self._listens.wait()
            try:
                sock, peer = await self._next(self._socket)
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
            if not reason and not self._shared.may_connect(host):
                reason = "connection_creation_rate"
            if not reason and not quota.try_add(host):
                reason = "max.connections.per.ip"
            if reason:
                metrics.connection_refused(reason)
                _log.info("%s: connection from %s refused: %s", self.address, host, reason)
                sock.close()
                continue
            metrics.connection_accepted()
            self._set_options(sock)
            self._on_accept(sock, host, self.advertised, self.channel)

    async def _next(self, listening: socket.socket) -> tuple[socket.socket, Any]:
        """As asyncio's sock_accept, which leaks a socket that it accepts while it is cancelled."""
        while True:
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                await _readable(listening.fileno())
            else:
                sock.setblocking(False)
                return sock, peer

    async def _has_room(self, sock: socket.socket) -> bool:
        """Wait until the quota has room for an accepted connection: another listener may have taken the last
        place. Return False if the listener refuses connections by then.
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


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(fd, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(fd)


def _bind(sock: socket.socket, address: tuple[str, int]) -> None:
    """Bind the port for this socket alone: with SO_REUSEADDR two may share a port while neither listens.

    So bind without it, unless connections of an ended process remain: those require it.
    The kernel takes a port that it chose back when the socket stops listening, but not a port that was
    requested by number: so port 0 is bound a second time by its number.
    """
    host, port = address
    if port == 0:
        with new_socket(host) as chosen:
            chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            chosen.bind(address)
            _bind_reused(sock, (host, chosen.getsockname()[1]))
        return
    try:
        sock.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        _bind_reused(sock, address)


def _bind_reused(sock: socket.socket, address: tuple[str, int]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


# --- server ------------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.network")
LOOK_MS = 1000
RELOAD_SECONDS = 5
ANSWERED_WITHIN_S = 1.0  # requests in progress when the broker begins to refuse clients


class Network:
    """See the module's docstring."""

    def __init__(
        self,
        settings: NetworkSettings,
        dispatch: Dispatch,
        *,
        clock: Clock,
        metrics: Metrics,
        run_blocking: RunBlocking,
        on_closed: Callable[[int], None],
        run_crypto: RunBlocking | None = None,
        security: SecuritySettings | None = None,
        secured: Mapping[str, SecuredListener] | None = None,
        may_connect: Callable[[str], bool] = lambda _host: True,
    ) -> None:
        """`on_closed`: called with a connection's number when it is gone; `may_connect`: with an address.

        Args:
            run_crypto: for handshakes, if there are listeners with TLS.
            secured: by the listener's name; None: all are plain.
        """
        self.shared = Shared(
            settings=settings,
            dispatch=dispatch,
            clock=clock,
            metrics=metrics,
            run_blocking=run_blocking,
            run_crypto=run_crypto or run_blocking,
            security=security or SecuritySettings(),
            handshakes=handshake_budget(),
            budget=Budget(settings.queued_max_request_bytes),
            quota=ConnectionQuota(
                settings.max_connections, settings.max_connections_per_ip, settings.per_ip_overrides()
            ),
            may_connect=may_connect,
        )
        self.listeners: list[Listener] = []
        self.connections: dict[int, Connection] = {}
        self._on_closed = on_closed
        self._secured = secured or {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next_number = 1
        self._refuses = self._accepts = False
        self.looks = 0  # number of checks of all connections
        metrics.gauge(Gauge.CONNECTION_COUNT, lambda: len(self.connections))

    def bind(self) -> None:
        """Bind the listeners' ports, so that they are known. Clients are still refused.

        Raises:
            InvalidRequestError: INVALID_CONFIG_VALUE; certificates that cannot be read.
        """
        for one in self.shared.settings.parsed_listeners():
            listener = Listener(self.shared, one, self.add_connection, self._channel(one.name))
            listener.bind()
            self.listeners.append(listener)

    def _channel(self, name: str) -> Channel:
        secured = self._secured.get(name)
        if secured is None:
            return NO_SECURITY
        certificates = Certificates(name, secured) if secured.protocol.has_tls else None
        return Channel(name=name, secured=secured, certificates=certificates)

    def change(self, settings: NetworkSettings) -> None:
        """Apply these limits of connections."""
        self.shared.quota.change(
            settings.max_connections, settings.max_connections_per_ip, settings.per_ip_overrides()
        )

    def start(self) -> None:
        """Listen, unless `refuse` was called, and accept connections."""
        self._accepts = True
        if not self._refuses:
            self.listen()
        for listener in self.listeners:
            self._keep(asyncio.create_task(listener.accept()))
        self._keep(asyncio.create_task(self._look_after_connections()))
        if any(listener.channel.certificates is not None for listener in self.listeners):
            self._keep(asyncio.create_task(self._look_after_certificates()))

    def listen(self) -> None:
        """Accept clients again; only between start and stop."""
        self._refuses = False
        if self._accepts:
            for listener in self.listeners:
                listener.listen()

    def refuse(self, why: str) -> None:
        """Act as a dead broker: disconnect all clients and refuse new ones, until `listen` is called.

        Requests that are answered within a second get their response; waiting ones (Fetch) do not.
        """
        _log.warning("clients are refused, and %d connections ended: %s", len(self.connections), why)
        self._refuses = True
        for listener in self.listeners:
            listener.refuse()
        for connection in list(self.connections.values()):
            connection.drain(why)
            asyncio.get_running_loop().call_later(ANSWERED_WITHIN_S, connection.close, why)

    async def stop(self, timeout_ms: int) -> None:
        """Stop accepting; wait at most `timeout_ms` for requests in progress; close all connections."""
        self._accepts = False
        for task in self._tasks:
            if task not in self._connection_tasks():
                task.cancel()
        for listener in self.listeners:
            listener.close()
        for connection in list(self.connections.values()):
            connection.drain("the broker is shutting down")
        if self._connection_tasks():
            await asyncio.wait(self._connection_tasks(), timeout=timeout_ms / 1000)
        for connection in list(self.connections.values()):
            _log.warning("%s: not done in time", connection)
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def advertised(self) -> list[AdvertisedListener]:
        """Return the addresses under which clients reach this broker, per listener."""
        return [listener.advertised for listener in self.listeners]

    def add_connection(
        self,
        sock: socket.socket,
        peer_host: str,
        listener: AdvertisedListener,
        channel: Channel = NO_SECURITY,
    ) -> None:
        """Serve an accepted socket that is counted in the quota."""
        number = self._next_number
        self._next_number += 1
        connection = Connection(self.shared, sock, number, peer_host, listener, channel)
        self.connections[number] = connection
        self._keep(asyncio.create_task(self._run(connection), name=f"connection-{number}"))

    # --- internals ----------------------------------------------------------------------------------

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self.connections[connection.number]
            self._on_closed(connection.number)
            self.shared.quota.remove(connection.peer_host)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _connection_tasks(self) -> set["asyncio.Task[Any]"]:
        return {task for task in self._tasks if task.get_name().startswith("connection-")}

    async def _look_after_connections(self) -> None:
        idle_ms = self.shared.settings.connections_max_idle_ms
        patience_ms = self.shared.settings.socket_request_timeout_ms
        while True:
            limit_ms = self.shared.security.authentication_timeout_ms
            await asyncio.sleep(min(LOOK_MS, idle_ms / 4, patience_ms / 4, limit_ms / 4) / 1000)
            now_ms = self.shared.clock.monotonic_ms()
            for connection in list(self.connections.values()):
                self._look_after(connection, now_ms, idle_ms, patience_ms)
            self.looks += 1

    async def _look_after_certificates(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await self.reload_certificates()

    async def reload_certificates(self) -> None:
        """Read certificates whose files have changed; new connections get them."""
        for listener in self.listeners:
            if listener.channel.certificates is not None:
                reloading = self.shared.run_crypto(listener.channel.certificates.reload)
                await finished(asyncio.ensure_future(reloading))

    def _look_after(self, connection: Connection, now_ms: int, idle_ms: int, patience_ms: int) -> None:
        limit_ms = self.shared.security.authentication_timeout_ms
        started_ms = connection.reader.started_ms
        stuck_ms = connection.writer.waiting_since_ms
        if connection.authenticates_too_long(now_ms, limit_ms):
            connection.close(f"not authenticated after {limit_ms} ms")
        elif started_ms is not None and now_ms - started_ms > patience_ms:
            connection.close(f"a request not complete after {patience_ms} ms")
        elif connection.reader.is_too_slow(now_ms, patience_ms):
            connection.close("a large request that comes too slowly for the memory that it holds")
        elif stuck_ms is not None and now_ms - stuck_ms > patience_ms:
            connection.close(f"a response not taken for {patience_ms} ms")
        elif connection.writer.is_too_slow(now_ms, patience_ms):
            connection.close("a large response that is taken too slowly for the memory that it holds")
        elif connection.is_idle and now_ms - connection.reader.active_ms > idle_ms:
            connection.close(f"idle for {idle_ms} ms")
        elif connection.is_waiting and connection.is_abandoned():
            connection.close("the client left")
