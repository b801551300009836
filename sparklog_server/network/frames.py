"""Frames: four bytes of length, then the body; requests in, responses out.

Invariants: memory for a frame grows as its bytes arrive, whatever length it announces; an impossible length
    is an error before anything is read or allocated.
Not here: timeouts of frames (server.py checks `started_ms` and `is_too_slow`), their content (protocol/).
Concurrency: one reader and one sender per socket, on the event loop.
Sources: Kafka NetworkReceive, ByteBufferSend; KIP-72.
"""

import asyncio
import errno
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import as_value
from sparklog_server.network.tls import TlsSocket, finished
from sparklog_server.protocol.wire import Chunk, FileRegion
from sparklog_server.runtime.budget import Budget, Held
from sparklog_server.settings.network import is_loopback

# --- receiving ---------------------------------------------------------------------------------------
#
# Receives the available bytes of a socket, on demand, as far as the buffer has room.
#
# `receive_into` tries the socket first, and waits only if nothing has arrived. The loop then watches the
# socket while bytes are wanted: an event loop's sock_recv_into registers and unregisters the socket around
# every call, of which a request of 128 KB takes three.
#
# Invariants: nothing is received before it is requested: TCP applies backpressure. While nothing is wanted
#     the loop does not watch the socket (it would find it readable in every turn). A client that sends
#     without a pause does not keep the loop from others: after IN_A_ROW receptions the next one waits for the
#     loop's turn. The end of the stream comes after bytes that may never be requested: on Linux the
#     connection's state shows it, elsewhere it is visible only if no unread bytes come before it.
# Concurrency: event loop; one caller at a time.
# Sources: asyncio's and uvloop's sock_recv_into; tcp(7), TCP_INFO; Linux net/tcp_states.h.


IN_A_ROW = 8  # receptions without a turn of the loop: two requests of a usual producer
_CLOSE, _CLOSE_WAIT = 7, 8  # Linux: reset or gone; the peer has ended its stream


def has_ended(sock: socket.socket | TlsSocket) -> bool:
    """True if the peer has ended its stream, or is lost. Unread bytes stay readable."""
    if sys.platform == "linux":
        try:
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            pass  # no TCP
        else:
            return state[0] in {_CLOSE, _CLOSE_WAIT}
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


class SocketReceiver:
    """Receives from a non-blocking socket.

    With TLS, bytes may wait in OpenSSL while the descriptor is not readable, so the socket is tried before
    each wait.
    """

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self._sock = sock
        self._loop: asyncio.AbstractEventLoop | None = None  # while it watches the socket
        self._wanted: memoryview | None = None
        self._waiter: asyncio.Future[int] | None = None
        self._in_a_row = 0

    @property
    def is_watched(self) -> bool:
        """True if the loop watches the socket."""
        return self._loop is not None

    async def receive_into(self, buffer: memoryview) -> int:
        """Return how many bytes were received, at least one; 0: end of stream. OSError: it is lost."""
        if self._in_a_row >= IN_A_ROW and isinstance(self._sock, TlsSocket):
            await asyncio.sleep(0)
            self._in_a_row = 0
        if self._in_a_row < IN_A_ROW:
            self._in_a_row += 1
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                pass
            else:
                return count
        self._in_a_row = 0
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._sock, self._on_readable)
            self._loop = loop
        waiter: asyncio.Future[int] = loop.create_future()
        self._waiter = waiter
        self._wanted = buffer
        try:
            return await waiter
        finally:
            self._waiter = self._wanted = None
            del waiter  # it may hold the exception that holds this frame

    def close(self) -> None:
        """Stop watching the socket, before it is closed."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        waiter, buffer = self._waiter, self._wanted
        if waiter is None or buffer is None or waiter.done():
            self.close()  # until the next receive_into
            return
        try:
            count = self._sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            waiter.set_exception(as_value(error))
        else:
            waiter.set_result(count)


# --- connections -------------------------------------------------------------------------------------


_FOR_LOOPBACK = 1


class ConnectionQuota:
    """How many connections there may be, in all and from one address.

    One connection is reserved for this machine itself: without it, nobody could connect to raise a limit
    that is too low.
    """

    def __init__(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = overrides
        self._by_ip: Counter[str] = Counter()
        self._room = asyncio.Event()
        self._room.set()
        self.count = 0

    def change(self, max_connections: int, max_per_ip: int, overrides: Mapping[str, int]) -> None:
        """Set new limits; existing connections above them continue."""
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._overrides = overrides
        self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until another connection may be accepted; new ones queue in the kernel."""
        while self.count >= self._max_connections + _FOR_LOOPBACK:
            self._room.clear()
            await self._room.wait()

    def has_room_for(self, ip: str) -> bool:
        """True if a connection of this address may be accepted; the last place is this machine's."""
        return self.count < self._max_connections or is_loopback(ip)

    def try_add(self, ip: str) -> bool:
        """Count a new connection; return False if this address has too many."""
        if self._by_ip[ip] >= self._overrides.get(ip, self._max_per_ip):
            return False
        self._by_ip[ip] += 1
        self.count += 1
        return True

    def remove(self, ip: str) -> None:
        """Count a closed connection."""
        self.count -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._room.set()


# --- frames ------------------------------------------------------------------------------------------


_LENGTH = struct.Struct(">i")
_SMALL_BYTES = 8192
_FIRST_BYTES = 64 * 1024
_GROWTH = 4
RATE_WINDOW_MS = 5_000
_MAX_CHUNKS_PER_CALL = 256  # sendmsg takes IOV_MAX = 1024
_SENDFILE_BYTES = 4 << 20
_ENCRYPTED_BYTES = 64 << 10  # of a file, held by each connection with TLS while it is sent
RunBlocking = Callable[..., Awaitable[Any]]


class FrameError(Exception):
    """The client violates the framing; its connection is closed."""


class Frame(Held):
    """A request's bytes, read-only; give them back with `release`."""

    __slots__ = ("data",)

    def __init__(self, budget: Budget, owner: str = "") -> None:
        super().__init__(budget, owner)
        self.data = memoryview(b"")

    def release(self) -> None:
        """Free the bytes; idempotent."""
        self.data = memoryview(b"")
        super().release()


class _Pace:
    """The transfer rate of something that holds memory until it is complete."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None  # the time of the last check, and the bytes done by then

    def begin(self) -> None:
        """Reset the measurement for a new transfer."""
        self._seen = None

    def is_too_slow(self, now_ms: int, patience_ms: int, *, done: int, whole: int) -> bool:
        """True if the whole takes longer than `patience_ms` at this rate. Call about once a second."""
        if self._seen is None:
            self._seen = (now_ms, done)
            return False
        since_ms, before = self._seen
        if now_ms - since_ms < min(RATE_WINDOW_MS, patience_ms):
            return False
        self._seen = (now_ms, done)
        return (done - before) * patience_ms < whole * (now_ms - since_ms)


class FrameReader:
    """Reads the received bytes frame by frame."""

    def __init__(
        self, receiver: SocketReceiver, budget: Budget, clock: Clock, max_bytes: int, owner: str = ""
    ) -> None:
        self._receiver = receiver
        self._owner = owner
        self._budget = budget
        self._clock = clock
        self.max_bytes = max_bytes  # a frame's; may change between two frames
        self._buffer = memoryview(bytearray(_SMALL_BYTES))
        self._start = 0
        self._end = 0
        self.started_ms: int | None = None  # of a frame that has begun and not ended
        self.waits_for_memory = False
        self.active_ms = clock.monotonic_ms()
        self.capacity = 0  # memory taken for a frame that has begun
        self.received_bytes = 0  # of it
        self._pace = _Pace()

    def is_too_slow(self, now_ms: int, patience_ms: int) -> bool:
        """True if the frame arrives too slowly for the memory that it holds. Call about once a second.

        A client that stops in the middle of a large frame is detected within RATE_WINDOW_MS.
        """
        if not self.capacity or self.waits_for_memory:
            self._pace.begin()
        return self._pace.is_too_slow(now_ms, patience_ms, done=self.received_bytes, whole=self.capacity)

    async def read(self) -> Frame | None:
        """Return the next frame; None if the stream ends between two frames.

        Raises:
            FrameError: an impossible length, or the stream ends within a frame.
        """
        self.started_ms = self._clock.monotonic_ms() if self._end > self._start else None
        while self._end - self._start < _LENGTH.size:
            if not await self._fill():
                if self._end == self._start:
                    return None
                raise FrameError("the connection ended within a frame's length")
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 < size <= self.max_bytes:
            raise FrameError(f"a frame of {size} bytes, expected 1 to {self.max_bytes}")
        frame = Frame(self._budget, self._owner)
        try:
            await self._read_body(frame, size)
        except BaseException:
            frame.release()
            raise
        self.started_ms = None
        return frame

    async def _read_body(self, frame: Frame, size: int) -> None:
        if _LENGTH.size + size <= len(self._buffer):
            while self._end - self._start < _LENGTH.size + size:
                if not await self._fill():
                    raise FrameError(f"the connection ended within a frame of {size} bytes")
            begin = self._start + _LENGTH.size
            self._start = begin + size
            frame.data = memoryview(bytes(self._buffer[begin : self._start]))
            if self._start == self._end:
                self._start = self._end = 0
            return
        await self._read_large(frame, size)

    async def _read_large(self, frame: Frame, size: int) -> None:
        capacity = min(size, _FIRST_BYTES)
        await self._take(frame, capacity)
        data = np.empty(capacity, np.uint8)
        self.received_bytes = position = self._end - self._start - _LENGTH.size
        self.capacity = capacity
        self._pace.begin()
        data.data[:position] = self._buffer[self._start + _LENGTH.size : self._end]
        self._start = self._end = 0
        while position < size:
            if position == capacity:
                larger = min(size, capacity * _GROWTH)
                await self._take(frame, larger - capacity)
                grown = np.empty(larger, np.uint8)
                grown[:position] = data
                data, self.capacity = grown, larger
                capacity = larger
            count = await self._receiver.receive_into(data.data[position:])
            if not count:
                raise FrameError(f"the connection ended at byte {position} of a frame of {size}")
            position += count
            self.received_bytes = position
            self.active_ms = self._clock.monotonic_ms()
        self.capacity = 0
        frame.data = data.data.toreadonly()

    async def _take(self, frame: Frame, size: int) -> None:
        started_ms, self.started_ms = self.started_ms, None  # waiting for our memory is not slowness
        self.waits_for_memory = True
        try:
            waited = await frame.take(size)
        finally:
            self.waits_for_memory = False
        if started_ms is not None:
            self.started_ms = self._clock.monotonic_ms() if waited else started_ms

    async def _fill(self) -> int:
        """Receive into the small buffer; it holds less than one small frame."""
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        count = await self._receiver.receive_into(self._buffer[self._end :])
        self._end += count
        self.active_ms = self._clock.monotonic_ms()
        if self.started_ms is None:
            self.started_ms = self.active_ms
        return count


@dataclass(slots=True, eq=False)
class _Queued:
    """Chunks that are sent together, and the futures of their requests."""

    chunks: list[Chunk]
    waiters: "list[asyncio.Future[None]]"
    is_counted: bool = False


class FrameWriter:
    """Sends responses to a non-blocking socket, in order.

    Responses that are ready at the same time, such as those to pipelined requests after a commit, go out in
    one system call: `queue` waits for one turn of the event loop, and for the send in progress.
    """

    def __init__(self, sock: socket.socket | TlsSocket, clock: Clock, run_blocking: RunBlocking) -> None:
        self._sock = sock
        self._clock = clock
        self._run_blocking = run_blocking
        self.waiting_since_ms: int | None = None  # the client does not read its response
        self.counted_bytes = 0  # of the response in progress, if others may wait for its memory
        self.sent_bytes = 0  # of it
        self._pace = _Pace()
        self._writable: asyncio.Future[None] | None = None
        self._queued: _Queued | None = None
        self._sending: asyncio.Future[None] | None = None  # done when the socket is free again

    def is_too_slow(self, now_ms: int, patience_ms: int) -> bool:
        """True if the client reads a counted response too slowly. Call about once a second."""
        if not self.counted_bytes or self.waiting_since_ms is None:
            self._pace.begin()
        return self._pace.is_too_slow(now_ms, patience_ms, done=self.sent_bytes, whole=self.counted_bytes)

    def queue(self, chunks: Sequence[Chunk], *, is_counted: bool = False) -> Awaitable[None]:
        """Send after all queued chunks; the result must be awaited, and completes when all are sent."""
        if self._queued is None:
            self._queued = _Queued(list(chunks), [], is_counted)
            return self._send_queued(self._queued)
        self._queued.chunks.extend(chunks)
        self._queued.is_counted |= is_counted
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.waiters.append(sent)
        return sent

    async def _send_queued(self, queued: _Queued) -> None:
        sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            if self._sending is None:
                await asyncio.sleep(0)
            while self._sending is not None:
                await asyncio.wait([self._sending])
            self._queued = None
            self._sending = sending
            await self.send(queued.chunks, is_counted=queued.is_counted)
        except BaseException as error:
            number = error.errno if isinstance(error, OSError) else errno.ECONNABORTED
            for waiter in queued.waiters:
                if not waiter.done():
                    # A separate exception for each: an exception holds the frames that it passed.
                    waiter.set_exception(OSError(number, f"the response was not sent: {error}"))
                    waiter.exception()  # seen: its request may be gone
            raise
        finally:
            if self._queued is queued:
                self._queued = None
            if self._sending is sending:
                self._sending = None
            sending.set_result(None)
        for waiter in queued.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def send(self, chunks: Sequence[Chunk], *, is_counted: bool = False) -> int:
        """Send all chunks in order, without joining them; return the bytes sent. Nothing may be queued.

        Files are read in a thread: their pages may have to come from the disk.

        Args:
            is_counted: others may wait for the memory that it holds.
        """
        if not is_counted:
            return await self._send(chunks)
        self.counted_bytes, self.sent_bytes = sum(map(_size, chunks)), 0
        self._pace.begin()
        try:
            return await self._send(chunks)
        finally:
            self.counted_bytes = 0

    async def _send(self, chunks: Sequence[Chunk]) -> int:
        sent = 0
        batch: list[memoryview] = []
        for chunk in chunks:
            if isinstance(chunk, FileRegion):
                sent += await self._send_buffers(batch)
                batch = []
                sent += await self._send_file(chunk)
            else:
                view = memoryview(chunk)
                batch.append(view if view.format == "B" else view.cast("B"))
        return sent + await self._send_buffers(batch)

    async def _send_buffers(self, buffers: list[memoryview]) -> int:
        total = 0
        first = 0
        while first < len(buffers):
            try:
                count = self._sock.sendmsg(buffers[first : first + _MAX_CHUNKS_PER_CALL])
            except (BlockingIOError, InterruptedError):
                await self._wait_writable()
                continue
            total += count
            self.sent_bytes += count
            while first < len(buffers) and count >= len(buffers[first]):
                count -= len(buffers[first])
                first += 1
            if count:
                buffers[first] = buffers[first][count:]
        if isinstance(self._sock, TlsSocket):
            await self._flush(self._sock)
        return total

    async def _flush(self, sock: TlsSocket) -> None:
        while True:
            try:
                sock.flush()
            except BlockingIOError:
                await self._wait_writable()
            else:
                return

    async def _send_file(self, region: FileRegion) -> int:
        sent = 0
        while sent < region.size:
            position = region.position + sent
            if isinstance(self._sock, TlsSocket):
                size = min(region.size - sent, _ENCRYPTED_BYTES)
                data = await self._run_blocking(os.pread, region.descriptor, size, position)
                sent += await self._send_buffers([memoryview(data)] if data else [])
                if not data:
                    raise FrameError(f"a file ended {region.size - sent} bytes early, within a response")
                continue
            size = min(region.size - sent, _SENDFILE_BYTES)
            try:
                count = await self._sendfile(region.descriptor, position, size)
            except (BlockingIOError, InterruptedError):
                await self._wait_writable()
                continue
            if not count:
                raise FrameError(f"a file ended {region.size - sent} bytes early, within a response")
            sent += count
        return sent

    async def _sendfile(self, descriptor: int, position: int, size: int) -> int:
        """Call sendfile in a thread. When cancelled, still wait for the thread, because otherwise:

        1. this task is cancelled, and the socket is closed, while the thread is about to send;
        2. a new connection is accepted and gets the same descriptor;
        3. the thread sends one client's records to the other.
        """
        sending = self._run_blocking(os.sendfile, self._sock.fileno(), descriptor, position, size)
        return int(await finished(asyncio.ensure_future(sending)))

    async def _wait_writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable = self._writable = loop.create_future()
        self.waiting_since_ms = self._clock.monotonic_ms()
        loop.add_writer(self._sock, _resolve, writable)
        try:
            await writable
        finally:
            del writable  # it may hold the exception that holds this frame
            self.waiting_since_ms = self._writable = None
            if self._sock.fileno() >= 0:
                loop.remove_writer(self._sock)

    def abort(self) -> None:
        """Fail a `send` that waits for the client; call it before the socket is closed."""
        if self._writable is not None and not self._writable.done():
            asyncio.get_running_loop().remove_writer(self._sock)
            self._writable.set_exception(ConnectionAbortedError("the connection was closed"))


def _size(chunk: Chunk) -> int:
    return chunk.size if isinstance(chunk, FileRegion) else memoryview(chunk).nbytes


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
