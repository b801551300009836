"""One client's connection: read a request, have it handled, send the response; and again.

Invariants:
    1. responses go out in the order of the requests;
    2. one request at a time, but for pipelined ones (Produce): those may start before earlier pipelined
       ones are answered, at most MAX_PIPELINED of them;
    3. nothing is read while a request waits for room, so that a client is pushed back by TCP.
Errors: bytes that are no request, an API that is not served, an exception in a handler: the connection is
    closed with a line in the log, as Kafka does; a client connects again.
A client that leaves: handlers that only wait (`waits`) are cancelled, all others run to their end
    and their response is dropped.
Concurrency: one task per connection, and one per pipelined request, each of which waits for the one before
    it until that one's response is queued. The server closes the connection from outside.
Sources: Kafka SocketServer.Processor, KafkaChannel (muted while a request is in progress).
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparklog_server.network.frames import Frame, FrameError, FrameReader, FrameWriter
from sparklog_server.network.shared import Shared
from sparklog_server.network.work import HeldWork
from sparklog_server.protocol.answers import HeldAnswer
from sparklog_server.protocol.api_entry import ApiEntry, RequestContext
from sparklog_server.protocol.messages import (
    MalformedRequestError,
    MessageCodec,
    UnsupportedRequestError,
    codec_for,
    encode_response,
    examine_request,
    parse_header,
)
from sparklog_server.protocol.wire import Chunk, CloseConnectionError, Response
from sparklog_server.settings.addresses import AdvertisedListener

MAX_PIPELINED = 64
_log = logging.getLogger("sparklog_server.network")
_request_log = logging.getLogger("sparklog_server.request")
_Closing = (FrameError, MalformedRequestError, UnsupportedRequestError)


@dataclass(slots=True)
class _Request:
    entry: ApiEntry
    codec: MessageCodec
    context: RequestContext
    body: Any
    frame: Frame
    work: HeldWork
    holds_slot: bool
    received: float  # seconds of the loop's clock, as the following

    def take_body(self) -> Any:
        """For the handler, which may wait for long and knows what it still needs."""
        body, self.body = self.body, None
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """No chunks: nothing is sent. `failure`: the connection is closed, once earlier requests are answered."""

    chunks: Sequence[Chunk] = ()
    release: Callable[[], None] | None = None
    error: int = 0
    failure: str | None = None


class Connection:
    """See the module's docstring."""

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        number: int,
        peer_host: str,
        listener: AdvertisedListener,
    ) -> None:
        self._shared = shared
        self._sock = sock
        self.number = number
        self.peer_host = peer_host
        self._listener = listener
        max_bytes = shared.settings.socket_request_max_bytes
        self.reader = FrameReader(sock, shared.budget, shared.clock, max_bytes, peer_host)
        self.writer = FrameWriter(sock, shared.clock, shared.run_blocking)
        self._task: asyncio.Task[None] | None = None
        self._entry: ApiEntry | None = None  # of the request that is being handled, if not pipelined
        self._pipelined: set[asyncio.Task[None]] = set()
        self._last_turn: asyncio.Future[None] | None = None  # done when its response stands in the queue
        self._serving = False
        self._draining = False
        self._closed = False

    def __str__(self) -> str:
        return f"connection {self.number} from {self.peer_host}"

    @property
    def is_idle(self) -> bool:
        """Nothing is being received, handled or sent."""
        return not (
            self._serving
            or self._pipelined
            or self.reader.waits_for_memory
            or self.reader.started_ms is not None
        )

    @property
    def is_waiting(self) -> bool:
        """Is it in a handler that may be cancelled?"""
        return self._entry is not None and self._entry.waits

    async def run(self) -> None:
        """Serve until the client leaves, breaks the rules, or the server closes."""
        self._task = asyncio.current_task()
        try:
            while not self._draining and (frame := await self.reader.read()) is not None:
                self._serving = True
                await self._serve(frame)
                self._serving = False
            await self._wait_for_pipelined()
        except _Closing as error:
            _log.log(logging.INFO if self._draining else logging.WARNING, "%s closed: %s", self, error)
        except OSError as error:
            _log.debug("%s lost: %s", self, error)
        finally:
            self._closed = True
            self.writer.abort()  # a pipelined request may be sending
            self._sock.close()

    def drain(self) -> None:
        """No more requests: what is being worked on is answered, then the connection ends."""
        self._draining = True
        if self.is_waiting:
            self.close("the broker is shutting down")
        else:
            self._shutdown(socket.SHUT_RD)

    def close(self, why: str) -> None:
        """End it now; what is being worked on is finished, and its response dropped."""
        if self._closed:
            return
        self._closed = True
        _log.info("%s closed: %s", self, why)
        if self._task is not None and (self._entry is None or self._entry.waits):
            self._task.cancel()
        self._shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """End it now, whatever it is doing."""
        self._closed = True
        for task in (self._task, *self._pipelined):
            if task is not None:
                task.cancel()

    def is_abandoned(self) -> bool:
        """Has the client of a waiting request gone?"""
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    # --- requests -----------------------------------------------------------------------------------

    async def _serve(self, frame: Frame) -> None:
        try:
            request = await self._decode(frame)
        except BaseException:
            frame.release()
            raise
        if not request.entry.pipelined:
            await self._wait_for_pipelined()
            self._entry = request.entry
            try:
                await self._answer(request, None, None)
            finally:
                self._entry = None
            return
        while len(self._pipelined) >= MAX_PIPELINED:
            await asyncio.wait(self._pipelined, return_when=asyncio.FIRST_COMPLETED)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._answer_pipelined(request, self._last_turn, turn))
        self._last_turn = turn
        self._pipelined.add(task)
        task.add_done_callback(self._pipelined.discard)

    async def _decode(self, frame: Frame) -> _Request:
        received = asyncio.get_running_loop().time()
        header = parse_header(frame.data)
        entry = self._shared.apis.get(header.api_key)
        codec = codec_for(entry, header)
        assert entry is not None
        waits = entry.waits
        examined = examine_request(frame.data, header, codec)
        work = HeldWork(self._shared.work, self.peer_host)
        if not waits:
            await work.reserve(examined.elements)
        try:
            body = examined.read()
            if waits:
                frame.release()
            else:
                frame.data = memoryview(b"")  # kio has copied what it needs; the bytes still count as held
                await self._shared.slots.acquire()
        except BaseException:
            work.release()
            raise
        context = RequestContext(
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=examined.client_id,
            connection_id=self.number,
            peer_host=self.peer_host,
            listener=self._listener,
            received_ms=self._shared.clock.monotonic_ms(),
            types=codec.types,
            answer=HeldAnswer(self._shared.answers, self.peer_host),
        )
        return _Request(entry, codec, context, body, frame, work, holds_slot=not waits, received=received)

    async def _answer_pipelined(
        self, request: _Request, previous: "asyncio.Future[None] | None", turn: "asyncio.Future[None]"
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
        request: _Request,
        previous: "asyncio.Future[None] | None",
        turn: "asyncio.Future[None] | None",
    ) -> None:
        """Handle the request and send its response, after that of the one whose turn `previous` is."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            answer = await self._handle(request)
        except BaseException:
            request.work.release()
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
                is_counted = request.work.is_held or request.context.answer.is_held
                if turn is None:
                    await self.writer.send(answer.chunks, is_counted=is_counted)
                else:
                    sending = self.writer.queue(answer.chunks, is_counted=is_counted)
                    turn.set_result(None)
                    await sending
        finally:
            request.work.release()
            request.context.answer.release()
            if answer.release is not None:
                answer.release()
        self._count(request, answer, (began, handled, in_turn, clock()))

    async def _handle(self, request: _Request) -> _Answer:
        """The handler's answer, encoded. What it does not catch is a bug: logged, nobody else is harmed."""
        context = request.context
        try:
            body = await request.entry.handle(request.take_body(), context)
            if body is None:
                return _Answer()
            return _Answer(
                chunks=encode_response(request.codec, context.correlation_id, body),
                release=body.release if isinstance(body, Response) else None,
                error=int(getattr(body, "error_code", 0)),
            )
        except asyncio.CancelledError:
            context.answer.release()
            raise
        except CloseConnectionError as error:
            return _Answer(failure=str(error))
        except Exception:  # noqa: BLE001 - a handler's bug must not take the broker down
            _log.exception(
                "%s: %s version %d from client %r failed",
                self,
                request.entry.name,
                context.api_version,
                context.client_id,
            )
            return _Answer(failure="its request failed")
        finally:
            request.frame.release()
            if request.holds_slot:
                self._shared.slots.release()

    def _count(self, request: _Request, answer: _Answer, times: tuple[float, float, float, float]) -> None:
        began, handled, turn, sent = times
        entry = request.entry
        total_ms = (sent - request.received) * 1000
        handling_ms = (handled - began) * 1000
        waits = entry.pipelined or not request.holds_slot  # for the publisher, for records, for members
        self._shared.metrics.request(
            entry.name,
            total_ms,
            version=request.context.api_version,
            queue_ms=(began - request.received) * 1000,
            local_ms=0.0 if waits else handling_ms,
            remote_ms=handling_ms if waits else 0.0,
            response_queue_ms=(turn - handled) * 1000,
            send_ms=(sent - turn) * 1000,
            error=answer.error if answer.failure is None else -1,
        )
        if _request_log.isEnabledFor(logging.DEBUG):
            _request_log.debug(
                "%s version %d from client %r, %s: %.3f ms, of which %.3f handling",
                entry.name,
                request.context.api_version,
                request.context.client_id,
                self,
                total_ms,
                handling_ms,
            )

    async def _wait_for_pipelined(self) -> None:
        # All of them: the last may have nothing to send (acks=0) while one before it is still being sent.
        if self._pipelined:
            await asyncio.wait(self._pipelined)
        self._last_turn = None

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(how)
