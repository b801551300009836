"""A connection that has ended is freed at once, with its buffers: no garbage collection is needed.

An exception holds its traceback, that the frames of the calls, and those their buffers. Where a task or a
future that holds such an exception is reachable from one of these frames, all lives until a full collection.
"""

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog_server.network.connection import Connection
from sparklog_server.protocol.wire import Response
from tests.server.network.conftest import METADATA_V0, Served, request, serving, until

Run = Callable[[Any], Any]
_LARGE = request(1, METADATA_V0 + bytes(300_000))
_SMALL_BUDGET = {"queued.max.request.bytes": str(1 << 20), "socket.request.max.bytes": str(1 << 20)}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What is freed in these tests is freed by reference counts."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Parts:
    """Weak references to what a connection holds its memory by."""

    def __init__(self, connection: Connection) -> None:
        parts = (connection, connection.reader, connection.writer, connection.receiver)
        self._parts = {type(one).__name__: weakref.ref(one) for one in parts}

    def alive(self) -> list[str]:
        return [name for name, part in self._parts.items() if part() is not None]


async def _parts(served: Served, count: int = 1) -> list[_Parts]:
    await until(lambda: len(served.network.connections) == count)
    return [_Parts(one) for one in served.network.connections.values()]


async def _are_freed(served: Served, parts: list[_Parts]) -> None:
    await until(lambda: not served.network.connections)
    for _ in range(10):  # callbacks of what has ended
        await asyncio.sleep(0)
    assert [one.alive() for one in parts] == [[]] * len(parts)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _only(served: Served) -> Connection:
    (connection,) = served.network.connections.values()
    return connection


def _end_all(served: Served, how: str) -> None:
    for connection in list(served.network.connections.values()):
        if how == "close":
            connection.close("a test says so")
        else:
            connection.abort()


async def _answer(_request: Any, _context: Any, _broker: Any) -> Response:
    return Response(chunks=[b"x" * (8 << 20)])  # more than the sockets take


@pytest.mark.parametrize("how", ["close", "abort", "reset", "eof"])
def test_within_a_large_request(run: Run, how: str) -> None:
    async def main() -> None:
        async with serving(_answer) as served:
            _, writer = await served.connect()
            writer.write(_LARGE[:-1000])
            parts = await _parts(served)
            await until(lambda: _only(served).reader.received_bytes > 250_000)
            if how == "reset":
                _reset(writer)
            elif how == "eof":
                writer.write_eof()
            else:
                _end_all(served, how)
            await _are_freed(served, parts)

    run(main)


@pytest.mark.parametrize("how", ["close", "abort", "reset"])
def test_while_a_request_waits_for_memory(run: Run, how: str) -> None:
    async def main() -> None:
        async with serving(_answer, _SMALL_BUDGET) as served:
            writers = [(await served.connect())[1] for _ in range(4)]
            for writer in writers:
                writer.write(request(1, METADATA_V0 + bytes(700_000))[:-1000])
            parts = await _parts(served, len(writers))
            await until(lambda: served.network.shared.budget.waiting >= 2)
            if how != "reset":
                _end_all(served, how)
            for writer in writers:
                _reset(writer)
            await _are_freed(served, parts)

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("how", ["close", "abort", "reset"])
def test_while_the_client_does_not_take_an_answer(run: Run, how: str, pipelined: bool) -> None:
    async def main() -> None:
        async with serving(_answer, pipelined=pipelined) as served:
            _, writer = await served.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request(1) + request(2) + request(3))
            parts = await _parts(served)
            await until(lambda: _only(served).writer.waiting_since_ms is not None)
            if how == "reset":
                _reset(writer)
            else:
                _end_all(served, how)
            await _are_freed(served, parts)

    run(main)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("how", ["close", "abort"])
def test_while_a_request_is_handled(run: Run, how: str, pipelined: bool) -> None:
    async def main() -> None:
        begun = asyncio.Event()
        gate = asyncio.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            begun.set()
            await gate.wait()
            return Response(chunks=[b"x"])

        async with serving(handler, waits=not pipelined, pipelined=pipelined) as served:
            _, writer = await served.connect()
            writer.write(_LARGE + _LARGE)
            parts = await _parts(served)
            await begun.wait()
            _end_all(served, how)
            gate.set()
            await _are_freed(served, parts)

    run(main)


def test_after_bytes_that_are_no_request(run: Run) -> None:
    async def main() -> None:
        async with serving(_answer) as served:
            _, writer = await served.connect()
            writer.write(struct.pack(">i", 300_000) + b"\xff" * 299_000)
            parts = await _parts(served)
            writer.write(b"\xff" * 1000)
            await _are_freed(served, parts)

    run(main)
