"""One client's connection: read a request, have it handled, send the response; and again.

Invariants:
    1. responses go out in the order of the requests;
    2. one request at a time, but for pipelined ones (Produce): those may start before earlier pipelined
       ones are answered, at most MAX_PIPELINED of them;
    3. nothing is read while a request waits for room, so that a client is pushed back by TCP; nor during the
       throttle time that the answer gives.
Errors: bytes that are no request, an API that is not served, an exception in a handler: the connection is
    closed with a line in the log, as Kafka does; a client connects again.
A client that disconnects: handlers that only wait (`waits`) are cancelled, all others run to their end
    and their response is dropped. A request that waits for earlier ones is dropped, with its resources.
Memory: a task or future keeps the exception that ended it, the exception keeps the frames of its calls, and
    these keep their buffers. None of them may refer to the task or future: such a cycle is only freed by a
    full collection.
Concurrency: one task per connection, and one per pipelined request, each of which waits for the one before
    it until that one's response is queued. The server closes the connection from outside.
Not here: parsing and handling of requests (dispatch/).
Sources: Kafka SocketServer.Processor, KafkaChannel (muted while a request is in progress).
"""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from sparklog.clock import Clock
from sparklog_server.metrics import Metrics
from sparklog_server.network.frames import (
    ConnectionQuota,
    Frame,
    FrameError,
    FrameReader,
    FrameWriter,
    SocketReceiver,
    has_ended,
)
from sparklog_server.network.tls import Certificates, HandshakeError, TlsSocket
from sparklog_server.protocol.apis import ApiEntry
from sparklog_server.protocol.messages import MalformedRequestError, UnsupportedRequestError
from sparklog_server.protocol.session import Phase, Session
from sparklog_server.protocol.wire import Chunk
from sparklog_server.runtime.budget import Budget
from sparklog_server.settings.network import AdvertisedListener, NetworkSettings, SecurityProtocol
from sparklog_server.settings.security import (
    ListenerSecurity,
    PrincipalRules,
    SecuredListener,
    SecuritySettings,
)

# --- exchange ----------------------------------------------------------------------------------------
#
# The interface of requests that a connection needs: how to answer them, and what they hold until then.
#
# The layer above (dispatch/) parses and handles requests; a connection keeps their order.
# Concurrency: event loop only.


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The connection that a request came over."""

    number: int
    peer_host: str
    listener: AdvertisedListener
    session: Session

    def __str__(self) -> str:
        return f"connection {self.number} from {self.peer_host}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """No chunks: nothing is sent. `failure`: the connection is closed, once earlier requests are answered.
    `mute_ms`: after it, nothing is read for so long.
    """

    chunks: Sequence[Chunk] = ()
    release: Callable[[], None] | None = None
    error: int = 0
    failure: str | None = None
    mute_ms: float = 0.0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened, in seconds of the loop's clock."""

    began: float
    handled: float
    in_turn: float  # every earlier response was in the queue
    sent: float


class Request(Protocol):
    """A request, from reading to the sent response."""

    @property
    def entry(self) -> ApiEntry:
        """The API that it asks for."""

    @property
    def is_counted(self) -> bool:
        """True if others may wait for memory that it, or its answer, holds."""

    @property
    def mute_ms(self) -> float:
        """How long nothing more may be read: known before the request is handled, as its size."""

    async def handle(self) -> Answer:
        """Return the response. Raises nothing but CancelledError."""

    def release(self) -> None:
        """Free the resources; idempotent. Called after the response, or when the request is dropped."""

    def count(self, answer: Answer, times: Times) -> None:
        """Update the metrics; the response was sent."""


WaitForTurn = Callable[[ApiEntry], Awaitable[None]]
# Takes ownership of the frame. Waits for the connection's turn, and then for room. Raises the errors that
# end the connection: MalformedRequestError, UnsupportedRequestError.
Dispatch = Callable[[Frame, Origin, WaitForTurn], Awaitable[Request]]


# --- shared ------------------------------------------------------------------------------------------
#
# Concurrency: event loop only.


RunBlocking = Callable[..., Awaitable[Any]]


@dataclass(slots=True, kw_only=True)
class Shared:
    """What all connections of a broker share: settings, limits, and the dispatcher."""

    settings: NetworkSettings
    dispatch: Dispatch
    clock: Clock
    metrics: Metrics
    run_blocking: RunBlocking  # work that would hold up the loop
    run_crypto: RunBlocking  # handshakes
    security: SecuritySettings
    handshakes: Budget  # their bytes
    budget: Budget  # bytes of requests
    quota: ConnectionQuota
    may_connect: Callable[[str], bool] = lambda _host: True  # does this address keep to its rate?


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """How a listener's connections are secured."""

    name: str
    secured: SecuredListener
    certificates: Certificates | None = None  # None: no TLS

    @property
    def rules(self) -> PrincipalRules:
        """The names of users by their certificates."""
        return PrincipalRules(self.secured.settings.ssl_principal_mapping_rules)


NO_SECURITY = Channel(
    name=SecurityProtocol.PLAINTEXT.value,
    secured=SecuredListener(protocol=SecurityProtocol.PLAINTEXT, settings=ListenerSecurity()),
)


# --- connection --------------------------------------------------------------------------------------


MAX_PIPELINED = 64
_log = logging.getLogger("sparklog_server.network")
_Closing = (FrameError, HandshakeError, MalformedRequestError, UnsupportedRequestError)


class Connection:
    """See the module's docstring."""

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        number: int,
        peer_host: str,
        listener: AdvertisedListener,
        channel: Channel = NO_SECURITY,
    ) -> None:
        self._shared = shared
        self._channel = channel
        self._sock = sock if channel.certificates is None else TlsSocket(sock)
        self.number = number
        self.peer_host = peer_host
        self._has_sasl = channel.secured.protocol.has_sasl
        self.session = Session(channel.name, has_sasl=self._has_sasl)
        self._origin = Origin(number=number, peer_host=peer_host, listener=listener, session=self.session)
        max_bytes = shared.settings.socket_request_max_bytes
        if not self.session.is_authenticated:
            max_bytes = min(max_bytes, channel.secured.settings.sasl_server_max_receive_size)
        self.receiver = SocketReceiver(self._sock)
        self.reader = FrameReader(self.receiver, shared.budget, shared.clock, max_bytes, peer_host)
        self.writer = FrameWriter(self._sock, shared.clock, shared.run_blocking)
        self.began_ms = shared.clock.monotonic_ms()
        self._is_secured = channel.certificates is None
        self._task: asyncio.Task[None] | None = None
        self._entry: ApiEntry | None = None  # of the request that is being handled, if not pipelined
        self._pipelined: set[asyncio.Task[None]] = set()
        self._last_turn: asyncio.Future[None] | None = None  # done when its response stands in the queue
        self._serving = False
        self._draining = False
        self._closed = False
        self._muted_until = 0.0  # in seconds of the loop's clock
        self._ends = asyncio.Event()  # it drains, or is closed: nobody waits for the end of a mute

    def __str__(self) -> str:
        return str(self._origin)

    @property
    def is_idle(self) -> bool:
        """True if nothing is being received, handled or sent."""
        return not (
            self._serving
            or self._pipelined
            or self.reader.waits_for_memory
            or self.reader.started_ms is not None
        )

    def authenticates_too_long(self, now_ms: int, limit_ms: int) -> bool:
        """True if the TLS handshake and the authentication, or a renewal of it, take longer than this."""
        if self._is_secured and self.session.is_authenticated:
            return False
        return now_ms - (self.session.began_ms if self.session.is_again else self.began_ms) > limit_ms

    @property
    def is_waiting(self) -> bool:
        """True if it is in a handler that may be cancelled."""
        return self._entry is not None and self._entry.waits

    async def run(self) -> None:
        """Serve until the client leaves, breaks the rules, or the server closes."""
        self._task = asyncio.current_task()
        try:
            await self._shake_hands()
            while not self._draining and (frame := await self.reader.read()) is not None:
                self._serving = True
                if self._muted_until:
                    await self._while_muted(frame)
                await self._serve(frame)
                self._serving = False
                if self._muted_until:
                    await self._while_muted()
            await self._wait_for_pipelined()
        except _Closing as error:
            level = logging.INFO if self._draining else logging.WARNING
            _log.log(level, "%s closed: %s", self._origin, str(error))  # text: a handler may keep a record
        except OSError as error:
            _log.debug("%s lost: %s", self._origin, str(error))
        finally:
            self._closed = True
            self._task = None  # see Memory
            self.writer.abort()  # a pipelined request may be sending
            self.receiver.close()
            self._sock.close()

    async def _shake_hands(self) -> None:
        certificates = self._channel.certificates
        if certificates is None or not isinstance(self._sock, TlsSocket):
            return
        shared = self._shared
        try:
            principal = await self._sock.handshake(
                certificates, self._channel.rules, shared.handshakes, self.peer_host, shared.run_crypto
            )
        except HandshakeError:
            shared.metrics.connection_refused("authentication")
            await asyncio.sleep(shared.security.failed_authentication_delay_ms / 1000)
            raise
        if not self._has_sasl:
            self.session.principal = principal
        self._is_secured = True

    def drain(self, why: str) -> None:
        """Read no more requests; answer those in progress, then close the connection."""
        self._draining = True
        self._ends.set()
        if self.is_waiting:
            self.close(why)
        else:
            self._shutdown(socket.SHUT_RD)

    def close(self, why: str) -> None:
        """Close the connection now; requests in progress finish, and their responses are dropped."""
        if self._closed:
            return
        self._closed = True
        _log.info("%s closed: %s", self, why)
        if self._task is not None and (self._entry is None or self._entry.waits):
            self._task.cancel()
        self._shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Close the connection now, and cancel its requests."""
        self._closed = True
        for task in (self._task, *self._pipelined):
            if task is not None:
                task.cancel()

    def is_abandoned(self) -> bool:
        """True if the client of a waiting request is gone, even if it sent more bytes after that request.

        A client that only closed its sending side (shutdown) counts as gone, as for Kafka's brokers.
        """
        return has_ended(self._sock)

    async def _while_muted(self, frame: Frame | None = None) -> None:
        """Wait until more may be read, or handled: a client that waits by itself is not kept waiting here."""
        loop = asyncio.get_running_loop()
        try:
            while not self._ends.is_set() and (left := self._muted_until - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ends.wait(), left)
        except BaseException:
            if frame is not None:
                frame.release()
            raise
        if self._muted_until <= loop.time():
            self._muted_until = 0.0

    # --- requests -----------------------------------------------------------------------------------

    async def _serve(self, frame: Frame) -> None:
        try:
            request = await self._shared.dispatch(frame, self._origin, self._wait_for_turn)
        except BaseException:
            frame.release()
            raise
        if request.entry.pipelined and request.mute_ms:  # before further requests are read
            until = asyncio.get_running_loop().time() + request.mute_ms / 1000
            self._muted_until = max(self._muted_until, until)
        if not request.entry.pipelined:
            self._entry = request.entry
            try:
                await self._answer(request, None, None)
            finally:
                self._entry = None
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._answer_pipelined(request, self._last_turn, turn))
        self._last_turn = turn
        self._pipelined.add(task)
        task.add_done_callback(functools.partial(self._forget_pipelined, request))

    def _forget_pipelined(self, request: Request, task: "asyncio.Task[None]") -> None:
        self._pipelined.discard(task)
        request.release()  # a task that is cancelled before it begins does nothing at all

    async def _answer_pipelined(
        self, request: Request, previous: "asyncio.Future[None] | None", turn: "asyncio.Future[None]"
    ) -> None:
        try:
            await self._answer(request, previous, turn)
        except _Closing as error:
            self.close(str(error))
        except OSError as error:
            self.close(f"lost: {error}")
        finally:
            if not turn.done():
                turn.set_result(None)

    async def _answer(
        self,
        request: Request,
        previous: "asyncio.Future[None] | None",
        turn: "asyncio.Future[None] | None",
    ) -> None:
        """Handle the request, wait for `previous` (the response before this one), and send the response."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            if turn is None and self._muted_until:  # by a pipelined request, meanwhile
                await self._while_muted()
            answer = await request.handle()
        except BaseException:
            request.release()
            raise
        handled = in_turn = clock()
        try:
            if previous is not None and not previous.done():
                await previous
                in_turn = clock()
            if answer.failure is not None:
                await self.writer.queue(())
                self.close(answer.failure)
            elif answer.chunks and not self._closed:
                is_counted = request.is_counted
                if turn is None:
                    await self.writer.send(answer.chunks, is_counted=is_counted)
                    if self._has_sasl:
                        self._follow_session()
                else:
                    sending = self.writer.queue(answer.chunks, is_counted=is_counted)
                    turn.set_result(None)
                    try:
                        await sending
                    finally:
                        del sending
        finally:
            request.release()
            if answer.release is not None:
                answer.release()
        if answer.mute_ms:
            self._muted_until = max(self._muted_until, clock() + answer.mute_ms / 1000)
        request.count(answer, Times(began=began, handled=handled, in_turn=in_turn, sent=clock()))

    def _follow_session(self) -> None:
        """After an answer: a client that is authenticated now may send larger requests."""
        if self.session.phase is Phase.FAILED:
            self.close("authentication failed")
        elif self.session.is_authenticated:
            self.reader.max_bytes = self._shared.settings.socket_request_max_bytes

    async def _wait_for_turn(self, entry: ApiEntry) -> None:
        if not entry.pipelined:
            await self._wait_for_pipelined()
        while len(self._pipelined) >= MAX_PIPELINED:
            await asyncio.wait(self._pipelined, return_when=asyncio.FIRST_COMPLETED)

    async def _wait_for_pipelined(self) -> None:
        # All responses: the last may be empty (acks=0) while an earlier one is still being sent.
        if self._pipelined:
            await asyncio.wait(self._pipelined)
        self._last_turn = None

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)
