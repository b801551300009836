"""Heartbeats, and whom to take for dead."""

from sparklog.clock import ManualClock
from sparklog.metadata import RegisteredBroker
from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import (
    Beat,
    Heartbeat,
    Observer,
    heartbeat_name,
    looks_until_dead,
    read_heartbeats,
)

INTERVAL_MS = 2_000


def store() -> MemoryStore:
    return MemoryStore("heartbeats", clock=ManualClock())


def brokers(*epochs: int, fenced: tuple[int, ...] = ()) -> dict[int, RegisteredBroker]:
    return {
        node: RegisteredBroker(
            node_id=node,
            broker_epoch=epoch,
            incarnation_id="I" * 22,
            is_fenced=node in fenced,
        )
        for node, epoch in enumerate(epochs, 1)
    }


class Watch:
    """An observer, and its clock."""

    def __init__(self, looks: int = 3) -> None:
        self.observer = Observer(interval_ms=INTERVAL_MS, looks=looks)
        self.now_ms = 0

    def look(
        self, observed: dict[int, RegisteredBroker], found: dict[int, Beat], after_ms: int = INTERVAL_MS
    ) -> list[int]:
        self.now_ms += after_ms
        return self.observer.look(observed, found, now_ms=self.now_ms)


def test_a_heartbeat_is_read_as_it_was_written() -> None:
    root = store()
    one, two = Heartbeat(root, 1, 17), Heartbeat(root, 2, 9)
    assert [one.beat(), one.beat(), two.beat()] == [Beat(17, 1), Beat(17, 2), Beat(9, 1)]
    assert read_heartbeats(root, [1, 2, 3]) == {1: Beat(17, 2), 2: Beat(9, 1)}
    assert root.read(heartbeat_name(1)) == b"17 2\n"


def test_what_is_no_heartbeat_says_nothing() -> None:
    for data in (b"", b"17", b"17 x\n", b"-1 2\n", b"17 2", b"1 " + b"9" * 19 + b"\n", b"1 2\n" * 30):
        root = store()
        root.put_hint(heartbeat_name(1), data)
        assert read_heartbeats(root, [1]) == {}


def test_another_registration_is_newer_whatever_it_has_counted() -> None:
    assert Beat(17, 900) < Beat(18, 1) < Beat(18, 2)


def test_so_many_looks_without_anything_newer() -> None:
    watch, observed = Watch(looks=3), brokers(1, 2)
    for counter in range(1, 5):
        assert watch.look(observed, {1: Beat(1, counter), 2: Beat(2, 1)}) == ([2] if counter == 4 else [])
    assert watch.look(observed, {1: Beat(1, 5), 2: Beat(2, 2)}) == []


def test_one_that_never_wrote_is_dead_as_well() -> None:
    watch, observed = Watch(looks=3), brokers(1)
    assert [watch.look(observed, {}) for _ in range(4)] == [[], [], [], [1]]


def test_time_without_looks_is_not_counted() -> None:
    watch, observed = Watch(looks=2), brokers(1)
    assert watch.look(observed, {1: Beat(1, 1)}) == []
    assert watch.look(observed, {1: Beat(1, 1)}, after_ms=100 * INTERVAL_MS) == []
    assert watch.look(observed, {1: Beat(1, 2)}) == []


def test_looks_are_an_interval_apart() -> None:
    watch, observed = Watch(looks=2), brokers(1)
    assert watch.look(observed, {1: Beat(1, 1)}) == []
    for _ in range(5):
        assert watch.look(observed, {1: Beat(1, 1)}, after_ms=INTERVAL_MS // 10) == []
    assert watch.look(observed, {1: Beat(1, 1)}) == []
    assert watch.look(observed, {1: Beat(1, 1)}) == [1]


def test_looks_that_were_answered_together_are_one() -> None:
    """The storage was away, and all that hung was answered before anybody could write."""
    observer, observed = Observer(interval_ms=INTERVAL_MS, looks=2), brokers(1)
    beat, end_ms = {1: Beat(1, 1)}, 10 * INTERVAL_MS
    assert observer.look(observed, beat, now_ms=0) == []
    for number in range(1, 5):
        answered = {1: end_ms + number}
        assert observer.look(observed, beat, now_ms=number * INTERVAL_MS, answered_ms=answered) == []
    assert observer.look(observed, beat, now_ms=end_ms + 4) == [], "it has had no time to write since"
    assert observer.look(observed, beat, now_ms=end_ms + 4 + INTERVAL_MS) == [1]


def test_a_look_counts_that_was_begun_after_the_answer_before() -> None:
    """However late answers come: what was read is in the order of looks, and an interval lies between."""
    observer, observed = Observer(interval_ms=INTERVAL_MS, looks=2), brokers(1)
    late_ms, beat = INTERVAL_MS + INTERVAL_MS // 2, {1: Beat(1, 1)}
    dead = []
    for number in range(5):
        began = number * INTERVAL_MS
        dead.append(observer.look(observed, beat, now_ms=began, answered_ms={1: began + late_ms}))
    assert dead == [[], [], [], [], [1]], "every second one"


def test_who_is_slow_to_be_read_delays_nobody_else() -> None:
    observer, observed = Observer(interval_ms=INTERVAL_MS, looks=2), brokers(1, 2)
    beats = {1: Beat(1, 1), 2: Beat(2, 1)}
    for number in range(3):
        answered = {1: number * INTERVAL_MS + 2 * INTERVAL_MS}
        dead = observer.look(observed, beats, now_ms=number * INTERVAL_MS, answered_ms=answered)
    assert dead == [2]


def test_an_older_sign_that_lands_late_is_none() -> None:
    watch, observed = Watch(looks=2), brokers(1)
    assert watch.look(observed, {1: Beat(1, 7)}) == []
    assert watch.look(observed, {1: Beat(1, 6)}) == []
    assert watch.look(observed, {1: Beat(1, 7)}) == [1]


def test_a_new_registration_begins_with_nothing_against_it() -> None:
    watch = Watch(looks=2)
    watch.look(brokers(1), {1: Beat(1, 40)})
    watch.look(brokers(1), {1: Beat(1, 40)})
    assert watch.look(brokers(5), {1: Beat(1, 40)}) == []  # the object is still the old one
    assert watch.look(brokers(5), {1: Beat(5, 1)}) == []
    assert watch.look(brokers(5), {1: Beat(5, 1)}) == []
    assert watch.look(brokers(5), {1: Beat(5, 1)}) == [1]


def test_who_is_fenced_is_not_observed() -> None:
    watch = Watch(looks=2)
    for _ in range(5):
        assert watch.look(brokers(1, 2, fenced=(1, 2)), {}) == []
    assert watch.look(brokers(1, 7, fenced=(1,)), {2: Beat(7, 1)}) == []


def test_how_many_looks_a_session_is() -> None:
    assert looks_until_dead(9_000, 2_000) == 4
    assert looks_until_dead(1_000, 2_000) == 2
