"""Retention: Kafka's arithmetic, from the oldest extent on, and nothing that is not asked for."""

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import OffsetOutOfRangeError, UnknownTopicError
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.maintenance import compact, due_steps, expire, optimize
from sparklog.maintenance.retain import Expiry
from sparklog.metadata import plan_advance_log_start, plan_append
from tests.maintenance.conftest import Append, Put, extents, records

DAY_MS = 86_400_000


def gone(log: SparkLog, now_ms: int) -> list[tuple[str, int, int, int]]:
    """(topic, partition, old and new log start) of what goes."""
    found = expire(log.metadata, now_ms)
    return [(one.topic, one.partition, one.log_start_offset, one.new_log_start_offset) for one in found]


def left(log: SparkLog, partition: int = 0) -> list[bytes]:
    return [value for _, value, _ in records(log, partition=partition)]


def test_extents_below_the_log_start_are_not_due_by_themselves(table: SparkLog, put: Put) -> None:
    """A compacted extent that the log start cuts may be parted, when segment.bytes was lowered."""
    clock = table.clock
    assert isinstance(clock, ManualClock)
    began_ms = clock.now_ms()
    table.alter_topic("table", {"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS)})
    for number in range(12):
        put((b"%d" % number, b"x" * 9_000))
        clock.advance_ms(3_600_000)
    optimize(table.metadata, clock, ["table"])
    topic_id = table.refresh().topic("table").topic_id
    table.metadata.publish(
        lambda image: [action for action in [plan_advance_log_start(image, topic_id, 0, 5)] if action]
    )
    table.alter_topic("table", {"segment.bytes": "20000"})
    put((b"11", b"y"))
    compact(table.metadata, clock)
    assert extents(table, "table")[0].end_offset < 5
    now_ms = began_ms + DAY_MS + 3 * 3_600_000
    assert gone(table, now_ms) == []
    assert "expire" not in due_steps(table.refresh(), now_ms)
    assert gone(table, now_ms + DAY_MS) == [("table", 0, 5, 13)]
    assert extents(table, "table") == []


def test_by_default_everything_is_kept_for_ever(log: SparkLog, append: Append) -> None:
    append([b"of 1970"], times_ms=[0])
    assert gone(log, 10_000 * DAY_MS) == []
    assert left(log) == [b"of 1970"]


def test_by_time_from_the_oldest_on(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    append([b"a"], times_ms=[5_000])
    append([b"b", b"c"], times_ms=[5_100, 4_000])
    append([b"d"], times_ms=[5_200])
    append([b"e"], times_ms=[5_050])  # older than what lies before it: waits for that
    append([b"f"], partition=1, times_ms=[9_000])
    assert gone(log, 6_000) == []
    assert gone(log, 6_001) == [("t", 0, 0, 1)]
    assert gone(log, 6_100) == []
    assert gone(log, 6_101) == [("t", 0, 1, 3)]
    assert left(log) == [b"d", b"e"]
    assert gone(log, 6_201) == [("t", 0, 3, 5)]
    assert (left(log), log.log_start_offset("t", 0), log.log_end_offset("t", 0)) == ([], 5, 5)
    append([b"g"], times_ms=[7_000])
    assert left(log) == [b"g"]


def test_a_timestamp_in_the_future_keeps_all_that_follows(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000", "message.timestamp.after.max.ms": str(1 << 60)})
    append([b"a"], times_ms=[1_000])
    append([b"future"], times_ms=[1 << 50])
    append([b"b"], times_ms=[1_000])
    assert gone(log, 9_000) == [("t", 0, 0, 1)]
    assert left(log) == [b"future", b"b"]


def test_so_does_an_extent_without_timestamps(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    append([b"a"], times_ms=[1_000])
    columns = RecordColumns(key=None, value=pa.array([b"of no time"]), timestamp_ms=np.array([-1], np.int64))
    described = log.describe_topic("t")
    encoded = encode_batches(columns, EncodeOptions())
    draft = log.writer.append(log.image.topic("t").topic_id, 0, encoded, described.config)
    assert draft is not None
    log.writer.sync([draft])
    log.metadata.publish(lambda image: [plan_append(image, [draft])])
    append([b"b"], times_ms=[1_000])
    assert extents(log)[1].max_timestamp_ms == -1
    assert gone(log, 9_000) == [("t", 0, 0, 1)]
    assert [offset for offset, _, _ in records(log)] == [1, 2]


def test_by_size_at_least_so_much_stays(log: SparkLog, append: Append) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        append([value * 1_000])
    size = extents(log)[0].size
    log.alter_topic("t", {"retention.bytes": str(2 * size + 1)})
    assert gone(log, 0) == [("t", 0, 0, 1)]
    log.alter_topic("t", {"retention.bytes": str(2 * size)})
    assert gone(log, 0) == [("t", 0, 1, 2)]
    assert gone(log, 0) == []
    log.alter_topic("t", {"retention.bytes": "0"})
    assert gone(log, 0) == [("t", 0, 2, 4)]


def test_only_topics_that_delete(log: SparkLog, append: Append) -> None:
    log.alter_root({"retention.ms": "1000"})
    append([b"kept"], times_ms=[0])
    log.alter_topic("t", {"cleanup.policy": "compact"})
    log.create_topic("u", 1)
    append([b"gone"], topic="u", times_ms=[0])
    assert gone(log, 9_000) == [("u", 0, 0, 1)]
    log.alter_topic("t", {"cleanup.policy": "compact,delete"})
    assert gone(log, 9_000) == [("t", 0, 0, 1)]


def test_a_dry_run_says_the_same_and_changes_nothing(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    append([b"a" * 100, b"b"], times_ms=[0, 0])
    size = extents(log)[0].size
    told = expire(log.metadata, 9_000, ["t"], dry_run=True)
    assert told == [
        Expiry(
            topic="t",
            topic_id=log.image.topic("t").topic_id,
            partition=0,
            log_start_offset=0,
            new_log_start_offset=2,
            size_bytes=size,
        )
    ]
    assert (len(left(log)), told[0].offsets) == (2, 2)
    commit = log.image.commit
    assert expire(log.metadata, 9_000) == told
    assert log.image.commit == commit + 1
    assert expire(log.metadata, 9_000) == []
    assert log.image.commit == commit + 1
    with pytest.raises(UnknownTopicError):
        expire(log.metadata, 0, ["missing"])


def test_what_is_merged_goes_as_a_whole_when_its_newest_is_old(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    append([b"a"], times_ms=[1_000])
    append([b"b"], times_ms=[3_000])
    optimize(log.metadata, log.clock)
    assert gone(log, 4_000) == []
    assert gone(log, 4_001) == [("t", 0, 0, 2)]


def test_the_log_start_within_an_extent_is_no_reason_to_keep_it(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    append([b"a", b"b", b"c"], times_ms=[1, 2, 3])
    append([b"d"], times_ms=[9_000])
    action = plan_advance_log_start(log.image, log.image.topic("t").topic_id, 0, 2)
    assert action is not None
    log.metadata.publish(lambda _: [action])
    assert gone(log, 9_000) == [("t", 0, 2, 3)]
    with pytest.raises(OffsetOutOfRangeError):
        log.read("t", 0, 2)


def test_many_partitions_go_in_several_commits(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.maintenance.retain.MAX_ACTIONS", 2)
    log.create_topic("many", 5, {"retention.ms": "1"})
    for partition in range(5):
        append([b"x"], topic="many", partition=partition, times_ms=[0])
    commit = log.image.commit
    assert [partition for _, partition, _, _ in gone(log, 9_000)] == [0, 1, 2, 3, 4]
    assert log.image.commit == commit + 3
