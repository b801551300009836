"""Connections over real sockets: order, pipelining, pushing back, limits, closing."""

import asyncio
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog_server.api.registry import declared_apis
from sparklog_server.network.connection import MAX_PIPELINED
from sparklog_server.network.frames import RATE_WINDOW_MS
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
            await until(lambda: served.dispatcher.slots.locked())
            await asyncio.sleep(0.02)  # nothing to wait for: nothing else must happen
            assert begun == 2
            gate.set()
            for number, (reader, _) in enumerate(clients):
                assert (await response(reader))[0] == number

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
            assert {(3, 0, 12), (18, 0, 4)} <= set(listed)
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


def test_a_client_that_leaves_ends_waiting_handlers_and_no_others(run: Run) -> None:
    async def main(waits: bool) -> str:
        begun = asyncio.Event()
        gate = asyncio.Event()
        outcome = asyncio.get_running_loop().create_future()

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            begun.set()
            try:
                await gate.wait()
                outcome.set_result("done")
            except asyncio.CancelledError:
                outcome.set_result("cancelled")
                raise
            return Response(chunks=[b"x"])

        idle = {"connections.max.idle.ms": "20"}  # so that connections are looked at often
        # By a clock that stands still nobody is idle for so long, however slow the machine.
        async with serving(handler, idle, waits=waits, clock=ManualClock()) as served:
            _, writer = await served.connect()
            writer.write(request(1))
            await begun.wait()
            writer.close()
            if waits:
                return str(await outcome)
            await asyncio.sleep(0.03)
            assert not outcome.done()
            gate.set()
            return str(await outcome)

    assert run(lambda: main(True)) == "cancelled"
    assert run(lambda: main(False)) == "done"


def test_waiting_for_the_broker_is_neither_idle_nor_slow(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        gate = asyncio.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            await gate.wait()
            return Response(chunks=[b"x"])

        configs = {
            "connections.max.idle.ms": "1000",
            "sparklog.socket.timeout.ms": "500",
            "queued.max.requests": "2",
            "queued.max.request.bytes": str(1 << 20),
        }
        async with serving(handler, configs, clock=clock) as served:
            clients = [await served.connect() for _ in range(7)]
            for number, (_, writer) in enumerate(clients):
                writer.write(request(number, METADATA_V0 + bytes(600_000 if number < 4 else 10)))
            await until(
                lambda: served.network.shared.budget.waiting >= 2 and served.dispatcher.slots.locked()
            )
            clock.advance_ms(2000)
            looked = served.network.looks
            await until(lambda: served.network.looks > looked + 1)
            assert len(served.network.connections) == len(clients)
            gate.set()
            for number, (reader, _) in enumerate(clients):
                assert (await response(reader))[0] == number

    run(main)


def test_slow_clients_and_idle_ones_are_closed(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        configs = {"connections.max.idle.ms": "10000", "sparklog.socket.timeout.ms": "500"}
        async with serving(echo, configs, clock=clock) as served:
            idle, _ = await served.connect()
            slow, slow_writer = await served.connect()
            busy, busy_writer = await served.connect()
            slow_writer.write(request(1)[:6])
            await until(lambda: len(served.network.connections) == 3)
            await until(lambda: served.network.connections[2].reader.started_ms is not None)
            clock.advance_ms(501)
            assert await slow.read() == b""
            clock.advance_ms(9000)
            busy_writer.write(request(2))
            assert (await response(busy))[0] == 2
            clock.advance_ms(501)
            assert await idle.read() == b""
            busy_writer.write(request(3))
            assert (await response(busy))[0] == 3

    run(main)


def test_a_client_that_takes_nothing_is_closed(run: Run) -> None:
    async def main() -> None:
        clock = ManualClock()
        released = []

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            return Response(chunks=[bytes(30_000_000)], release=lambda: released.append(1))

        async with serving(handler, {"sparklog.socket.timeout.ms": "500"}, clock=clock) as served:
            sock = socket.create_connection(("127.0.0.1", served.port))
            sock.sendall(request(1))
            await until(lambda: len(served.network.connections) == 1)
            connection = served.network.connections[1]
            await until(lambda: connection.writer.waiting_since_ms is not None)
            clock.advance_ms(501)
            await until(lambda: not served.network.connections)
            sock.close()
        assert released == [1]

    run(main)


def test_a_pipelined_response_that_nobody_takes_ends_with_its_connection(run: Run) -> None:
    async def main() -> None:
        released = []

        async def handler(_request: Any, context: Any, _broker: Any) -> Response:
            number = context.correlation_id
            return Response(chunks=[bytes(30_000_000)], release=lambda: released.append(number))

        async with serving(handler, pipelined=True) as served:
            sock = socket.create_connection(("127.0.0.1", served.port))
            sock.sendall(request(1) + request(2))
            await until(lambda: len(served.network.connections) == 1)
            connection = served.network.connections[1]
            await until(lambda: connection.writer.waiting_since_ms is not None)
            connection.close("a test says so")
            await until(lambda: released == [1, 2])
            sock.close()

    run(main)


def test_a_thread_that_sends_a_file_is_waited_for(run: Run, tmp_path: Path) -> None:
    """Else it could send to whoever gets the descriptor next (frames.py)."""
    path = tmp_path / "file"
    path.write_bytes(bytes(100))

    async def main() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        entered, leave = threading.Event(), threading.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            return Response(chunks=[FileRegion(descriptor, 0, 100)])

        async with serving(handler, waits=True) as served:
            run_blocking = served.network.shared.run_blocking

            async def slow(function: Callable[..., Any], *args: Any) -> Any:
                def work() -> Any:
                    entered.set()
                    assert leave.wait(20)
                    return function(*args)

                return await run_blocking(work)

            served.network.shared.run_blocking = slow
            reader, writer = await served.connect()
            writer.write(request(1))
            await until(entered.is_set)
            served.network.connections[1].close("a test says so")
            await asyncio.sleep(0.01)
            assert 1 in served.network.connections  # its socket is still open
            leave.set()
            await until(lambda: not served.network.connections)
            assert len(await reader.read()) <= 112
        os.close(descriptor)

    run(main)


def test_connection_limits(run: Run) -> None:
    async def main() -> None:
        configs = {
            "max.connections": "3",
            "max.connections.per.ip": "1",
            "max.connections.per.ip.overrides": "127.0.0.1:2",
        }
        async with serving(echo, configs) as served:
            _, first_writer = await served.connect()
            await served.connect()
            third, _ = await served.connect()
            assert await third.read() == b""
            assert served.network.shared.metrics.connections_refused == {"max.connections.per.ip": 1}
            first_writer.close()
            await until(lambda: served.network.shared.quota.count == 1)
            again, again_writer = await served.connect()
            again_writer.write(request(1))
            assert (await response(again))[0] == 1

    run(main)


def test_beyond_max_connections_nobody_is_accepted_until_one_leaves(run: Run) -> None:
    async def main() -> None:
        async with serving(echo, {"max.connections": "2"}) as served:
            _, first_writer = await served.connect()
            await served.connect()
            third, third_writer = await served.connect()  # by the kernel
            third_writer.write(request(3))
            await until(lambda: served.network.shared.quota.count == 2)
            first_writer.close()
            assert (await response(third))[0] == 3

    run(main)


def test_stopping_answers_what_is_in_progress(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        begun = asyncio.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
            begun.set()
            await gate.wait()
            return Response(chunks=[b"x"])

        async with serving(handler) as served:
            reader, writer = await served.connect()
            idle, _ = await served.connect()
            writer.write(request(1))
            await begun.wait()
            stopping = asyncio.create_task(served.network.stop(10_000))
            assert await idle.read() == b""
            gate.set()
            assert (await response(reader))[0] == 1
            assert await reader.read() == b""
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await served.connect()

    run(main)


def test_stopping_ends_what_takes_too_long(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def handler(_request: Any, _context: Any, _broker: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        for pipelined in (False, True):
            begun.clear()
            async with serving(handler, pipelined=pipelined) as served:
                reader, writer = await served.connect()
                writer.write(request(1))
                await begun.wait()
                await served.network.stop(10)
                assert await reader.read() == b""

    run(main)
    assert "not done in time" in caplog.text


def test_a_large_frame_that_stalls_ends_soon(run: Run) -> None:
    """It holds memory that others wait for; a slow line may take its time, in proportion to what it holds."""

    async def main() -> None:
        clock = ManualClock()
        async with serving(echo, {"sparklog.socket.timeout.ms": "60000"}, clock=clock) as served:
            reader, writer = await served.connect()
            writer.write(struct.pack(">i", 10 << 20) + bytes(100_000))
            await until(lambda: bool(served.network.connections))
            (connection,) = served.network.connections.values()
            await until(lambda: connection.reader.capacity == 256 << 10)
            frames = connection.reader

            def too_slow() -> bool:
                return frames.is_too_slow(clock.monotonic_ms(), 60_000)

            assert not too_slow()
            writer.write(bytes(30_000))  # a twelfth of 256 KB is due in five of sixty seconds
            await until(lambda: frames._received == 130_000)
            clock.advance_ms(RATE_WINDOW_MS)  # from here on nobody else looks
            assert not too_slow()
            clock.advance_ms(RATE_WINDOW_MS - 1)
            assert not too_slow()
            clock.advance_ms(1)
            assert too_slow()
            clock.advance_ms(RATE_WINDOW_MS)
            assert await reader.read() == b""  # seen by whoever looks after connections

    run(main)


def test_a_large_answer_that_is_taken_at_a_trickle_ends_soon(run: Run) -> None:
    """It holds memory that others wait for; one that is not counted may be taken as slowly as one likes."""

    async def handler(_request: Any, context: Any, _broker: Any) -> Response:
        if context.correlation_id == 1:
            assert context.answer.fits(20 << 20)
            await context.answer.reserve()
        return Response(chunks=[bytes(20 << 20)])

    async def main() -> None:
        clock = ManualClock()
        async with serving(handler, {"sparklog.socket.timeout.ms": "60000"}, clock=clock) as served:
            network = served.network
            taking, patient = (socket.create_connection(("127.0.0.1", served.port)) for _ in range(2))
            taking.sendall(request(1))
            patient.sendall(request(2))
            await until(lambda: len(network.connections) == 2)
            writers = [one.writer for one in network.connections.values()]
            await until(lambda: all(one.waiting_since_ms is not None for one in writers))
            assert served.dispatcher.answers.used_bytes == 20 << 20
            counted = next(one for one in writers if one.counted_bytes)

            def too_slow() -> bool:
                return counted.is_too_slow(clock.monotonic_ms(), 60_000)

            assert not too_slow()
            before = counted._sent
            while counted._sent - before < 2 << 20:  # a twelfth is due in five of sixty seconds
                if select.select([taking], [], [], 0)[0]:
                    taking.recv(1 << 20)
                await asyncio.sleep(0)
            await until(lambda: counted.waiting_since_ms is not None)
            clock.advance_ms(RATE_WINDOW_MS)
            assert not too_slow()
            for _ in range(4):  # what had room in the kernel's buffers counts as taken
                taking.recv(1)  # it is not silent
                clock.advance_ms(RATE_WINDOW_MS)
                looks = network.looks
                await until(lambda: network.looks > looks + 1)  # noqa: B023 - it is done with before the next
            await until(lambda: len(network.connections) == 1)
            await until(lambda: served.dispatcher.answers.used_bytes == 0)
            taking.close()
            patient.close()

    run(main)
