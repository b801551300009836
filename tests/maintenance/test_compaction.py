"""Compaction: which records stay, which go, and when."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.format.record_batch import DELETE_HORIZON_MASK
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, expire, optimize
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import publish_compaction, run_compaction
from sparklog.metadata import Cleaned, MetadataLog
from tests.maintenance.compacted import DUE, cleaned, due, left, prepared, stored
from tests.maintenance.conftest import Put, extents

DAY_MS = 86_400_000


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_last_record_of_each_key_stays(table: SparkLog, put: Put, compression: str) -> None:
    for number in range(50):
        put((b"a", b"%d" % number), (b"k%d" % (number % 7), b"x" * 400), compression=compression)
    before = left(table)
    last = {key: offset for offset, key, _ in before}
    report = compact(table.metadata, table.clock)
    one = report.topics["table"]
    assert left(table) == [row for row in before if last[row[1] or b""] == row[0]]
    assert (one.partitions, one.rounds, one.records_read, one.superseded, one.keyless) == (1, 1, 100, 92, 0)
    assert one.bytes_after < one.bytes_before == one.dirty_bytes
    assert cleaned(table) == Cleaned(100, -1)
    assert compact(table.metadata, table.clock).topics["table"].partitions == 0


def test_a_deleted_key_stays_deleted_and_its_tombstone_for_a_day(
    table: SparkLog, put: Put, clock: ManualClock
) -> None:
    put((b"a", b"1"), (b"b", b"1"))
    put((b"a", None))
    clock.advance_ms(5)
    compact(table.metadata, clock)
    first = [(1, b"b", b"1"), (2, b"a", None)]
    assert left(table) == first
    horizon = clock.now_ms() + DAY_MS
    assert cleaned(table) == Cleaned(3, horizon)
    batches = stored(table)
    assert batches.attributes.tolist() == [0, DELETE_HORIZON_MASK]
    assert batches.first_timestamp_ms.tolist() == [clock.now_ms() - 5, horizon]
    times = table.read("table", 0, 0)["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [clock.now_ms() - 5] * 2
    clock.advance_ms(DAY_MS - 1)
    put((b"c", b"1"))
    compact(table.metadata, clock)  # the horizon is set once
    assert left(table) == [*first, (3, b"c", b"1")]
    clock.advance_ms(1)
    report = compact(table.metadata, clock)  # nothing was written since
    assert (report.topics["table"].tombstones_removed, report.topics["table"].tombstones_kept) == (1, 0)
    assert left(table) == [(1, b"b", b"1"), (3, b"c", b"1")]
    assert cleaned(table) == Cleaned(4, -1)


def test_each_tombstone_has_its_own_horizon(table: SparkLog, put: Put, clock: ManualClock) -> None:
    horizons = []
    for number in range(3):
        put((b"%d" % number, None))
        compact(table.metadata, clock)
        horizons.append(clock.now_ms() + DAY_MS)
        clock.advance_ms(1_000)
    assert stored(table).first_timestamp_ms.tolist() == horizons
    assert cleaned(table).delete_horizon_ms == horizons[-1]
    clock.advance_ms(DAY_MS - 2_000)
    put((b"x", b"1"))
    compact(table.metadata, clock)
    assert [offset for offset, _, _ in left(table)] == [2, 3]


def test_a_tombstone_does_not_go_with_the_round_that_first_sees_it(
    table: SparkLog, put: Put, clock: ManualClock
) -> None:
    table.alter_topic("table", {"delete.retention.ms": "0"})
    put((b"a", b"1"))
    put((b"a", None))
    (work,) = choose_compactions(table.refresh(), clock.now_ms(), CompactionLimits())
    assert publish_compaction(table.metadata, run_compaction(table.store, clock, work))
    assert left(table) == [(1, b"a", None)]
    compact(table.metadata, clock)
    assert left(table) == []


def test_who_was_away_for_longer_than_tombstones_are_kept_revives_nothing(
    table: SparkLog, put: Put, clock: ManualClock
) -> None:
    """As in Kafka 3.9 to 4.2, where each replica compacts for itself: one that comes back after a week brings
    its own old records. Here that is a compactor that has read them, and publishes a week later.
    """
    put((b"a", b"old"), (b"b", b"1"))
    put((b"c", b"1"))
    slept = prepared(table)
    put((b"a", None))
    compact(table.metadata, clock)
    clock.advance_ms(7 * DAY_MS)
    compact(table.metadata, clock)
    assert left(table) == [(1, b"b", b"1"), (2, b"c", b"1")]
    assert not publish_compaction(table.metadata, slept)
    again = SparkLog(table.store, MetadataLog.open(table.store, clock), clock)
    assert left(again) == [(1, b"b", b"1"), (2, b"c", b"1")]


def test_the_end_of_the_log_can_be_reached(table: SparkLog, put: Put, clock: ManualClock) -> None:
    table.alter_topic("table", {"delete.retention.ms": "0"})
    put((b"a", b"1"))
    put((b"a", None), (b"b", None))
    for _ in range(3):
        compact(table.metadata, clock)
    assert left(table) == []
    batches = stored(table)
    assert (batches.record_count.tolist(), batches.last_offset.tolist()) == ([0], [2])
    assert batches.size.tolist() == [61]
    put((b"c", b"1"))
    compact(table.metadata, clock)
    assert left(table) == [(3, b"c", b"1")]
    assert stored(table).record_count.tolist() == [1]


def test_records_without_a_key_go_and_are_counted(log: SparkLog, put: Put) -> None:
    log.create_topic("later", 1)
    put((b"a", b"1"), (None, b"x"), (None, None), topic="later")
    log.alter_topic("later", {"cleanup.policy": "compact,delete"})
    assert compact(log.metadata, log.clock).topics["later"].keyless == 2
    assert left(log, topic="later") == [(0, b"a", b"1")]


def test_what_is_younger_than_the_lag_stays(table: SparkLog, put: Put, clock: ManualClock) -> None:
    table.alter_topic("table", {"min.compaction.lag.ms": "1000"})
    for _ in range(4):
        put((b"a", b"1"))
        clock.advance_ms(400)
    compact(table.metadata, clock)
    assert [offset for offset, _, _ in left(table)] == [1, 2, 3]
    assert cleaned(table).first_dirty_offset == 2
    clock.advance_ms(1000)
    compact(table.metadata, clock)
    assert [offset for offset, _, _ in left(table)] == [3]


def test_due_by_the_dirty_ratio_and_without_the_newest_extent(
    table: SparkLog, put: Put, clock: ManualClock
) -> None:
    value = b"x" * 9_000  # of such batches none is written anew
    for number in range(5):
        put((b"k%d" % number, value))
        put((b"k%d" % number, value), partition=1)
    assert due(table) == [0, 1]
    compact(table.metadata, clock, limits=DUE)
    assert [cleaned(table, partition).first_dirty_offset for partition in range(2)] == [4, 4]
    for number in range(3):
        put((b"k%d" % number, value))
    assert due(table) == []  # three dirty, four clean
    put((b"k3", value))
    assert due(table) == []  # as much clean as dirty: not more
    put((b"k", value))
    assert due(table) == [0]
    table.alter_topic("table", {"min.cleanable.dirty.ratio": "0.9"})
    assert due(table) == []
    assert due(table, CompactionLimits()) == [0, 1]
    clock.advance_ms(7 * DAY_MS + 1)  # segment.ms: the newest extents are no active segments any more
    table.alter_topic("table", {"min.cleanable.dirty.ratio": "0.1"})
    assert due(table) == [0, 1]


def test_due_by_the_bytes_of_a_segment(table: SparkLog, put: Put) -> None:
    """A small table that a broker or a stream writes to, in fewer extents than merging waits for."""
    limits = CompactionLimits(only_due=True, min_extents=256)
    table.alter_topic("table", {"segment.bytes": "20000"})
    for number in range(3):
        put((b"k", b"%d" % number * 9_000))
    assert due(table, limits) == []  # two that are not the newest
    put((b"k", b"x" * 9_000))
    assert due(table, limits) == [0]
    compact(table.metadata, table.clock, limits=limits)
    assert [offset for offset, _, _ in left(table)] == [2, 3]
    put((b"k", b"y" * 9_000))
    assert due(table, limits) == []  # what is clean waits for as much again


def test_an_extent_of_a_whole_segment_is_no_active_one(table: SparkLog, put: Put) -> None:
    limits = CompactionLimits(only_due=True, min_extents=256)
    table.alter_topic("table", {"segment.bytes": "20000"})
    put((b"k", b"x" * 9_000), (b"k", b"y" * 9_000))
    assert due(table, limits) == []
    put((b"k", b"x" * 9_000), (b"k", b"y" * 12_000))
    compact(table.metadata, table.clock, limits=limits)
    assert [offset for offset, _, _ in left(table)] == [3]


def test_due_by_the_longest_lag(table: SparkLog, put: Put, clock: ManualClock) -> None:
    table.alter_topic("table", {"max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "1"})
    put((b"a", b"1"))
    clock.advance_ms(1000)
    assert due(table) == []
    clock.advance_ms(1)
    assert due(table) == [0]


def test_the_filthiest_is_first(table: SparkLog, put: Put) -> None:
    put((b"a", b"x" * 1_000))
    compact(table.metadata, table.clock)
    put((b"a", b"x" * 1_000))
    put((b"a", b"x"), partition=1)
    assert due(table, CompactionLimits()) == [1, 0]


def test_only_topics_with_the_policy(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"), topic="t")
    put((b"a", b"1"), (b"a", b"2"))
    assert list(compact(table.metadata, table.clock).topics) == ["table"]
    assert len(left(table, topic="t")) == 2
    with pytest.raises(InvalidRequestError, match="topic 't': found a cleanup") as raised:
        compact(table.metadata, table.clock, ["table", "t"])
    assert raised.value.code == "NOT_COMPACTED"


def test_a_log_that_starts_later(table: SparkLog, put: Put) -> None:
    for number in range(3):
        put((b"a", b"%d" % number), (b"b", b"%d" % number))
    compact(table.metadata, table.clock)
    put((b"a", b"3"), (b"b", b"3"))
    table.alter_topic("table", {"cleanup.policy": "compact,delete", "retention.bytes": "0"})
    expire(table.metadata, table.clock.now_ms())
    put((b"a", b"4"), (b"a", b"5"))
    compact(table.metadata, table.clock)
    assert left(table) == [(9, b"a", b"5")]
    assert cleaned(table).first_dirty_offset == 10


def test_a_small_map_takes_more_rounds(table: SparkLog, put: Put) -> None:
    for _ in range(3):
        for number in range(20):
            put((b"%d" % number, b"1"), (b"%d" % (number + 100), b"1"))
    limits = CompactionLimits(dedupe_buffer_bytes=400)
    report = compact(table.metadata, table.clock, limits=limits)
    assert report.topics["table"].rounds > 5
    assert [offset for offset, _, _ in left(table)] == list(range(80, 120))
    assert cleaned(table).first_dirty_offset == 120


def test_extents_of_which_nothing_changes_stay(table: SparkLog, put: Put) -> None:
    table.alter_topic("table", {"segment.bytes": "3000"})
    for number in range(6):
        put((b"%d" % number, b"x" * 2_000))
    before = extents(table, "table")
    compact(table.metadata, table.clock)
    assert extents(table, "table") == before
    assert cleaned(table).first_dirty_offset == 6
    put((b"3", b"1"))
    compact(table.metadata, table.clock)
    found = extents(table, "table")
    assert [one for one in found if one in before] == before[:3] + before[4:5]
    assert [offset for offset, _, _ in left(table)] == [0, 1, 2, 4, 5, 6]


def test_large_batches_keep_their_bytes(table: SparkLog, put: Put) -> None:
    put((b"a", b"1" * 9_000), (b"b", b"1" * 9_000))
    put((b"c", b"1" * 9_000), (b"d", b"1" * 9_000))
    (_, second) = extents(table, "table")
    data = table.store.read(second.segment, second.position, second.size)
    put((b"a", b"2"))
    compact(table.metadata, table.clock)
    batches = stored(table)
    (extent,) = extents(table, "table")
    kept = table.store.read(extent.segment, int(batches.position[1]), int(batches.size[1]))
    assert kept[8:] == data[8:]
    assert batches.base_offset.tolist() == [0, 2, 4]


def test_the_first_steps_of_a_segment_are_copied_if_a_later_one_changes(table: SparkLog, put: Put) -> None:
    for number in range(20):
        put((b"%d" % number, b"x" * 9_000))
    optimize(table.metadata, table.clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    compact(table.metadata, table.clock)
    put((b"19", b"2"))
    result = prepared(table, step_bytes=500)
    assert publish_compaction(table.metadata, result)
    assert [offset for offset, _, _ in left(table)] == [*range(19), 20]


@pytest.mark.parametrize("mode", ["CreateTime", "LogAppendTime"])
def test_timestamps_are_found_by_their_time(log: SparkLog, put: Put, clock: ManualClock, mode: str) -> None:
    configs = {"cleanup.policy": "compact", "message.timestamp.type": mode}
    log.create_topic("timed", 1, configs)
    expected = []
    for number in range(30):
        put((b"%d" % (number % 4), None if number % 3 else b"1"), (b"x%d" % number, None), topic="timed")
        expected.append(clock.now_ms())
        clock.advance_ms(1_000)
    compact(log.metadata, clock, ["timed"])
    log.refresh()
    found = log.read("timed", 0, 0)
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [expected[offset // 2] for offset in found["offset"].to_pylist()]
    for at in expected:
        hit = next(o for o, time_ms in zip(found["offset"].to_pylist(), times, strict=True) if time_ms >= at)
        assert log.offset_for_time("timed", 0, at) == hit
