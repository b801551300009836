"""The image as it was at some time, by the dates of the log's files: it spares what readers may hold."""

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import CreateTopic, Image, MetadataLog, MetadataSettings, new_id
from sparklog.metadata.past import load_past
from sparklog.storage import MemoryStore

COMMITS = 12


def written(store: MemoryStore, clock: ManualClock, snapshots: frozenset[int] = frozenset()) -> list[Image]:
    """Commit n is of second n; the images after each."""
    log = MetadataLog.open(store, clock, create=True, settings=MetadataSettings(snapshot_bytes=1 << 40))
    images = []
    for number in range(COMMITS):
        action = CreateTopic(topic_id=new_id(), name=f"t{number}", partitions=1)
        log.publish(lambda _, action=action: [action])  # type: ignore[misc]
        images.append(log.image)
        if number in snapshots:
            log.write_snapshot()
        clock.advance_ms(1_000)
    return images


@pytest.mark.parametrize("snapshots", [frozenset[int](), frozenset({3}), frozenset({3, 7}), frozenset({11})])
def test_it_is_that_of_the_newest_commit_of_before(snapshots: frozenset[int]) -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock, snapshots)
    for number in range(COMMITS):
        for ms in (0, 999):
            found = load_past(store, images[-1], began_ms + 1_000 * number + ms)
            assert found is not None
            assert (found.commit, found.topics) == (number, images[number].topics)


def test_nothing_newer_is_looked_at_than_what_is_known() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock, frozenset({5, 9}))
    found = load_past(store, images[6], clock.now_ms())
    assert found is not None
    assert found.commit == 6


def test_before_all_there_is_nothing_to_spare() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock)
    assert load_past(store, images[-1], began_ms - 1) is None


def test_of_a_cleaned_log_it_is_the_oldest_that_is_left() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock, frozenset({6, 9}))
    log = MetadataLog.open(store, clock)
    assert log.clean(grace_ms=0) > 0
    found = load_past(store, images[-1], began_ms + 2_500)
    assert found is not None
    assert found.commit == 6
    assert found.topics == images[6].topics
