"""Connections that end: clients that leave, stall or take nothing, limits, and a broker that stops."""

import asyncio
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
from sparklog_server.network.frames import RATE_WINDOW_MS
from sparklog_server.protocol.wire import FileRegion, Response
from tests.server.network.conftest import METADATA_V0, request, response, serving, until
from tests.server.network.test_connection import Run, echo


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is ours; how often connections are looked at is a matter of real time."""
    monkeypatch.setattr("sparklog_server.network.server.LOOK_MS", 10)


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
                    assert leave.wait(60)
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


def test_an_ipv4_client_of_an_ipv6_listener_is_the_same_client(run: Run) -> None:
    """As ::ffff:127.0.0.1 it had no override, and a limit of its own beside that of other listeners."""

    async def main() -> None:
        configs = {"listeners": "PLAINTEXT://[::]:0", "max.connections.per.ip.overrides": "127.0.0.1:1"}
        async with serving(echo, configs) as served:
            port = served.network.listeners[0].address.port
            _, first_writer = await asyncio.open_connection("127.0.0.1", port)
            second, second_writer = await asyncio.open_connection("127.0.0.1", port)
            assert await second.read() == b""
            assert [one.peer_host for one in served.network.connections.values()] == ["127.0.0.1"]
            first_writer.close()
            second_writer.close()

    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    run(main)


def test_beyond_max_connections_nobody_is_accepted_until_one_leaves(run: Run) -> None:
    async def main() -> None:
        async with serving(echo, {"max.connections": "2"}) as served:
            _, first_writer = await served.connect()
            await served.connect()
            own, own_writer = await served.connect()  # the one more that is kept for this machine
            own_writer.write(request(2))
            assert (await response(own))[0] == 2
            fourth, fourth_writer = await served.connect()  # by the kernel
            fourth_writer.write(request(3))
            await until(lambda: served.network.shared.quota.count == 3)
            first_writer.close()
            assert (await response(fourth))[0] == 3

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
            await until(lambda: frames.received_bytes == 130_000)
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
        # As records are, which have room of their own: this does not count by itself.
        return Response(chunks=[bytes(20 << 20)], release=lambda: None)

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
            before = counted.sent_bytes
            while counted.sent_bytes - before < 2 << 20:  # a twelfth is due in five of sixty seconds
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
