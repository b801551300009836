"""Connections over real sockets: order, pipelining, pushing back, limits, closing."""

import asyncio
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog_server.api.registry import declared_apis
from sparklog_server.metrics import Gauge
from sparklog_server.network.connection import MAX_PIPELINED
from sparklog_server.protocol.wire import FileRegion, Response
from tests.server.network.conftest import METADATA_V0, request, response, serving, until

Run = Callable[[Any], Any]


async def echo(_request: Any, context: Any, _broker: Any) -> Response:
    return Response(chunks=[struct.pack(">i", context.correlation_id)])


def test_responses_come_in_the_order_of_requests(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            writer.write(b"".join(request(number) for number in range(100)))
            for number in range(100):
                assert await response(reader) == (number, struct.pack(">i", number))

    run(main)


def test_one_request_at_a_time_unless_pipelined(run: Run) -> None:
    async def main(pipelined: bool) -> tuple[int, list[int]]:
        running = most = 0
        begun: list[int] = []
        gates = [asyncio.Event() for _ in range(MAX_PIPELINED + 10)]

        async def handler(_request: Any, context: Any, _broker: Any) -> Response:
            nonlocal running, most
            begun.append(context.correlation_id)
            running += 1
            most = max(most, running)
            await gates[context.correlation_id].wait()
            running -= 1
            return Response(chunks=[b"x"])

        async with serving(handler, pipelined=pipelined) as served:
            reader, writer = await served.connect()
            writer.write(b"".join(request(number) for number in range(len(gates))))
            await until(lambda: running == (MAX_PIPELINED if pipelined else 1))
            for gate in reversed(gates):  # the last one is ready first
                gate.set()
                await asyncio.sleep(0)
            answered = [(await response(reader))[0] for _ in gates]
        assert begun == sorted(begun)
        return most, answered

    expected = list(range(MAX_PIPELINED + 10))
    assert run(lambda: main(False)) == (1, expected)
    assert run(lambda: main(True)) == (MAX_PIPELINED, expected)


def test_a_response_waits_for_a_pipelined_one_behind_which_came_one_without(run: Run) -> None:
    """As acks=1, acks=0 and then another API: the first is still being sent when the second is done."""
    large = bytes(32 << 20)
    handled: list[int] = []

    async def handler(_request: Any, context: Any, _broker: Any) -> Response | None:
        handled.append(context.correlation_id)
        return Response(chunks=[large]) if context.correlation_id == 0 else None

    async def main() -> None:
        async with serving(handler, pipelined=True) as served:
            reader, writer = await served.connect()
            writer.write(request(0) + request(1) + struct.pack(">ihhih", 10, 18, 0, 2, -1))
            await until(lambda: handled == [0, 1])  # and the client has taken nothing yet
            assert await response(reader) == (0, large)
            assert (await response(reader))[0] == 2

    run(main)


def test_requests_beyond_the_queue_wait(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        begun = 0

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            nonlocal begun
            begun += 1
            await gate.wait()
            return Response(chunks=[b"x"])

        async with serving(handler, {"queued.max.requests": "2"}) as served:
            clients = [await served.connect() for _ in range(5)]
            for number, (_, writer) in enumerate(clients):
                writer.write(request(number))
            waiting = served.dispatcher.metrics.gauges[Gauge.REQUEST_QUEUE_SIZE]
            await until(lambda: waiting() == 3)
            assert begun == 2
            gate.set()
            for number, (reader, _) in enumerate(clients):
                assert (await response(reader))[0] == number
            assert waiting() == 0

    run(main)


def test_large_frames_wait_for_each_others_memory(run: Run) -> None:
    async def main() -> None:
        size = 600_000
        gate = asyncio.Event()
        begun = 0

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            nonlocal begun
            begun += 1
            await gate.wait()
            return Response(chunks=[b"x"])

        body = METADATA_V0 + bytes(size)
        async with serving(handler, {"queued.max.request.bytes": str(1 << 20)}) as served:
            clients = [await served.connect() for _ in range(4)]
            for number, (_, writer) in enumerate(clients):
                writer.write(request(number, body))
            budget = served.network.shared.budget
            await until(lambda: begun > 0 and budget.waiting + begun == 4)
            assert begun <= 2  # one within the budget, one that overdraws
            assert budget.used_bytes <= (1 << 20) + size
            gate.set()
            for number, (reader, _) in enumerate(clients):
                assert (await response(reader))[0] == number

    run(main)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative"),
        pytest.param(struct.pack(">i", 0), id="empty"),
        pytest.param(struct.pack(">i", 100 * (1 << 20) + 1), id="oversized"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="no header"),
        pytest.param(request(1, key=77), id="unknown API"),
        pytest.param(request(1, version=13), id="unknown version"),
        pytest.param(request(1, struct.pack(">i", (1 << 31) - 1)), id="hostile count"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
        pytest.param(request(1)[:-1], id="cut off"),
        pytest.param(b"\0\0", id="half a length"),
    ],
)
def test_what_is_no_request_closes_the_connection(
    run: Run, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparklog_server.network")

    async def main() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            writer.write(data)
            if len(data) < 20 and data[:3] != b"GET":
                writer.write_eof()
            assert await reader.read() == b""
            again, again_writer = await served.connect()  # the others do not notice
            again_writer.write(request(5))
            assert (await response(again))[0] == 5

    run(main)
    assert "connection 1 from 127.0.0.1 closed: " in caplog.text


def test_unknown_version_of_api_versions_is_told_the_versions(run: Run) -> None:
    async def main() -> None:
        async with serving(echo) as served:
            reader, writer = await served.connect()
            writer.write(request(9, b"\x00whatever", key=18, version=999))
            correlation_id, body = await response(reader)
            code, count = struct.unpack_from(">hi", body)
            assert (correlation_id, code, count) == (9, 35, len(declared_apis()))
            listed = list(struct.iter_unpack(">hhh", body[6:]))
            assert {(3, 0, 13), (18, 0, 5)} <= set(listed)
            assert len(listed) == count
            writer.write(request(10))  # and may go on
            assert (await response(reader))[0] == 10

    run(main)


def test_a_handlers_bug_closes_only_its_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_request: Any, context: Any, _broker: Any) -> Response:
        if context.correlation_id == 13:
            raise KeyError("a bug")
        return Response(chunks=[b"x"])

    async def main() -> None:
        for pipelined in (False, True):
            async with serving(handler, pipelined=pipelined) as served:
                other, other_writer = await served.connect()
                reader, writer = await served.connect()
                writer.write(request(12) + request(13) + request(14))
                assert (await response(reader))[0] == 12
                assert await reader.read() == b""
                other_writer.write(request(1))
                assert (await response(other))[0] == 1
                assert served.network.shared.metrics.requests["Metadata"].errors[-1] == 1

    run(main)
    assert "a bug" in caplog.text


def test_none_sends_nothing(run: Run) -> None:
    async def handler(_request: Any, context: Any, _broker: Any) -> Response | None:
        return None if context.correlation_id % 2 else Response(chunks=[b"x"])

    async def main() -> None:
        async with serving(handler, pipelined=True) as served:
            reader, writer = await served.connect()
            writer.write(b"".join(request(number) for number in range(6)))
            assert [(await response(reader))[0] for _ in range(3)] == [0, 2, 4]

    run(main)


def test_chunks_and_files_are_sent_as_they_are(run: Run, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    chunks: list[Any] = [
        b"head",
        bytearray(os.urandom(2_000_000)),
        memoryview(os.urandom(5)),
        *[b"%d" % n for n in range(2000)],
    ]
    released = []

    async def main() -> None:
        descriptor = os.open(path, os.O_RDONLY)

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            regions: list[Any] = [
                FileRegion(descriptor, 17, 2_500_000),
                b"tail",
                FileRegion(descriptor, 0, 5),
            ]
            return Response(chunks=[*chunks, *regions], release=lambda: released.append(1))

        async with serving(handler) as served:
            reader, writer = await served.connect()
            writer.write(request(1) + request(2))
            expected = b"".join(chunks) + content[17:2_500_017] + b"tail" + content[:5]
            for number in (1, 2):
                assert await response(reader) == (number, expected)
        os.close(descriptor)

    run(main)
    assert released == [1, 1]
