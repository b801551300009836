"""Rounds of compaction: published as a whole or not at all; batches that say more than their records."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import CorruptLogError
from sparklog.format.control_batch import ControlMarker, ControlType, encode_control_batch
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.record_batch import MAX_INT32
from sparklog.format.schema import RecordColumns, TimestampType
from sparklog.maintenance import CompactionLimits, Progress, compact, optimize
from sparklog.maintenance.budget import Budget, Meter
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import publish_compaction, run_compaction
from sparklog.metadata import NEVER_CLEANED, Cleaned, appended_offset, plan_append
from sparklog.storage import MemoryStore
from tests.maintenance.compacted import cleaned, left, prepared, stored
from tests.maintenance.conftest import Pair, Put, extents

# --- publishing --------------------------------------------------------------------------------------------


def test_a_round_whose_partition_changed_is_left_out_as_a_whole(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    put((b"b", b"1"), (b"b", b"2"))
    result = prepared(table)
    optimize(table.metadata, table.clock)
    before = left(table)
    assert not publish_compaction(table.metadata, result)
    assert (left(table), cleaned(table)) == (before, NEVER_CLEANED)


def test_appends_beside_a_round_do_not_matter(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    result = prepared(table)
    put((b"a", b"3"))
    assert publish_compaction(table.metadata, result)
    assert [offset for offset, _, _ in left(table)] == [1, 2]


def test_who_takes_the_policy_back_keeps_what_is_there(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    result = prepared(table)
    table.alter_topic("table", {"cleanup.policy": "delete"})
    assert not publish_compaction(table.metadata, result)
    assert len(left(table)) == 2


def test_a_topic_that_was_made_anew_is_not_compacted_for_the_old_one(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    result = prepared(table)
    table.delete_topic("table")
    table.create_topic("table", 2, {"cleanup.policy": "compact"})
    put((b"a", b"1"), (b"a", b"2"))
    assert not publish_compaction(table.metadata, result)
    assert len(left(table)) == 2


def test_of_two_compactors_the_second_is_left_out(table: SparkLog, put: Put) -> None:
    table.alter_topic("table", {"delete.retention.ms": "0"})
    put((b"a", b"1"), (b"b", None))
    first, second = prepared(table), prepared(table)
    assert publish_compaction(table.metadata, first)
    assert not publish_compaction(table.metadata, second)
    assert left(table) == [(0, b"a", b"1"), (1, b"b", None)]


def test_of_two_that_change_nothing_one_says_how_far_it_came(table: SparkLog, put: Put) -> None:
    put((b"a", b"1" * 9_000), (b"b", b"1"))
    first, second = prepared(table), prepared(table)
    assert first.replacements == second.replacements == ()
    assert publish_compaction(table.metadata, first)
    assert not publish_compaction(table.metadata, second)
    assert cleaned(table) == Cleaned(2, -1)


def test_a_damaged_partition_is_an_error_and_the_others_are_compacted(
    table: SparkLog, put: Put, memory_or_s3: MemoryStore
) -> None:
    for partition in range(2):
        put((b"a", b"1"), (b"a", b"2"), partition=partition)
    (extent,) = extents(table, "table")
    data = bytearray(memory_or_s3.read(extent.segment))
    data[extent.position + 65] ^= 1
    memory_or_s3.put_hint(extent.segment, bytes(data))
    with pytest.raises(CorruptLogError, match="table-0"):
        compact(table.metadata, table.clock)
    assert extents(table, "table") == [extent]
    assert left(table, 1) == [(1, b"a", b"2")]


def test_a_dry_run_writes_nothing(table: SparkLog, put: Put, memory_or_s3: MemoryStore) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    before = sorted(one.name for one in memory_or_s3.list("", recursive=True))
    report = compact(table.metadata, table.clock, dry_run=True)
    assert (report.topics["table"].partitions, report.topics["table"].rounds) == (1, 0)
    assert sorted(one.name for one in memory_or_s3.list("", recursive=True)) == before


def test_progress_ends_with_everything_done(table: SparkLog, put: Put) -> None:
    for partition in range(2):
        put((b"a", b"1" * 1_000), (b"a", b"2"), partition=partition)
    told: list[tuple[int, int]] = []

    def tell(one: Progress) -> None:
        told.append((one.done_bytes, one.total_bytes))

    compact(table.metadata, table.clock, progress=tell)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 2_000


def test_a_budget_ends_it_between_rounds(table: SparkLog, put: Put) -> None:
    for partition in range(2):
        put((b"a", b"1" * 1_000), (b"a", b"2"), partition=partition)
    meter = Meter(Budget(max_bytes=500), table.clock)
    report = compact(table.metadata, table.clock, meter=meter)
    assert (report.is_cut, report.topics["table"].rounds) == (True, 1)
    assert meter.spent_bytes > 2_000  # the dirty part is read twice
    report = compact(table.metadata, table.clock)
    assert (report.is_cut, report.topics["table"].rounds) == (False, 1)


def test_whoever_asks_for_an_end_gets_it_within_a_round(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    asked = iter([False, False, True])
    meter = Meter(Budget(), table.clock, is_stopped=lambda: next(asked))
    assert compact(table.metadata, table.clock, meter=meter).is_cut
    assert cleaned(table) == NEVER_CLEANED


# --- batches that say more than their records --------------------------------------------------------------


def publish_batch(
    log: SparkLog,
    pairs: Sequence[Pair],
    *,
    transactional: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    times_ms: Sequence[int] = (),
    **fields: object,
) -> None:
    """An extent of one batch, as a Kafka producer's."""
    producer = {name: fields.get(name, -1) for name in ("producer_id", "producer_epoch", "base_sequence")}
    encoded = encode_batches(
        RecordColumns(
            key=pa.array([key for key, _ in pairs], pa.binary()),
            value=pa.array([value for _, value in pairs], pa.binary()),
            timestamp_ms=np.array(times_ms or [5] * len(pairs), np.int64),
        ),
        EncodeOptions(
            timestamp_type=timestamp_type,
            is_transactional=transactional,
            max_message_bytes=MAX_INT32,
            **producer,  # type: ignore[arg-type]
        ),
    )
    draft = log.writer.append(
        log.image.topic("table").topic_id, 0, encoded, log.describe_topic("table").config
    )
    assert draft is not None
    log.writer.sync([draft])
    changed = msgspec.structs.replace(draft, **fields)
    log.metadata.publish(lambda image: [plan_append(image, [changed])])


def test_late_repetitions_are_still_answered_with_their_offset(table: SparkLog) -> None:
    for sequence in range(7):
        publish_batch(
            table, [(b"a", b"1"), (b"b", b"2")], producer_id=7, producer_epoch=1, base_sequence=2 * sequence
        )
    compact(table.metadata, table.clock)
    assert [offset for offset, _, _ in left(table)] == [12, 13]
    state = table.image.partition("table", 0)
    found = [appended_offset(state, 7, 1, 2 * number, 2) for number in range(7)]
    assert found == [None, None, 4, 6, 8, 10, 12]
    assert stored(table).producer_id.tolist() == [7]


def publish_marker(log: SparkLog) -> None:
    """As a transaction of Kafka's ends in a partition."""
    marker = ControlMarker(type=ControlType.ABORT, producer_id=7, producer_epoch=0, timestamp_ms=5)
    config = log.describe_topic("table").config
    draft = log.writer.append(log.image.topic("table").topic_id, 0, encode_control_batch(marker), config)
    assert draft is not None
    log.writer.sync([draft])
    log.metadata.publish(lambda image: [plan_append(image, [draft])])


def test_what_was_written_in_transactions_is_compacted_as_all_else(table: SparkLog, put: Put) -> None:
    """All that is in the log was committed: there is nobody whose records are to be passed over."""
    for number in range(3):
        pairs = [(b"a", b"3"), (b"b%d" % number, b"3")]
        publish_batch(table, pairs, transactional=True, producer_id=7, producer_epoch=number, base_sequence=0)
    put((b"a", b"4"), (b"c", b"1"))
    compact(table.metadata, table.clock)
    assert [offset for offset, _, _ in left(table)] == [1, 3, 5, 6, 7]
    found = stored(table)
    assert cleaned(table).first_dirty_offset == 8
    # Of a batch that holds several producers' records nobody is the producer, and so no transaction.
    assert not (found.is_transactional & (found.producer_id < 0)).any()
    compact(table.metadata, table.clock)
    assert [offset for offset, _, _ in left(table)] == [1, 3, 5, 6, 7]


def test_nothing_from_a_marker_on_is_compacted(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    publish_marker(table)
    put((b"a", b"4"), (b"a", None))
    compact(table.metadata, table.clock)
    assert [offset for offset, _, _ in left(table)] == [1, 3, 4]
    assert cleaned(table) == Cleaned(2, -1)
    again = compact(table.metadata, table.clock).topics["table"]
    assert (again.rounds, again.left_out) == (1, 0)  # and then it is left alone


def test_nothing_beyond_what_was_mapped_goes(log: SparkLog, put: Put) -> None:
    log.create_topic("later", 1)
    put(*[(b"%d" % number, b"1") for number in range(30)], (None, b"x"), (b"0", None), topic="later")
    log.alter_topic("later", {"cleanup.policy": "compact"})
    limits = CompactionLimits(dedupe_buffer_bytes=400)
    (work,) = choose_compactions(log.refresh(), log.clock.now_ms(), limits, ["later"])
    assert publish_compaction(log.metadata, run_compaction(log.store, log.clock, work))
    assert len(left(log, topic="later")) == 32
    assert log.image.partition("later", 0).cleaned == Cleaned(14, -1)
    compact(log.metadata, log.clock, ["later"], limits)
    assert left(log, topic="later")[-2:] == [(29, b"29", b"1"), (31, b"0", None)]


def test_records_keep_the_time_at_which_their_batch_was_appended(table: SparkLog) -> None:
    """Also when the record is gone whose own time is the batch's."""
    mode = TimestampType.LOG_APPEND_TIME
    publish_batch(table, [(b"a", b"1"), (b"b", b"1")], timestamp_type=mode, times_ms=[5, 9])
    publish_batch(table, [(b"b", b"2")], timestamp_type=mode, times_ms=[12])
    compact(table.metadata, table.clock)
    assert [offset for offset, _, _ in left(table)] == [0, 2]
    assert table.read("table", 0, 0)["timestamp"].cast(pa.int64()).to_pylist() == [9, 12]
