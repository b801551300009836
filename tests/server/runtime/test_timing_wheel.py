"""The timing wheel: what expires, when, in which order; and that nothing depends on how much waits."""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog_server.runtime.timing import MAX_TIME_MS, TimerEntry, TimingWheel


def nothing() -> None:
    pass


def add(wheel: TimingWheel, deadline_ms: int) -> TimerEntry:
    entry = TimerEntry(deadline_ms, nothing)
    wheel.add(entry)
    return entry


def deadlines(entries: list[TimerEntry]) -> list[int]:
    return [entry.deadline_ms for entry in entries]


def test_entries_expire_at_their_deadline_and_not_before() -> None:
    wheel = TimingWheel(1000)
    add(wheel, 1005)
    assert wheel.advance(1004) == []
    assert deadlines(wheel.advance(1005)) == [1005]
    assert wheel.advance(10_000) == []


@pytest.mark.parametrize("delay", [1, 63, 64, 65, 4095, 4096, 262_144, 2**30, 2**36 + 17])
def test_every_wheel_is_exact(delay: int) -> None:
    start = 987_654_321
    wheel = TimingWheel(start)
    add(wheel, start + delay)
    assert wheel.advance(start + delay - 1) == []
    assert deadlines(wheel.advance(start + delay)) == [start + delay]


def test_entries_come_by_deadline_and_then_in_the_order_of_adding() -> None:
    wheel = TimingWheel()
    far = add(wheel, 500)
    wheel.advance(480)
    near = add(wheel, 500)
    before = add(wheel, 499)
    assert wheel.advance(1000) == [before, far, near]


def test_a_deadline_that_has_passed_comes_with_the_next_advance() -> None:
    wheel = TimingWheel(100)
    entry = add(wheel, 50)
    assert wheel.next_ms() == 100
    assert wheel.advance(100) == [entry]


def test_deadlines_beyond_the_last_wheel_count_as_its_end() -> None:
    wheel = TimingWheel()
    entry = add(wheel, 2**63)
    assert wheel.advance(MAX_TIME_MS - 1) == []
    assert wheel.advance(MAX_TIME_MS) == [entry]


def test_a_cancelled_entry_never_comes_and_its_bucket_is_empty_again() -> None:
    wheel = TimingWheel()
    entry = add(wheel, 70)
    assert entry.cancel()
    assert not entry.cancel()
    assert wheel.next_ms() is None
    assert wheel.advance(1000) == []


def test_next_ms_never_lies_behind_a_deadline() -> None:
    wheel = TimingWheel(5)
    add(wheel, 10_000)
    found = wheel.next_ms()
    assert found is not None
    assert 5 < found <= 10_000


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.one_of(st.integers(0, 200), st.integers(0, 2**40))),
        st.tuples(st.just("cancel"), st.integers(0, 100)),
        st.tuples(st.just("advance"), st.one_of(st.integers(0, 300), st.integers(0, 2**38))),
        st.tuples(st.just("advance to next"), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(start=st.integers(0, 2**40), steps=steps)
def test_the_wheel_does_what_a_sorted_list_does(start: int, steps: list[tuple[str, int]]) -> None:
    wheel = TimingWheel(start)
    now = start
    model: list[tuple[int, int, TimerEntry]] = []
    for number, (step, value) in enumerate(steps):
        if step == "add":
            model.append((max(now + value, 0), number, add(wheel, now + value)))
        elif step == "cancel" and model:
            _, _, entry = model.pop(value % len(model))
            assert entry.cancel()
        elif step.startswith("advance"):
            next_ms = wheel.next_ms()
            assert (next_ms is None) == (not model)
            now = (next_ms if next_ms is not None else now) if step == "advance to next" else now + value
            due = sorted(one for one in model if one[0] <= now)
            model = [one for one in model if one[0] > now]
            assert wheel.advance(now) == [entry for _, _, entry in due]


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


@pytest.mark.slow
def test_costs_are_linear_in_what_is_added() -> None:
    """Ten times the entries must not cost much more than ten times the time."""
    random_delays = random.Random(1)

    def add_and_cancel(count: int) -> float:
        wheel = TimingWheel()
        delays = [random_delays.randrange(1, 60_000) for _ in range(count)]
        entries: list[TimerEntry] = []
        gc.disable()
        try:
            spent = seconds(lambda: entries.extend(add(wheel, delay) for delay in delays))
            half = entries[::2]
            spent += seconds(lambda: [entry.cancel() for entry in half])
            spent += seconds(lambda: wheel.advance(60_000))
        finally:
            gc.enable()
        assert wheel.next_ms() is None
        return spent

    few = min(add_and_cancel(10_000) for _ in range(3))
    many = min(add_and_cancel(100_000) for _ in range(2))
    assert many < 40 * few


@pytest.mark.slow
def test_nothing_is_left_of_entries_that_are_gone() -> None:
    wheel = TimingWheel()
    for entry in [add(wheel, deadline) for deadline in range(1, 1000)]:
        entry.cancel()
    wheel.advance(1000)
    del entry
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        entries = [add(wheel, 1000 + delay % 50_000) for delay in range(100_000)]
        held = tracemalloc.get_traced_memory()[0] - before
        for entry in entries[:50_000]:
            entry.cancel()
        del entries, entry
        gc.disable()  # by reference counts alone: no cycle may keep them
        wheel.advance(60_000)
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        gc.enable()
        tracemalloc.stop()
    assert held < 30_000_000
    assert left < 50_000
