"""Whoever waits for its turn on its own connection holds nothing that others wait for."""

import asyncio
from collections.abc import Callable
from typing import Any

from sparklog_server.protocol.wire import Response
from tests.server.network.conftest import request, response, serving, until
from tests.server.network.test_connection_dropped_requests import NOT_PIPELINED

Run = Callable[[Any], Any]


def test_who_waits_for_its_turn_has_no_slot(run: Run) -> None:
    """Connections that do not read their answers to Produce, with one request more behind them, took all."""

    async def main() -> None:
        gate, begun = asyncio.Event(), list[int]()

        async def handler(_request: Any, context: Any, _broker: Any) -> Response:
            begun.append(context.correlation_id)
            if context.correlation_id == 1:
                await gate.wait()
            return Response(chunks=[b"x"])

        async with serving(handler, {"queued.max.requests": "2"}, pipelined=True) as served:
            _, first = await served.connect()
            first.write(request(1) + NOT_PIPELINED)
            await until(lambda: begun == [1])
            (connection,) = served.network.connections.values()
            await until(lambda: not connection.is_idle)
            for _ in range(20):
                await asyncio.sleep(0)  # what is behind has been read
            reader, writer = await served.connect()
            writer.write(request(7))
            async with asyncio.timeout(30):
                assert (await response(reader))[0] == 7
            assert begun == [1, 7]
            gate.set()

    run(main)
