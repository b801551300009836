"""What an image remembers of requests that were applied."""

import msgspec
import pytest

from sparklog.metadata import (
    RequestApplied,
    SetConfigs,
    new_id,
)
from sparklog.metadata.combining import MAX_TIMED_OUT, QUEUE_TIMEOUT_MS
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.image import empty_image
from sparklog.metadata.requests import RequestBox
from sparklog.storage import MemoryStore
from tests.metadata.combining_publishers import (
    REMOTE,
    Publisher,
    SleepyClock,
    a_request,
    applied,
    leave_request,
)

NONCE = "N" * 22


@pytest.fixture
def clock() -> SleepyClock:
    return SleepyClock()


@pytest.fixture
def store(clock: SleepyClock) -> MemoryStore:
    return MemoryStore("combining", clock=clock, traits=REMOTE)


def test_no_image_takes_a_sequence_twice() -> None:
    image = applied(empty_image("C" * 22), RequestApplied(publisher="P" * 22, sequence=3, nonce=NONCE))
    assert image.has_settled("P" * 22, 3)
    assert image.has_settled("P" * 22, 2)
    assert not image.has_settled("P" * 22, 4)
    for sequence in (3, 2):
        with pytest.raises(ActionRefusedError, match="expected one above 3"):
            applied(image, RequestApplied(publisher="P" * 22, sequence=sequence, nonce="M" * 22))


@pytest.mark.parametrize(
    ("action", "found"),
    [
        (RequestApplied(publisher="P", sequence=0, nonce=NONCE), "malformed"),
        (RequestApplied(publisher="P" * 22, sequence=-1, nonce=NONCE), "sequence -1"),
        (RequestApplied(publisher="P" * 22, sequence=0, actions=-1, nonce=NONCE), "-1 actions"),
        (
            RequestApplied(publisher="P" * 22, sequence=0, actions=1, nonce=NONCE),
            "1 actions of a request, found 0",
        ),
        (RequestApplied(publisher="P" * 22, sequence=0, nonce="N"), "nonce 'N' is malformed"),
        (RequestApplied(publisher="P" * 22, sequence=0, nonce=NONCE, base=-2), "base -2"),
    ],
)
def test_illegal_markers(action: RequestApplied, found: str) -> None:
    with pytest.raises(ActionRefusedError, match=found):
        applied(empty_image("C" * 22), action)


def test_snapshots_keep_what_is_settled_in_its_order(store: MemoryStore, clock: SleepyClock) -> None:
    publishers = [Publisher(store, clock) for _ in range(3)]
    for number in (0, 1, 2, 0):
        publishers[number].publish(f"key-{number}")
    log = publishers[0].log
    commit = log.write_snapshot()
    image = read_snapshot(store, commit, cluster_id=log.cluster_id)
    assert image == log.image
    assert list(image.publishers) == list(log.image.publishers)
    assert list(image.publishers)[-1] == log.combiner.publisher


def test_a_dead_request_holds_nobody_up_though_the_log_keeps_moving(
    store: MemoryStore, clock: SleepyClock
) -> None:
    """A publisher alone, which meets no queue, commits all the time; that is no sign of life of others."""
    one, busy = Publisher(store, clock), Publisher(store, clock)
    for number in range(3):
        leave_request(store, one.log, clock, f"dead {number}", None, "never")
    count = 0

    def publish() -> None:
        nonlocal count
        count += 1
        busy.log.publish(lambda image: [SetConfigs(configs={f"busy {count}": "x"})])
        clock.meanwhile.append(publish)

    clock.meanwhile.append(publish)
    start_ms = clock.monotonic_ms()
    one.publish("a", check=False)
    assert clock.monotonic_ms() - start_ms < 7 * QUEUE_TIMEOUT_MS
    assert "a" in one.log.image.configs


def test_what_a_publisher_gave_up_is_not_waited_for(store: MemoryStore, clock: SleepyClock) -> None:
    one = Publisher(store, clock)
    box = RequestBox(store, clock, one.log.cluster_id)
    publisher = new_id()
    for sequence in range(20):
        payload = msgspec.json.encode((f"old {sequence}", None, "never"))
        posted = a_request(one.log, publisher, sequence)
        box.post(posted, box.encode(posted, payload))
        clock.advance_ms(1)
    start_ms = clock.monotonic_ms()
    one.publish("a", check=False)
    assert clock.monotonic_ms() - start_ms < 3 * QUEUE_TIMEOUT_MS


@pytest.mark.parametrize("damage", [b"", b'"version":1'])
def test_many_that_died_together_hold_nobody_up_for_long(
    store: MemoryStore, clock: SleepyClock, damage: bytes
) -> None:
    """A job of hundreds of publishers was killed; or they are of a version that we cannot read."""
    one = Publisher(store, clock)
    for number in range(100):
        leave_request(store, one.log, clock, f"dead {number}", None, "never")
    for file in store.list(REQUESTS) if damage else ():
        store.put_hint(file.name, store.read(file.name).replace(damage, b'"version":99'))
    start_ms = clock.monotonic_ms()
    one.publish("a", check=False)
    # Each is waited for twice as long at most, by chance, and for once more where the store seems slow.
    assert clock.monotonic_ms() - start_ms < (3 * MAX_TIMED_OUT + 1) * QUEUE_TIMEOUT_MS
    applied = {"a"} if damage else {"a", *(f"dead {number}" for number in range(100))}
    assert set(one.log.image.configs) == applied
    start_ms = clock.monotonic_ms()
    one.publish("b", check=False)
    assert clock.monotonic_ms() - start_ms < QUEUE_TIMEOUT_MS
