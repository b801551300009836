"""Requests that were let in and are never answered: all that they hold is given back.

What that is, `serving` looks at in the end: slots, bytes, work, attention.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from sparklog_server.network.connection import MAX_PIPELINED, Connection
from sparklog_server.protocol.wire import CloseConnectionError, Response
from tests.server.network.conftest import request, response, serving, until

Run = Callable[[Any], Any]
NOT_PIPELINED = struct.pack(">ihhih", 10, 18, 0, 1000, -1)  # ApiVersions
MANY_TOPICS = struct.pack(">i", 100) + b"\x00\x01t" * 100  # so that its work counts
LARGE = struct.pack(">i", 0) + bytes(10_000)  # so that its bytes count


@pytest.mark.parametrize("before", [1, MAX_PIPELINED])
@pytest.mark.parametrize("last", [NOT_PIPELINED, request(999, MANY_TOPICS), request(999, LARGE)])
def test_what_waits_for_a_pipelined_request_that_fails_is_dropped(run: Run, before: int, last: bytes) -> None:
    """As acks=0 with an error does, or a client that is killed."""

    async def main() -> None:
        gate = asyncio.Event()
        begun: list[int] = []

        async def handler(_request: Any, context: Any, _broker: Any) -> Response:
            begun.append(context.correlation_id)
            await gate.wait()
            raise CloseConnectionError("as acks=0")

        async with serving(handler, {"queued.max.requests": "100"}, pipelined=True) as served:
            for _ in range(3):
                gate.clear()
                begun.clear()
                reader, writer = await served.connect()
                writer.write(b"".join(request(number) for number in range(before)) + last)
                (connection,) = await _connections(served.network, 1)
                await until(lambda: len(begun) >= before)
                await _read_on(connection)
                gate.set()
                assert await reader.read() == b""
                await until(lambda: not served.network.connections)

    run(main)


@pytest.mark.parametrize("how", ["abort", "close"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_connection_may_be_ended_at_any_moment(run: Run, how: str, pipelined: bool) -> None:
    async def handler(_request: Any, context: Any, _broker: Any) -> Response:
        for _ in range(context.correlation_id % 4):
            await asyncio.sleep(0)
        return Response(chunks=[b"x"])

    async def main() -> None:
        async with serving(handler, {"queued.max.requests": "50"}, pipelined=pipelined) as served:
            network = served.network
            sent = [request(n, (MANY_TOPICS, LARGE)[n % 2]) for n in range(10)]
            sent += [request(n) for n in range(MAX_PIPELINED)]
            for turns in range(60):
                _, writer = await served.connect()
                (connection,) = await _connections(network, 1)
                writer.write(b"".join([*sent, NOT_PIPELINED]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                connection.abort() if how == "abort" else connection.close("a test says so")
                await until(lambda: not network.connections)
            reader, writer = await served.connect()
            writer.write(request(7))
            assert (await response(reader))[0] == 7

    run(main)


def test_pipelined_requests_that_never_began_are_dropped(run: Run) -> None:
    async def main() -> None:
        begun = []

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            begun.append(1)
            return Response(chunks=[b"x"])

        async with serving(handler, pipelined=True) as served:
            dispatch = served.network.shared.dispatch

            async def then_abort(*args: Any) -> Any:
                (connection,) = served.network.connections.values()
                asyncio.get_running_loop().call_soon(connection.abort)  # before the task that is made now
                return await dispatch(*args)

            served.network.shared.dispatch = then_abort
            reader, writer = await served.connect()
            writer.write(request(1, LARGE))
            assert await reader.read() == b""
            await until(lambda: not served.network.connections)
        assert begun == []

    run(main)


async def _connections(network: Any, count: int) -> list[Connection]:
    await until(lambda: len(network.connections) == count)
    return list(network.connections.values())


async def _read_on(connection: Connection) -> None:
    """Until it has let in all that was sent: a request that waits is neither being received nor answered."""
    await until(lambda: connection.reader.started_ms is None and not connection.reader.waits_for_memory)
    for _ in range(5):
        await asyncio.sleep(0)
