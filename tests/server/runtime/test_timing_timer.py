"""The timer on the event loop."""

import asyncio
from typing import Any

import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog_server.runtime import timing as timer_module
from sparklog_server.runtime.timing import Timer


def test_callbacks_come_in_order_and_cancelled_ones_do_not() -> None:
    async def scenario() -> list[str]:
        timer = Timer(SystemClock())
        called: list[str] = []
        done = asyncio.Event()
        timer.schedule(300, done.set)
        timer.schedule(200, lambda: called.append("late"))
        timer.schedule(150, lambda: called.append("cancelled")).cancel()
        timer.schedule(100, lambda: called.append("early"))
        timer.schedule(0, lambda: called.append("now"))
        await done.wait()
        return called

    assert asyncio.run(scenario()) == ["now", "early", "late"]


def test_one_asyncio_timer_serves_all() -> None:
    async def scenario() -> int:
        timer = Timer(ManualClock())
        for delay in range(1000):
            timer.schedule(10_000 + delay, lambda: None)
        loop: Any = asyncio.get_running_loop()
        return sum(not handle.cancelled() for handle in loop._scheduled)

    assert asyncio.run(scenario()) == 1


def test_a_callback_that_raises_harms_no_other() -> None:
    reported: list[dict[str, Any]] = []

    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        timer = Timer(SystemClock())
        done = asyncio.Event()
        timer.schedule(1, lambda: 1 / 0)  # type: ignore[arg-type]
        timer.schedule(1, done.set)
        await done.wait()
        return True

    assert asyncio.run(scenario())
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


def test_many_expiries_are_handed_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_module, "CALLS_PER_TURN", 10)

    async def scenario() -> tuple[int, int]:
        clock = ManualClock()
        timer = Timer(clock)
        called: list[int] = []
        handles = [timer.schedule(5, lambda: called.append(1)) for _ in range(35)]
        clock.advance_ms(10)
        timer.run_due()
        first = len(called)
        for handle in handles[-5:]:  # they are due, but not yet called
            handle.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        return first, len(called)

    assert asyncio.run(scenario()) == (10, 30)


def test_what_callbacks_take_puts_nothing_off() -> None:
    """500 of them take a second, maybe: the next deadline was waited for as if they had taken no time."""

    async def scenario() -> tuple[list[int], list[int]]:
        clock = ManualClock()
        timer = Timer(clock)
        called: list[int] = []
        timer.schedule(5, lambda: clock.advance_ms(600_000))
        timer.schedule(300_000, lambda: called.append(1))
        clock.advance_ms(5)
        timer.run_due()
        first = called.copy()
        for _ in range(3):
            await asyncio.sleep(0)
        return first, called

    assert asyncio.run(scenario()) == ([], [1])


def test_after_stop_nothing_is_called() -> None:
    async def scenario() -> list[int]:
        timer = Timer(SystemClock())
        called: list[int] = []
        timer.schedule(1, lambda: called.append(1))
        timer.stop()
        timer.schedule(1, lambda: called.append(2))
        await asyncio.sleep(0.02)
        return called

    assert asyncio.run(scenario()) == []


def test_callbacks_may_schedule() -> None:
    async def scenario() -> int:
        timer = Timer(SystemClock())
        done = asyncio.Event()
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            if count == 5:
                done.set()
            else:
                timer.schedule(1, again)

        timer.schedule(0, again)
        await done.wait()
        return count

    assert asyncio.run(scenario()) == 5


def test_a_callback_that_stops_it_is_the_last_one() -> None:
    async def scenario() -> list[str]:
        clock = ManualClock()
        timer = Timer(clock)
        called: list[str] = []
        timer.schedule(5, timer.stop)
        timer.schedule(5, lambda: called.append("after stop"))
        clock.advance_ms(10)
        timer.run_due()
        await asyncio.sleep(0)
        return called

    assert asyncio.run(scenario()) == []
