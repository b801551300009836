"""The purgatory: operations complete once, and cost nothing afterwards."""

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog_server.runtime.timing import DelayedOperation, Purgatory, TimerEntry, TimingWheel, WatchKey


class WheelSchedule:
    """A timer without a loop."""

    def __init__(self) -> None:
        self.wheel = TimingWheel()

    def __call__(self, delay_ms: int, callback: Callable[[], None], /) -> TimerEntry:
        entry = TimerEntry(self.wheel.now_ms + delay_ms, callback)
        self.wheel.add(entry)
        return entry

    def advance_ms(self, duration_ms: int) -> None:
        for entry in self.wheel.advance(self.wheel.now_ms + duration_ms):
            callback, entry.callback = entry.callback, None
            if callback is not None:
                callback()


class Operation(DelayedOperation):
    __slots__ = ("checks", "ended", "ready")

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        self.checks: list[WatchKey] = []
        self.ended: list[bool] = []

    def try_complete(self, key: WatchKey) -> bool:
        self.checks.append(key)
        return self.ready

    def on_complete(self, *, expired: bool) -> None:
        self.ended.append(expired)


class Light(DelayedOperation):
    """Like a real one: no memory of its own."""

    __slots__ = ()

    def try_complete(self, key: WatchKey) -> bool:
        return True

    def on_complete(self, *, expired: bool) -> None:
        pass


@pytest.fixture
def schedule() -> WheelSchedule:
    return WheelSchedule()


@pytest.fixture
def purgatory(schedule: WheelSchedule) -> Purgatory:
    return Purgatory(schedule)


A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def test_a_change_completes_what_is_ready_and_only_once(
    purgatory: Purgatory, schedule: WheelSchedule
) -> None:
    ready, waiting = Operation(), Operation()
    ready.ready = True
    purgatory.watch(ready, [A0, B0, A0], 100)
    purgatory.watch(waiting, [A0], 100)
    assert purgatory.check("a", 1) == 0
    assert purgatory.check("a", 0) == 1
    assert purgatory.check("b", 0) == 0
    schedule.advance_ms(1000)
    assert ready.ended == [False]
    assert waiting.ended == [True]
    assert waiting.checks == [A0]
    assert len(purgatory) == 0
    assert purgatory.topics() == []


def test_topics_and_partitions_that_are_watched(purgatory: Purgatory) -> None:
    operation = Operation()
    purgatory.watch(operation, [A0, A1, B0], 10)
    assert purgatory.topics() == ["a", "b"]
    assert purgatory.partitions("a") == [0, 1]
    assert purgatory.partitions("c") == []
    operation.cancel()
    operation.cancel()
    assert purgatory.topics() == []
    assert operation.ended == []


def test_an_operation_that_ends_another_while_it_completes(purgatory: Purgatory) -> None:
    second = Operation()
    second.ready = True

    class First(Operation):
        __slots__ = ()

        def on_complete(self, *, expired: bool) -> None:
            second.cancel()

    first = First()
    first.ready = True
    purgatory.watch(first, [A0], 10)
    purgatory.watch(second, [A0], 10)
    assert purgatory.check("a", 0) == 1
    assert second.checks == []
    assert len(purgatory) == 0


def test_an_operation_without_keys_ends_by_its_deadline(
    purgatory: Purgatory, schedule: WheelSchedule
) -> None:
    operation = Operation()
    purgatory.watch(operation, [], 5)
    schedule.advance_ms(5)
    assert operation.ended == [True]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("watch"), st.integers(0, 15), st.integers(0, 50)),
        st.tuples(st.just("ready"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("check"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("advance"), st.integers(0, 30), st.just(0)),
    ),
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(actions=actions)
def test_the_purgatory_does_what_a_list_does(actions: list[tuple[str, int, int]]) -> None:
    schedule = WheelSchedule()
    purgatory = Purgatory(schedule)
    operations: list[tuple[Operation, list[WatchKey], int]] = []
    expected: dict[int, list[bool]] = {}
    now = 0
    for action, value, delay in actions:
        alive = [index for index in range(len(operations)) if index not in expected]
        if action == "watch":
            operation = Operation()
            keys = [("t", bit) for bit in range(4) if value >> bit & 1]
            purgatory.watch(operation, keys, delay)
            operations.append((operation, keys, now + delay))
        elif action == "ready" and operations:
            operations[value % len(operations)][0].ready = True
        elif action == "check":
            hit = [i for i in alive if ("t", value) in operations[i][1] and operations[i][0].ready]
            assert purgatory.check("t", value) == len(hit)
            expected.update((index, [False]) for index in hit)
        elif action == "cancel" and operations:
            index = value % len(operations)
            operations[index][0].cancel()
            expected.setdefault(index, [])
        elif action == "advance":
            now += value
            schedule.advance_ms(value)
            expected.update((index, [True]) for index in alive if operations[index][2] <= now)
    for index, (operation, _, _) in enumerate(operations):
        assert operation.ended == expected.get(index, [])
    assert len(purgatory) == len(operations) - len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("keys_of", [lambda n: [A0], lambda n: [("t", n)], lambda n: [A0, ("t", n % 100)]])
def test_memory_goes_back_when_all_have_completed(
    keys_of: Callable[[int], list[WatchKey]],
) -> None:
    schedule = WheelSchedule()
    purgatory = Purgatory(schedule)
    count = 20_000
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            purgatory.watch(Light(), keys_of(number), 1000 + number % 60_000)
        held = tracemalloc.get_traced_memory()[0] - before
        gc.disable()  # by reference counts alone
        schedule.advance_ms(1)
        for topic in purgatory.topics():
            for partition in purgatory.partitions(topic):
                purgatory.check(topic, partition)
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        gc.enable()
        tracemalloc.stop()
    assert len(purgatory) == 0
    assert schedule.wheel.next_ms() is None
    assert held < 1000 * count
    # The interpreter keeps some freed tuples for itself. What was left of each would have 16 bytes at least.
    assert left < 300_000 < 16 * count


@pytest.mark.slow
def test_a_hot_key_stays_small_while_requests_come_and_go() -> None:
    """Each request also waits for a busy partition that never answers it: no purge is needed."""
    purgatory = Purgatory(WheelSchedule())
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20_000):
            purgatory.watch(Light(), [A0, ("t", number % 7)], 60_000)
            purgatory.check("t", number % 7)
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert purgatory.partitions("a") == []
    assert left < 300_000  # the interpreter keeps some freed tuples for itself


def test_costs_are_linear() -> None:
    def watch_and_complete(count: int) -> float:
        purgatory = Purgatory(WheelSchedule())
        gc.disable()
        start = time.thread_time()
        try:
            for number in range(count):
                purgatory.watch(Light(), [A0, ("t", number % 100)], 500)
            assert purgatory.check("a", 0) == count
            return time.thread_time() - start
        finally:
            gc.enable()

    few = min(watch_and_complete(5_000) for _ in range(3))
    assert watch_and_complete(100_000) < 80 * few
