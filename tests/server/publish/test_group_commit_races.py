"""A group commit whose image moves between its data and its commit: others write, delete, take over."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError
from sparklog.metadata import plan_append
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.server.publish.batches import part
from tests.server.publish.test_group_commit import offsets, orders, values
from tests.support.removing import expire_below, move_horizon, remove_dead
from tests.support.roots import opened


def before_first_commit(store: MemoryStore, action: Callable[[], object]) -> None:
    """Run `action` once, between the group commit's data and its commit."""

    def hook(operation: str, name: str) -> None:
        if operation == "sync":
            store.hook = None
            action()

    store.hook = hook


def test_spark_writes_in_between(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    other = opened(store, clock)
    rows = pa.table({"value": [b"spark"]})
    before_first_commit(store, lambda: other.append("orders", rows, partition=0))
    outcomes = committer.write(
        [orders(log, producer=(1, 0, 0)), orders(log, 1), orders(log, producer=(1, 0, 2))]
    )
    assert offsets(outcomes) == [1, 0, 3]
    assert values(log)[0] == b"spark"


def test_topic_deleted_in_between(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    other = opened(store, clock)
    clicks = log.image.topic("clicks").topic_id

    def recreate() -> None:
        other.delete_topic("clicks")
        other.create_topic("clicks", 2)

    before_first_commit(store, recreate)
    outcomes = committer.write([part(topic_id=clicks, topic="clicks"), orders(log)])
    assert offsets(outcomes) == ["TOPIC_MISSING", 0]
    assert log.log_end_offset("clicks", 0) == 0


def test_all_topics_deleted_in_between(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    other = opened(store, clock)
    before_first_commit(store, lambda: other.delete_topic("orders"))
    assert offsets(committer.write([orders(log), orders(log, 1)])) == ["TOPIC_MISSING"] * 2


def test_somebody_else_used_the_producer_id_in_between(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    """Cannot happen while brokers fence each other; still nothing is written twice."""

    committer.write([orders(log, producer=(1, 0, 0))])
    other = opened(store, clock)
    (known,) = log.image.partition("orders", 0).extents
    fields = {name: getattr(known, name) for name in known.__struct_fields__}
    fields.pop("base_offset")
    fields.pop("offset_delta")
    from sparklog.metadata import DraftExtent

    stolen = replace(DraftExtent(**fields), base_sequence=2)
    before_first_commit(store, lambda: other.metadata.publish(lambda image: [plan_append(image, [stolen])]))
    outcomes = committer.write(
        [orders(log, producer=(1, 0, 2)), orders(log, producer=(1, 0, 4)), orders(log, 1), orders(log)]
    )
    assert offsets(outcomes) == [2, "PUBLISH_CONTENDED", 0, "PUBLISH_CONTENDED"]
    assert log.log_end_offset("orders", 0) == 4


# --- what may be at one offset only -------------------------------------------------------------------


def at(offset: int, one: AppendPart) -> AppendPart:
    return replace(one, at_offset=offset)


def test_what_was_planned_by_what_is_there_comes_before_anything_else_or_not_at_all(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    committer.write([orders(log)])
    parts = [orders(log), at(4, orders(log)), at(6, orders(log)), at(0, orders(log, 1)), orders(log)]
    assert offsets(committer.write(parts)) == [2, 4, 6, 0, 8]
    assert offsets(committer.write([at(8, orders(log)), orders(log)])) == ["PUBLISH_CONTENDED", 10]
    other = opened(store, clock)
    rows = pa.table({"value": [b"spark"]})
    before_first_commit(store, lambda: other.append("orders", rows, partition=0))
    parts = [orders(log), at(14, orders(log)), at(16, orders(log)), orders(log), at(2, orders(log, 1))]
    assert offsets(committer.write(parts)) == [13, "PUBLISH_CONTENDED", "PUBLISH_CONTENDED", 15, 2]
    assert log.log_end_offset("orders", 0) == 17


def test_nothing_is_published_for_what_others_were_before_alone(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    committer.write([orders(log)])
    before = log.image.commit
    other = opened(store, clock)
    rows = pa.table({"value": [b"spark"]})
    before_first_commit(store, lambda: other.append("orders", rows, partition=0))
    assert offsets(committer.write([at(2, orders(log))])) == ["PUBLISH_CONTENDED"]
    assert log.image.commit == before + 1
    assert offsets(committer.write([at(3, orders(log))])) == [3]


# --- the segment is swept ----------------------------------------------------------------------------


def sweeping(store: MemoryStore, clock: ManualClock, times: int, before: str) -> None:
    """So many times, before a sync or a commit, everything that is dead goes."""
    other = opened(store, clock)
    left = [None] * times

    def hook(operation: str, name: str) -> None:
        if operation == before and left:
            left.pop()
            store.hook = None
            other.refresh()
            for partition in range(3):
                expire_below(
                    other, other.log_end_offset("orders", partition), topic="orders", partition=partition
                )
            move_horizon(other)
            remove_dead(other)
            store.hook = hook

    store.hook = hook


@pytest.mark.parametrize("before", ["sync", "put_if_absent"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_commit_is_appended_again_when_its_segment_is_swept(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock, times: int, before: str
) -> None:
    committer.write([orders(log, producer=(1, 0, 0))])
    sweeping(store, clock, times, before)
    parts = [orders(log, producer=(1, 0, 2)), orders(log, 1), orders(log, producer=(1, 0, 4))]
    assert offsets(committer.write(parts)) == [2, 0, 4]
    store.hook = None
    log.refresh()
    assert log.read("orders", 0, 2).num_rows == 4
    assert log.read("orders", 1, 0).num_rows == 2
    assert offsets(committer.write([orders(log, producer=(1, 0, 4))])) == [4]  # a repetition


def test_a_commit_that_is_swept_again_and_again_may_be_sent_again(
    committer: GroupCommitter, log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    committer.write([orders(log, producer=(1, 0, 0))])
    sweeping(store, clock, 3, "sync")
    (outcome,) = committer.write([orders(log, producer=(1, 0, 2))])
    assert isinstance(outcome.error, RetriableError)
    assert outcome.error.code == "STAGING_EXPIRED"
    store.hook = None
    assert offsets(committer.write([orders(log, producer=(1, 0, 2))])) == [2]
