"""Publishers that publish for each other: at most once, whole or not at all, whoever fails meanwhile."""

from collections import Counter

import pytest

from sparklog.metadata import (
    SetConfigs,
)
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.requests import MAX_AGE_MS, MAX_REQUEST_BYTES, SWEEP_AGE_MS, RequestBox
from sparklog.storage import MemoryStore
from tests.metadata.combining_publishers import (
    REMOTE,
    Publisher,
    SleepyClock,
    a_request,
    actions_of,
    leave_request,
    requests_left,
)

HALF_AN_HOUR_MS = 30 * 60_000
FREE = {"put_if_absent:done", "acquire_lock", "sync_directory", "sync_name", "write", "abort_puts"}


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("combining", clock=clock, traits=REMOTE)


def test_crowded_publisher_that_finds_nobody(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    one.publish("a")
    requests: Counter[str] = Counter()
    store.hook = lambda operation, name: requests.update([operation] if operation not in FREE else [])
    one.publish("b", check=False)
    store.hook = None
    assert requests == {"put_hint": 1, "list": 1, "open_read": 1, "put_if_absent": 1, "delete": 1}
    assert actions_of(one.log, 1) == ["request 1 of 1", "b"]
    assert requests_left(store) == 0


def test_lost_race_makes_a_publisher_post(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock, crowded=False), Publisher(store, clock, crowded=False)
    one.publish("a")
    other.publish("b")
    assert actions_of(one.log, 0) == ["a"]
    clock.advance_ms(HALF_AN_HOUR_MS)  # so long ago that it does not look first
    one.publish("c")
    assert actions_of(one.log, 2) == ["request 0 of 1", "c"]
    clock.advance_ms(60_000)
    one.publish("d")
    assert actions_of(one.log, 3) == ["d"]


def test_a_publisher_that_sees_a_queue_joins_it(store: MemoryStore, clock: SleepyClock) -> None:
    one, other = Publisher(store, clock, crowded=False), Publisher(store, clock)
    one.publish("a")
    other.publish("b")
    one.log.refresh()
    assert one.log.combiner.contention.is_contended
    one.publish("c")
    assert actions_of(one.log, 2) == ["request 0 of 1", "c"]


def test_first_of_the_queue_publishes_for_all(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    clock.advance_ms(1)
    requests = {"b": leave_request(store, one.log, clock, "b", None, "never")}

    def hook(operation: str, name: str) -> None:
        if operation == "put_hint":  # the others are younger
            store.hook = None
            requests["c"] = leave_request(store, one.log, clock, "c", None, "never")

    store.hook = hook
    assert one.publish("a") == 0
    assert actions_of(one.log, 0) == ["request 0 of 1", "a", "request 0 of 1", "b", "request 0 of 1", "c"]
    for publisher in requests.values():
        assert one.log.image.has_settled(publisher, 0)
    assert one.publish("d") == 1  # what is left of the others is not applied again
    assert actions_of(one.log, 1) == ["request 1 of 1", "d"]


def test_a_waiting_publisher_finds_itself_published(store: MemoryStore, clock: SleepyClock) -> None:
    poster, combiner = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")
    clock.meanwhile.append(lambda: combiner.publish("theirs"))
    assert poster.publish("ours") == 0
    assert sorted(poster.log.image.configs) == ["ahead", "ours", "theirs"]
    assert poster.log.image.commit == 0
    assert requests_left(store) == 1  # of the crashed one; the sweeper takes it
    assert poster.publish("again") == 1
    assert combiner.log.refresh() == poster.log.image


def test_a_publisher_that_waits_costs_one_request_to_post_and_one_to_delete(
    store: MemoryStore, clock: SleepyClock
) -> None:
    poster, combiner = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, poster.log, clock, "ahead", None, "never")
    requests: Counter[str] = Counter()
    hook = lambda operation, name: requests.update([operation] if operation not in FREE else [])  # noqa: E731

    def combine() -> None:
        store.hook = None
        combiner.publish("theirs")
        store.hook = hook

    clock.meanwhile.append(combine)
    poster.crowded = False
    poster.log.refresh()
    poster.log.combiner.contention.note()
    store.hook = hook
    poster.publish("ours", check=False)
    assert requests == {"put_hint": 1, "list": 1, "open_read": 1, "delete": 1}


def test_all_or_nothing_and_in_the_order_of_the_queue(store: MemoryStore, clock: SleepyClock) -> None:
    """The second request of one transaction is not applied; one that cannot apply is left alone."""
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "first", 7, "never")
    leave_request(store, one.log, clock, "second", 7, "never")
    refused = leave_request(store, one.log, clock, "third", None, "first")
    leave_request(store, one.log, clock, "fourth", 8, "never")
    one.publish("own")
    assert actions_of(one.log, 0) == [
        "request 0 of 1",
        "own",
        "request 0 of 2",
        "first",
        "app",
        "request 0 of 2",
        "fourth",
        "app",
    ]
    assert not one.log.image.has_settled(refused, 0)


@pytest.mark.parametrize("damage", ["truncated", "another root", "payload", "version", "huge", "gone"])
def test_unusable_requests_are_passed_over(store: MemoryStore, clock: SleepyClock, damage: str) -> None:
    one = Publisher(store, clock)
    publisher = leave_request(store, one.log, clock, "x", None, "never")
    (name,) = [file.name for file in store.list(REQUESTS)]
    data = store.read(name)
    if damage == "truncated":
        store.put_hint(name, data[:-9])
    elif damage == "another root":
        box = RequestBox(store, clock, "X" * 22)
        store.put_hint(name, box.encode(a_request(one.log, publisher), b'["x",null,"never"]'))
    elif damage == "payload":
        box = RequestBox(store, clock, one.log.cluster_id)
        store.put_hint(name, box.encode(a_request(one.log, publisher), b'{"a":1}'))
    elif damage == "version":
        store.put_hint(name, data.replace(b'"version":1', b'"version":2'))
    elif damage == "huge":
        store.put_hint(name, data + bytes(MAX_REQUEST_BYTES))
    else:
        store.hook = lambda operation, at: (
            store.delete(name) if operation == "open_read" and at == name else None
        )
    one.publish("a")
    store.hook = None
    assert sorted(one.log.image.configs) == ["a"]


def test_old_requests_are_not_applied(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    leave_request(store, one.log, clock, "old", None, "never")
    clock.advance_ms(MAX_AGE_MS)
    one.publish("a")
    assert sorted(one.log.image.configs) == ["a"]
    clock.advance_ms(SWEEP_AGE_MS)
    RequestBox(store, clock, one.log.cluster_id).sweep()
    assert requests_left(store) == 0


def test_too_large_a_request_is_published_alone(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    key = "k" * MAX_REQUEST_BYTES
    one.publish(key)
    assert actions_of(one.log, 0) == [key]


def test_others_publish_without_requests_as_well(store: MemoryStore, clock: SleepyClock) -> None:
    """A plan that nobody else can carry out races as ever, and those who wait see it."""
    one, other = Publisher(store, clock), Publisher(store, clock)
    leave_request(store, one.log, clock, "ahead", None, "never")
    clock.meanwhile.append(lambda: other.log.publish(lambda image: [SetConfigs(configs={"plain": "x"})]))
    assert one.publish("a") == 1
    assert sorted(one.log.image.configs) == ["a", "ahead", "plain"]
