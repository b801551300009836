"""The event loop of a simulated broker, beside what asyncio's does."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.event_loop import EventLoop
from tests.simulation.world import HOUR_US, SimProcess, World


def run(main: Callable[[EventLoop, SimProcess], None]) -> list[str]:
    """In a process of a world; what nobody has handled."""
    world, failures = World(1), list[str]()
    world.calm = True

    def live(process: SimProcess) -> None:
        loop = EventLoop(process, failures.append)
        try:
            main(loop, process)
        finally:
            loop.end()

    process = world.spawn("p", live)
    world.run(lambda: process.dead, deadline_us=2 * HOUR_US)
    if process.failure is not None:
        raise process.failure
    return failures


def spawn(loop: EventLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.call_soon(loop.create_task, work)


def test_it_sleeps_by_the_clock_of_its_process() -> None:
    seen: list[int] = []

    def main(loop: EventLoop, process: SimProcess) -> None:
        async def sleep() -> None:
            await asyncio.sleep(3_600)
            seen.append(process.monotonic_ms())

        spawn(loop, sleep())
        loop.turn()
        process.sleep_ms(3_599_000)
        loop.turn()
        assert not seen
        process.sleep_ms(1_000)
        loop.turn()

    assert run(main) == []
    assert seen == [3_600_000]


def test_what_would_wait_in_a_thread_is_done_between_turns() -> None:
    told: list[object] = []

    def main(loop: EventLoop, process: SimProcess) -> None:
        def work(number: int) -> int:
            process.sleep_ms(5)  # within a turn nobody else would go on
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            if number:
                raise ValueError(number)
            return process.monotonic_ms()

        async def ask(number: int) -> None:
            try:
                told.append(await asyncio.get_running_loop().run_in_executor(None, work, number))
            except ValueError as error:
                told.append(str(error))

        spawn(loop, ask(0))
        spawn(loop, ask(1))
        loop.turn()
        assert not told
        assert loop.do_a_job()
        assert told == [5]
        assert loop.do_a_job()
        assert told == [5, "1"]
        assert not loop.do_a_job()

    assert run(main) == []


def test_two_brokers_take_turns_in_one_thread() -> None:
    order: list[str] = []

    def main(loop: EventLoop, process: SimProcess) -> None:
        other = EventLoop(process, order.append)

        async def say(name: str) -> None:
            for number in range(2):
                order.append(f"{name}{number}")
                await asyncio.sleep(0.001)

        spawn(loop, say("a"))
        spawn(other, say("b"))
        for _ in range(3):
            for one in (loop, other):
                one.turn()
            process.sleep_ms(1)
        other.end()

    assert run(main) == []
    assert order == ["a0", "b0", "a1", "b1"]


def test_what_nobody_handles_is_told_and_harms_nothing_else() -> None:
    done: list[int] = []

    def main(loop: EventLoop, process: SimProcess) -> None:
        def fail() -> None:
            raise ValueError("x")

        loop.call_soon(fail)
        loop.call_soon(done.append, 1)
        loop.call_soon(done.append, 2).cancel()
        loop.turn()

    assert run(main) == ["a callback failed: ValueError('x')"]
    assert done == [1]


def test_sets_of_tasks_have_the_order_in_which_they_were_made() -> None:
    def main(loop: EventLoop, process: SimProcess) -> None:
        futures = [loop.create_future() for _ in range(50)]
        assert [hash(one) for one in futures] == sorted(hash(one) for one in futures)

        async def wait() -> None:
            await asyncio.sleep(1)

        tasks = [loop.create_task(wait()) for _ in range(50)]
        assert [hash(one) for one in tasks] == sorted(hash(one) for one in tasks)

    assert run(main) == []


def test_at_the_end_all_is_cancelled_and_nothing_begins() -> None:
    ended: list[str] = []

    def main(loop: EventLoop, process: SimProcess) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(1)
            finally:
                ended.append("cancelled")

        spawn(loop, wait())
        loop.turn()
        loop.end()
        loop.call_soon(ended.append, "begun")
        loop.turn()

    assert run(main) == []
    assert ended == ["cancelled"]
