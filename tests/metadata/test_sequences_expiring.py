"""Silent producers are forgotten by a commit, and what they repeat is never taken for new."""

import dataclasses

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog.metadata import (
    NEVER_MARKED_MS,
    NOTHING_FORGOTTEN,
    ExpireProducers,
    Forgotten,
    MetadataLog,
    SequenceCheck,
    check_unknown,
    last_batch,
    plan_advance_log_start,
    plan_append,
    plan_create_topic,
    plan_expire_producers,
)
from sparklog.metadata.documents.snapshot import read_snapshot, write_snapshot
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.storage import MemoryStore
from tests.metadata.applying import applied
from tests.metadata.producing import DAY_MS, NOW_MS, OLD_MS, Create, Draft, World
from tests.replacing import plan_replacing


@pytest.fixture
def world(log: MetadataLog, create: Create, draft: Draft) -> World:
    return World(log, create(log, "orders", 3), draft)


# --- when --------------------------------------------------------------------------------------------


def test_a_silent_producer_is_forgotten_after_one_to_two_expirations(world: World) -> None:
    world.produce(1)
    assert world.expire(NOW_MS)  # marked
    world.produce(2)
    assert not world.expire(NOW_MS + DAY_MS - 1)
    assert world.known() == [1, 2]
    assert world.expire(NOW_MS + DAY_MS)
    assert world.known() == [2]  # of after the mark
    world.produce(3)
    assert world.expire(NOW_MS + 2 * DAY_MS)
    assert world.known() == [3]


def test_who_has_written_in_between_is_not_forgotten(world: World) -> None:
    """Whatever its event times say, and whenever the plan was made."""
    world.produce(1)
    world.expire(NOW_MS)
    for day in range(1, 6):
        world.produce(1, day)
        world.produce(10 + day)
        assert world.expire(NOW_MS + day * DAY_MS)
        assert world.known() == [1, 10 + day]


def test_nothing_is_due_without_producers(world: World, draft: Draft) -> None:
    world.log.publish(lambda image: [plan_append(image, [draft(world.topic)])])
    assert not world.expire(NOW_MS)
    assert world.log.image.producers_marked_ms == NEVER_MARKED_MS


def test_each_partition_has_its_own_mark(world: World) -> None:
    world.produce(1, partition=0)
    world.expire(NOW_MS)
    world.produce(2, partition=1)  # had no producer when it was marked
    world.expire(NOW_MS + DAY_MS)
    assert (world.known(0), world.known(1)) == ([], [2])
    assert world.state(2).forgotten == NOTHING_FORGOTTEN
    world.expire(NOW_MS + 2 * DAY_MS)
    assert world.known(1) == []


@pytest.mark.parametrize("days", [1, 400])
def test_a_mark_of_the_future_delays_and_nothing_is_forgotten(world: World, days: int) -> None:
    """A clock was wrong, ours or the other one: which, nobody knows."""
    world.produce(1)
    world.expire(NOW_MS + days * DAY_MS)
    assert not world.expire(NOW_MS)
    assert not world.expire(NOW_MS + (days + 1) * DAY_MS - 1)
    assert world.known() == [1]
    assert world.expire(NOW_MS + (days + 1) * DAY_MS)
    assert world.known() == []


def test_a_mark_is_not_before_the_newest_commit(world: World, clock: ManualClock) -> None:
    """The clock of whoever sets it is behind; the next one is right."""
    world.produce(1)
    newest_ms = world.log.image.newest_ms
    assert newest_ms == clock.now_ms()
    assert world.expire(newest_ms - 2 * DAY_MS)
    assert world.log.image.producers_marked_ms == newest_ms
    assert not world.expire(newest_ms + 60_000)
    assert world.known() == [1]


def test_clocks_that_differ_a_little_leave_the_mark(world: World) -> None:
    world.produce(1)
    world.expire(NOW_MS + DAY_MS - 1)
    assert not world.expire(NOW_MS)


def test_who_was_given_up_by_number_before_is_covered_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.metadata.model.sequences.MAX_PRODUCERS", 2)
    for producer in (7, 1, 2):
        world.produce(producer)
    assert world.known() == [1, 2]
    world.forget_all()
    assert world.state().forgotten.producer_id == 7
    world.merge()
    assert world.refused(7) == "UNKNOWN_PRODUCER"


def test_who_was_given_up_by_number_is_still_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its extent lies above the mark: an older one, with merged batches, was not given up in its place."""
    monkeypatch.setattr("sparklog.metadata.model.sequences.MAX_PRODUCERS", 2)
    world.produce(1, 0)
    world.produce(1, 1)
    world.merge()
    world.log.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=True)])
    world.produce(2)
    world.produce(3)
    assert world.known() == [1, 3]
    world.log.publish(lambda _: [ExpireProducers(time_ms=1)])
    assert world.known() == [3]
    assert world.refused(2) == "DUPLICATE_SEQUENCE"
    assert world.refused(2, 7) == "OUT_OF_ORDER_SEQUENCE"
    world.produce(2, 1)


# --- what comes after ----------------------------------------------------------------------------------


def test_a_repetition_is_answered_as_long_as_its_extent_is_there(world: World) -> None:
    world.produce(1, 5)
    world.forget_all()
    assert last_batch(world.state(), 1) is None
    assert world.refused(1, 5) == "DUPLICATE_SEQUENCE"


def test_a_repetition_is_never_taken_for_new_once_it_was_merged(world: World) -> None:
    world.produce(1, 5)
    world.produce(1, 6)
    world.forget_all()
    world.merge()
    assert world.refused(1, 5) == world.refused(1, 6) == "UNKNOWN_PRODUCER"


def test_an_older_extent_is_not_taken_for_the_last_one(world: World) -> None:
    """It was too large to be merged; what came after it was."""
    for sequence in range(4):
        world.produce(1, sequence)
    world.merge(1, 4)
    world.forget_all()
    assert world.refused(1, 1) == "UNKNOWN_PRODUCER"  # it would follow sequence 0
    assert world.refused(1, 0) == "DUPLICATE_SEQUENCE"


@pytest.mark.parametrize(
    ("producer_id", "epoch", "time_ms"), [(10, 0, OLD_MS), (9, 3, OLD_MS), (9, 2, OLD_MS + 1)]
)
def test_what_cannot_be_a_repetition_is_new(world: World, producer_id: int, epoch: int, time_ms: int) -> None:
    world.produce(9, 0, epoch=1)
    world.produce(4, 0, epoch=2)
    world.forget_all()
    world.merge()
    assert world.refused(9, 0, epoch=2) == "UNKNOWN_PRODUCER"
    assert world.produce(producer_id, 0, epoch=epoch, time_ms=time_ms) == 2
    assert world.refused(producer_id, 0, epoch=epoch, time_ms=time_ms) == "DUPLICATE_SEQUENCE"


def test_a_producer_goes_on_after_a_pause_with_the_times_of_now(world: World) -> None:
    """As it would with Kafka: most records carry the time at which they were sent."""
    world.produce(1, time_ms=NOW_MS - 1)
    world.expire(NOW_MS)
    world.expire(NOW_MS + DAY_MS)
    assert world.known() == []
    world.produce(1, 1, time_ms=NOW_MS + DAY_MS)
    assert world.known() == [1]
    assert world.refused(1, 1, time_ms=NOW_MS + DAY_MS) == "DUPLICATE_SEQUENCE"


def test_times_count_up_to_half_an_expiration_beyond_the_mark(world: World) -> None:
    """A record of tomorrow that compaction has removed since: no extent shows its time."""
    world.produce(1, time_ms=NOW_MS + 3_600_000)
    world.expire(NOW_MS)
    first = world.state().extents[0]
    world.log.publish(lambda image: [plan_replacing(image, [first], [])])
    world.expire(NOW_MS + DAY_MS)
    assert world.refused(1, time_ms=NOW_MS + 3_600_000) == "UNKNOWN_PRODUCER"


def test_times_of_before_count_for_who_is_forgotten_later(world: World) -> None:
    world.produce(1, 0, time_ms=OLD_MS + 500)
    world.forget_all()
    assert world.state().forgotten.max_timestamp_ms == OLD_MS + 500
    world.produce(2, 0, time_ms=OLD_MS + 900)
    world.log.publish(lambda _: [ExpireProducers(time_ms=2, marks_only=True)])
    world.produce(2, 1)
    world.log.publish(lambda _: [ExpireProducers(time_ms=3)])
    assert world.known() == [2]
    world.log.publish(lambda _: [ExpireProducers(time_ms=4)])
    world.merge()
    assert world.refused(2, 0, time_ms=OLD_MS + 900) == "UNKNOWN_PRODUCER"


def test_the_time_of_the_append_says_nothing_of_the_batch(world: World) -> None:
    world.produce(1)
    world.forget_all()
    world.merge()
    state = world.state()
    assert check_unknown(state, 1, 0, 0, 1, OLD_MS + 1) is SequenceCheck.NEXT
    assert check_unknown(state, 1, 0, 0, 1, None) is SequenceCheck.UNKNOWN


def test_partitions_that_have_forgotten_nobody_take_any_batch(world: World) -> None:
    world.produce(9)
    world.forget_all()
    assert world.produce(1, 17, partition=1) == 0


# --- what makes room -----------------------------------------------------------------------------------


def test_merged_batches_are_forgotten_with_their_producers(world: World) -> None:
    world.produce(1, 0)
    world.produce(1, 1)
    world.merge()
    assert set(world.state().merged_batches) == {1}
    world.log.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=True)])
    world.produce(1, 2)
    world.log.publish(lambda _: [ExpireProducers(time_ms=1)])
    assert (world.known(), dict(world.state().merged_batches)) == ([1], {})
    # It is known, and what it repeats is behind.
    assert world.refused(1, 0) == world.refused(1, 1) == "DUPLICATE_SEQUENCE"
    world.produce(1, 3)
    world.merge(1)
    assert [one.base_sequence for one in world.state().merged_batches[1]] == [2, 3]


def test_who_is_known_again_is_remembered_as_anybody(world: World) -> None:
    world.produce(1)
    world.forget_all()
    world.produce(1, 1, time_ms=OLD_MS + 1)
    world.produce(1, 2)
    world.merge()
    assert [one.base_sequence for one in world.state().merged_batches[1]] == [1, 2]
    assert world.refused(1, 2) == "DUPLICATE_SEQUENCE"


# --- replay, snapshots ---------------------------------------------------------------------------------


def test_it_is_the_same_after_a_replay_and_from_a_snapshot(world: World, memory: MemoryStore) -> None:
    for producer in range(5):
        world.produce(producer, partition=producer % 2)
    world.expire(NOW_MS)
    world.produce(3, 1, partition=1)
    replayed = MetadataLog.open(memory, ManualClock())
    world.log.write_snapshot()
    snapshot = MetadataLog.open(memory, ManualClock())
    assert snapshot.image == replayed.image == world.log.image
    world.expire(NOW_MS + DAY_MS)
    assert snapshot.refresh() == replayed.refresh() == world.log.image
    assert world.known(1) == [3]
    world.log.write_snapshot()
    again = MetadataLog.open(memory, ManualClock()).image
    assert again == world.log.image
    assert again.partition("orders", 1).forgotten == Forgotten(
        mark_offset=3, end_offset=2, producer_id=1, producer_epoch=0, max_timestamp_ms=NOW_MS + DAY_MS // 2
    )


def test_it_survives_whatever_else_a_partition_does(world: World) -> None:
    world.produce(1)
    world.forget_all()
    before = world.state().forgotten
    world.produce(2)
    world.merge()
    advance = plan_advance_log_start(world.log.image, world.topic.topic_id, 0, 1)
    assert advance is not None
    world.log.publish(lambda _: [advance])
    assert world.state().forgotten == before


def test_producers_of_the_same_commit_count(world: World, draft: Draft) -> None:
    """In the order of its actions, and of topics that it makes or deletes."""
    world.produce(1)
    drafts = [draft(world.topic, producer_id=2, producer_epoch=0, base_sequence=0)]
    image = world.log.image
    image = applied(
        image,
        plan_append(image, drafts),
        plan_create_topic(image, "more", 2, topic_id="M" * 22),
        ExpireProducers(time_ms=5, marks_only=True),
    )
    assert image.partition("orders", 0).forgotten.mark_offset == 11
    image = applied(image, ExpireProducers(time_ms=6))
    assert dict(image.partition("orders", 0).producers) == {}
    assert image.producers_marked_ms == 6


@pytest.mark.parametrize(("time_ms", "max_timestamp_ms"), [(-2, -1), (0, -2)])
def test_what_is_out_of_range_is_refused(log: MetadataLog, time_ms: int, max_timestamp_ms: int) -> None:
    with pytest.raises(ActionRefusedError, match="out of range"):
        applied(log.image, ExpireProducers(time_ms=time_ms, max_timestamp_ms=max_timestamp_ms))


@pytest.mark.parametrize("times", [(-1, DAY_MS), (NOW_MS, 0)])
def test_times_that_are_none_are_refused(log: MetadataLog, times: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="expected times"):
        plan_expire_producers(log.image, *times)


@pytest.mark.parametrize("offsets", [(1, 2), (2, 1), (1, -1)])
def test_a_snapshot_whose_marks_cannot_be_is_damaged(
    log: MetadataLog, create: Create, memory: MemoryStore, offsets: tuple[int, int]
) -> None:
    create(log, "orders", 1)
    image = log.image
    (topic,) = image.topics.values()
    state = msgspec.structs.replace(topic.partitions[0], forgotten=Forgotten(*offsets, -1, -1, -1))
    wrong = dataclasses.replace(topic, partitions=(msgspec.structs.replace(state, log_end_offset=1),))
    write_snapshot(memory, dataclasses.replace(image, topics={"orders": wrong}), timestamp_ms=0)
    with pytest.raises(CorruptLogError, match="orders"):
        read_snapshot(memory, image.commit, cluster_id=image.cluster_id)
