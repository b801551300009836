"""Requests of connections: decoded, admitted, handled, encoded, counted.

1. The header gives the API and version, and thereby the schema of the rest.
2. When the request has its turn on its connection, its elements are counted, and the memory that they will
   take: a request that names thousands waits, as bytes.
3. The body is read, and the request waits for one of queued.max.requests slots, unless its API waits for
   something to happen (ApiEntry, `waits`).
4. Its handler is called, and the answer encoded. A large answer that the handler has not counted waits for
   room; one that is larger than it was counted is counted again. Before a request waits for room it gives its
   slot back. It keeps its bytes and its work, which have shares for each address. An exception that a handler
   does not catch is a bug: it is logged, and closes that connection only.
5. After the answer is sent, all resources are freed, and the request is counted.

A request that the connection's session does not allow (not authenticated, or no longer) ends the connection
before 2 (protocol/session.py).
A client over its quota has its throttle time in the answer, and nothing is read from it for so long
(security/quotas.py). Authorization stands before each handler (api/registry.py).
Invariants: the resources of a request are freed once, however it ends.
Not here: sockets, the order of answers (network/connection.py), what handlers do (api/).
Concurrency: event loop only.
Sources: Kafka KafkaRequestHandler, RequestChannel, KafkaApis.handle.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sparklog.clock import Clock, SystemClock
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.network.connection import Answer, Origin, Times, WaitForTurn
from sparklog_server.network.frames import Frame
from sparklog_server.protocol.apis import ApiEntry, ApiKey, RequestContext
from sparklog_server.protocol.messages import (
    MAX_ELEMENTS,
    Examined,
    MessageCodec,
    UnsupportedRequestError,
    codec_for,
    encode_response,
    examine_request,
    parse_header,
)
from sparklog_server.protocol.responses import with_throttle
from sparklog_server.protocol.wire import CloseConnectionError, HeldAnswer, Response, held_bytes
from sparklog_server.root.live_root import Attention
from sparklog_server.runtime.budget import Budget, Held
from sparklog_server.security.quotas import PRODUCED, REQUESTS, Quotas
from sparklog_server.settings.network import NetworkSettings

# --- slots -------------------------------------------------------------------------------------------
#
# Unlike the room for requests, work and answers, slots have no shares: a few hundred connections of one
# address can take all of them. So no request may hold one while it waits for a client, for example for the
# reading of an answer: it gives the slot back, and continues without it.
# Invariants: taken once, given back once.
# Concurrency: event loop only.


class HeldSlot:
    """One of the queued.max.requests slots, held by one request."""

    __slots__ = ("_is_held", "_slots")

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_held = False

    async def take(self) -> None:
        """Wait for a slot."""
        await self._slots.acquire()
        self._is_held = True

    def give_back(self) -> None:
        """Free the slot, if it is held."""
        if self._is_held:
            self._is_held = False
            self._slots.release()


# --- work --------------------------------------------------------------------------------------------
#
# The memory for handling a request, counted before it is allocated.
#
# 64 KB may name 15,000 partitions. They become Python objects (entities, plans, outcomes, the entities of the
# answer): some 600 bytes for each name, a hundred times the bytes that were sent. So
# elements are counted by the walk over the bytes (protocol/messages.py), and a request of more than a few
# waits as bytes until there is room.
#
# The walk itself takes a microsecond for each element. A hundred such requests at the same time would
# block the others; so each turn of the event loop walks over one of them.
#
# Invariants: what was taken is given back, once. Requests that wait for something to happen (Fetch,
#     JoinGroup, SyncGroup) take nothing here: they might wait for each other, and count what they keep
#     themselves. One that waits for a moment, and for none of them, does (ApiEntry, `counts`):
#     FindCoordinator. ShareFetch does, until its acknowledgements are durable (RequestContext, `end_work`).
# Concurrency: event loop only.


WORK_BYTES: Final = 32 << 20  # of all requests in progress
ELEMENT_BYTES: Final = 600  # measured: 590 for a part of Produce, 320 for a topic of CreateTopics
FEW_ELEMENTS = 64  # are not counted: queued.max.requests times as many are 20 MB
MANY_ELEMENTS = 500  # the walk over so many delays others
SMALL_FRAME_BYTES = 4096  # a request that is no larger is never put off


class Turns:
    """Examines one large request per turn of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._is_crowded = False

    async def examine(self, frame_bytes: int, walk: Callable[[], Examined]) -> Examined:
        """Return the result of `walk`; after a long one, the next runs in another turn of the event loop."""
        if frame_bytes <= SMALL_FRAME_BYTES or not (self._is_crowded or self._lock.locked()):
            return self._walk(walk)
        async with self._lock:
            if self._is_crowded:
                await asyncio.sleep(0)
            return self._walk(walk)

    def _walk(self, walk: Callable[[], Examined]) -> Examined:
        examined = walk()
        if examined.elements > MANY_ELEMENTS and not self._is_crowded:
            self._is_crowded = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        return examined

    def _end_turn(self) -> None:
        self._is_crowded = False


# --- time --------------------------------------------------------------------------------------------


class Timed:
    """Awaits something, and measures for how long it runs on the event loop, without its waits."""

    def __init__(self, awaited: Awaitable[Any]) -> None:
        self._awaited = awaited
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaited.__await__()
        clock = time.perf_counter
        send, value = steps.send, None
        try:
            while True:
                began = clock()
                try:
                    yielded = send(value)
                except StopIteration as ended:
                    return ended.value
                finally:
                    self.seconds += clock() - began
                try:
                    value = yield yielded
                    send = steps.send
                except BaseException as error:  # noqa: BLE001 - it is the handler's to see
                    send, value = steps.throw, error
        finally:
            steps.close()


# --- dispatcher --------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.network")
_request_log = logging.getLogger("sparklog_server.request")


# Heartbeats, and the first requests of a connection, do not depend on the newest image.
_NO_NEWS = frozenset({ApiKey.HEARTBEAT, ApiKey.API_VERSIONS})


class Dispatcher:
    """See the module's docstring."""

    def __init__(
        self,
        settings: NetworkSettings,
        apis: Mapping[int, ApiEntry],
        attention: Attention,
        *,
        metrics: Metrics,
        clock: Clock | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.apis = apis
        self._monotonic_ms = (clock or SystemClock()).monotonic_ms
        self.quotas = quotas
        self.attention = attention
        self.metrics = metrics
        self.answers = Budget(settings.queued_max_response_bytes)
        self.work = Budget(WORK_BYTES)
        self._turns = Turns()
        self.slots = asyncio.Semaphore(settings.queued_max_requests)
        self._queued = 0  # wait for a slot
        metrics.gauge(Gauge.REQUEST_QUEUE_SIZE, lambda: self._queued)

    async def begin(self, frame: Frame, origin: Origin, wait_for_turn: WaitForTurn) -> "DispatchedRequest":
        """Read a request, and wait until there is room for it; see network/connection.py, `Dispatch`."""
        received = asyncio.get_running_loop().time()
        header = parse_header(frame.data)
        session = origin.session
        if not session.is_authenticated or session.expires_ms is not None:
            refusal = session.why_refused(header.api_key, self._monotonic_ms())
            if refusal is not None:
                raise UnsupportedRequestError(refusal)
        entry = self.apis.get(header.api_key)
        codec = codec_for(entry, header)
        assert entry is not None
        # First: it may wait for a client that does not read its answers, and then holds no shared resource.
        await wait_for_turn(entry)
        data = frame.data
        # Before authentication no request has lists, and 400 KB of tagged fields would take 0.2 s.
        most = MAX_ELEMENTS if session.is_authenticated else FEW_ELEMENTS
        examined = await self._turns.examine(len(data), lambda: examine_request(data, header, codec, most))
        work = Held(self.work, origin.peer_host)
        slot = HeldSlot(self.slots)
        if examined.elements > FEW_ELEMENTS and (entry.counts or not entry.waits):
            await work.take(examined.elements * ELEMENT_BYTES)
        wants_news = header.api_key not in _NO_NEWS
        try:
            if wants_news:
                await self.attention.begin()
            body = examined.read()
            if entry.waits:
                frame.release()
            else:
                frame.data = memoryview(b"")  # kio has copied what it needs; the bytes still count as held
                await self._wait_for(slot)
        except BaseException:
            work.release()
            if wants_news:
                self.attention.end()
            raise
        context = RequestContext(
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=examined.client_id,
            connection_id=origin.number,
            peer_host=origin.peer_host,
            listener=origin.listener,
            types=codec.types,
            answer=HeldAnswer(self.answers, origin.peer_host, slot.give_back),
            principal=session.principal,
            session=session,
            work=work,
        )
        return DispatchedRequest(
            self, entry, codec, context, body, frame, work, slot, origin, received, wants_news, len(data)
        )

    async def _wait_for(self, slot: HeldSlot) -> None:
        self._queued += 1
        try:
            await slot.take()
        finally:
            self._queued -= 1


@dataclass(slots=True, eq=False)
class DispatchedRequest:
    """One request; see network/connection.py, `Request`. `_received`: in seconds of the loop's clock."""

    _dispatcher: Dispatcher
    entry: ApiEntry
    _codec: MessageCodec
    context: RequestContext
    _body: Any
    _frame: Frame
    _work: Held
    _slot: HeldSlot
    _origin: Origin
    _received: float
    _wants_news: bool
    _size: int
    _mute_ms: float | None = None

    @property
    def mute_ms(self) -> float:
        """How long the client has to wait because of the bytes of the request; they are counted once."""
        if self._mute_ms is None:
            self._mute_ms = 0.0
            quotas = self._dispatcher.quotas
            if quotas is not None and self.context.api_key == ApiKey.PRODUCE:
                self._mute_ms = quotas.count(PRODUCED, self.context, self._size)
        return self._mute_ms

    @property
    def is_counted(self) -> bool:
        """True if others may wait for memory that it, or its answer, holds."""
        return self._work.is_held or self.context.answer.is_held

    async def handle(self) -> Answer:
        """Return the handler's encoded answer. Uncaught exceptions are bugs: logged, others unaffected."""
        context = self.context
        try:
            quotas, mute_ms = self._dispatcher.quotas, self.mute_ms
            if quotas is None or not quotas.has(REQUESTS):
                answer, in_time_ms = await self.entry.handle(self._take_body(), context), 0.0
            else:
                answer, in_time_ms = await self._timed(context, quotas)
            mute_ms = max(mute_ms, in_time_ms, context.answer.throttle_ms)
            if mute_ms >= 1 and answer is not None:
                answer = with_throttle(context.api_key, context.api_version, answer, int(mute_ms))
            if answer is None:
                return Answer(mute_ms=mute_ms)
            chunks = encode_response(self._codec, context.correlation_id, answer)
            if isinstance(answer, Response) and answer.release is not None:
                # Records count elsewhere.
                return Answer(chunks=chunks, release=answer.release, mute_ms=mute_ms)
            error = int(getattr(answer, "error_code", 0))
            if not self.entry.pipelined:  # else: deadlock with a request that waits for its turn
                del answer
                await context.answer.hold_made(held_bytes(chunks))
            return Answer(chunks=chunks, error=error, mute_ms=mute_ms)
        except asyncio.CancelledError:
            context.answer.release()
            raise
        except CloseConnectionError as error:
            return Answer(failure=str(error))
        except Exception:  # noqa: BLE001 - a handler's bug must not take the broker down
            _log.exception(
                "%s: %s version %d from client %r failed",
                self._origin,
                self.entry.name,
                context.api_version,
                context.client_id,
            )
            return Answer(failure="its request failed")
        finally:
            self._leave_queue()

    async def _timed(self, context: RequestContext, quotas: Quotas) -> tuple[Any, float]:
        """Return the handler's answer, and how long the client has to wait because of the time it took."""
        timed = Timed(self.entry.handle(self._take_body(), context))
        answer = await timed
        return answer, quotas.count(REQUESTS, context, timed.seconds * 100)  # percent of a core

    def _take_body(self) -> Any:
        """Pass the body to the handler, which may wait for long and drops what it no longer needs."""
        body, self._body = self._body, None
        return body

    def _leave_queue(self) -> None:
        """Free the bytes and the slot; idempotent."""
        self._frame.release()
        self._slot.give_back()

    def release(self) -> None:
        """Free all resources; idempotent. Called after the response, or when the request is dropped."""
        self._leave_queue()
        self._work.release()
        self.context.answer.release()
        if self._wants_news:
            self._wants_news = False
            self._dispatcher.attention.end()

    def count(self, answer: Answer, times: Times) -> None:
        """Update the metrics; the response was sent."""
        entry, context = self.entry, self.context
        total_ms = (times.sent - self._received) * 1000
        handling_ms = (times.handled - times.began) * 1000
        waits = entry.pipelined or entry.waits  # waits for the publisher, for records, or for members
        self._dispatcher.metrics.request(
            entry.name,
            total_ms,
            version=context.api_version,
            queue_ms=(times.began - self._received) * 1000,
            local_ms=0.0 if waits else handling_ms,
            remote_ms=handling_ms if waits else 0.0,
            response_queue_ms=(times.in_turn - times.handled) * 1000,
            send_ms=(times.sent - times.in_turn) * 1000,
            error=answer.error if answer.failure is None else -1,
        )
        if _request_log.isEnabledFor(logging.DEBUG):
            _request_log.debug(
                "%s version %d from client %r, %s: %.3f ms, of which %.3f handling",
                entry.name,
                context.api_version,
                context.client_id,
                self._origin,
                total_ms,
                handling_ms,
            )
