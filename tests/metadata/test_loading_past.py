"""The image as it was at some time, by the dates of the log's files: it spares what readers may hold."""

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog.metadata import CreateTopic, Image, MetadataLog, MetadataSettings, new_id
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.loading import (
    load_image_at,
    load_past,
    newest_commit_before,
    oldest_commit,
    read_past_commits,
)
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


# --- by number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshots", [frozenset[int](), frozenset({3}), frozenset({3, 7}), frozenset({11})])
def test_each_commit_that_is_kept_has_its_image(snapshots: frozenset[int]) -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock, snapshots)
    for image in images:
        found = load_image_at(store, images[-1], image.commit)
        assert (found.commit, found.commit_uuid, found.topics) == (
            image.commit,
            image.commit_uuid,
            image.topics,
        )


@pytest.mark.parametrize("commit", [-1, COMMITS])
def test_a_commit_that_is_not_there_yet_is_refused(commit: int) -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock)
    match = rf"COMMIT_MISSING\] .*found commits up to {COMMITS - 1}, expected commit {commit}"
    with pytest.raises(InvalidRequestError, match=match):
        load_image_at(store, images[-1], commit)
    with pytest.raises(InvalidRequestError, match=match):
        list(read_past_commits(store, images[-1], min(commit, 0), max(commit, 0)))


def test_of_a_cleaned_log_what_is_gone_is_said_to_be() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock, frozenset({6, 9}))
    MetadataLog.open(store, clock).clean(grace_ms=0)
    for commit in range(1, 6):
        with pytest.raises(InvalidRequestError, match=r"COMMIT_MISSING.*from commit 6 on can be shown"):
            load_image_at(store, images[-1], commit)
        with pytest.raises(InvalidRequestError, match=r"COMMIT_MISSING.*commit 6 is the oldest that is left"):
            list(read_past_commits(store, images[-1], commit, 8))
    assert load_image_at(store, images[-1], 0).topics == images[0].topics
    assert load_image_at(store, images[-1], 6).topics == images[6].topics
    assert oldest_commit(store, images[-1]) == 6
    with pytest.raises(InvalidRequestError, match=r"COMMIT_MISSING.*commit 6 is the oldest"):
        newest_commit_before(store, images[-1], began_ms + 2_500)
    assert newest_commit_before(store, images[-1], began_ms + 7_500) == 7


def test_commits_that_no_snapshot_leads_to_are_read_but_have_no_image() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock, frozenset({6}))
    for commit in range(1, 4):
        store.delete(commit_name(commit))
    assert [header.commit for header, _ in read_past_commits(store, images[-1], 4, 7)] == [4, 5, 6, 7]
    with pytest.raises(InvalidRequestError, match="from commit 6 on"):
        load_image_at(store, images[-1], 5)
    with pytest.raises(InvalidRequestError, match="commit 6 is the oldest"):
        newest_commit_before(store, images[-1], began_ms + 5_500)


def test_a_commit_that_goes_while_it_is_looked_for_is_gone() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock, frozenset({3}))
    store.delete(commit_name(5))
    with pytest.raises(InvalidRequestError, match="commit 6 has been cleaned"):
        load_image_at(store, images[-1], 6)
    assert load_image_at(store, images[-1], 4).topics == images[4].topics


def test_the_newest_commit_of_before_a_time() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    began_ms = clock.now_ms()
    images = written(store, clock)
    assert [newest_commit_before(store, images[-1], began_ms + 1_000 * n) for n in range(COMMITS)] == list(
        range(COMMITS)
    )
    with pytest.raises(InvalidRequestError, match="COMMIT_MISSING"):
        newest_commit_before(store, images[-1], began_ms - 1)


def test_commits_are_read_with_their_actions() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock)
    found = list(read_past_commits(store, images[-1], 2, 4))
    assert [header.commit for header, _ in found] == [2, 3, 4]
    assert [(type(action), action.name) for _, (action,) in found if isinstance(action, CreateTopic)] == [
        (CreateTopic, f"t{number}") for number in (2, 3, 4)
    ]


def test_a_damaged_commit_on_the_way_is_an_error_and_a_damaged_snapshot_is_not() -> None:
    clock = ManualClock()
    store = MemoryStore("past", clock=clock)
    images = written(store, clock, frozenset({3, 7}))
    for file in store.list("__cluster_metadata", recursive=True):
        if ".snapshot/" in file.name and "00007." in file.name:
            store.delete(file.name)
            store.put_if_absent(file.name, b"damaged")
    assert load_image_at(store, images[-1], 8).topics == images[8].topics
    store.delete(commit_name(5))
    store.put_if_absent(commit_name(5), b"damaged")
    with pytest.raises(CorruptLogError):
        load_image_at(store, images[-1], 8)
    assert load_image_at(store, images[-1], 4).topics == images[4].topics
