"""Merging: every record stays what it is, whatever its batches were, and nothing is published by halves."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, DataLossError, RetriableError, StorageError
from sparklog.format.batch_table import scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.index import parse_offset_entries, parse_time_entries
from sparklog.format.schema import RecordColumns, TimestampType
from sparklog.log.segment_file import is_dense, is_merged
from sparklog.maintenance import MergeLimits, MergeWork, Progress, optimize
from sparklog.maintenance.choose import choose_merges
from sparklog.maintenance.merging import run_merge
from sparklog.maintenance.work_loop import publish_replacements
from sparklog.metadata import MetadataLog, appended_offset, plan_append
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import Append, extents, records

ALL = MergeLimits(fan_in=None)
APART = MergeLimits(fan_in=None, shared_bytes=0)


def merge(log: SparkLog, limits: MergeLimits = ALL) -> None:
    report = optimize(log.metadata, ManualClock(), limits=limits)
    assert sum(topic.left_out for topic in report.topics.values()) == 0


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_stay_what_they_are(
    log: SparkLog, append: Append, limits: MergeLimits, compression: str
) -> None:
    for number in range(40):
        times = [1_000_000 + 10 * number - row for row in range(number % 5 + 1)]
        values = [b"%d-%d" % (number, row) for row in range(len(times))]
        append(values, times_ms=times, compression=compression)
        append([b"z" * 20_000], partition=1, times_ms=[number], compression=compression)
    before = [records(log, partition=partition) for partition in range(2)]
    merge(log, limits)
    assert [records(log, partition=partition) for partition in range(2)] == before
    assert [len(extents(log, partition=partition)) for partition in range(2)] == [1, 1]
    assert all(is_dense(one.segment) == (limits is ALL) for one in extents(log))


def table_of(log: SparkLog, partition: int = 0) -> tuple[bytes, list[int]]:
    (extent,) = extents(log, partition=partition)
    data = log.store.read(extent.segment, extent.position, extent.size)
    return data, scan_batches(data, where="test").size.tolist()


def test_small_batches_become_full_ones_and_large_ones_keep_their_bytes(
    log: SparkLog, append: Append
) -> None:
    for number in range(50):
        append([b"%04d" % number])
    append([b"large" * 4_000])
    (large,) = extents(log)[-1:]
    stored = log.store.read(large.segment, large.position, large.size)
    merge(log)
    data, sizes = table_of(log)
    assert len(sizes) == 2
    assert data[-sizes[1] + 8 :] == stored[8:]  # all but the base offset


def test_log_append_time_keeps_each_batchs_time(log: SparkLog) -> None:
    log.create_topic("appended", 1, {"message.timestamp.type": "LogAppendTime"})
    clock = log.clock
    assert isinstance(clock, ManualClock)
    for number in range(5):
        log.append("appended", pa.table({"value": [b"%d" % number]}))
        clock.advance_ms(1_000)
    before = records(log, "appended")
    assert len({time for _, _, time in before}) == 5
    merge(log)
    assert records(log, "appended") == before


def publish_batch(log: SparkLog, count: int, **fields: object) -> None:
    """An extent of one batch, with options of the encoder, or fields of its draft."""
    options = {name: fields.pop(name) for name in ("is_transactional", "timestamp_type") if name in fields}
    encoded = encode_batches(
        RecordColumns(
            key=None,
            value=pa.array([b"v"] * count, pa.binary()),
            timestamp_ms=np.full(count, 5, np.int64),
        ),
        EncodeOptions(**options),  # type: ignore[arg-type]
    )
    config = log.describe_topic("t").config
    draft = log.writer.append(log.image.topic("t").topic_id, 0, encoded, config)
    assert draft is not None
    log.writer.sync([draft])
    changed = msgspec.structs.replace(draft, **fields)
    log.metadata.publish(lambda image: [plan_append(image, [changed])])


def test_batches_that_say_more_than_their_records_are_not_put_together(log: SparkLog) -> None:
    for _ in range(3):
        publish_batch(log, 2, timestamp_type=TimestampType.LOG_APPEND_TIME)
    merge(log)
    _, sizes = table_of(log)
    assert len(sizes) == 3


def test_batches_of_transactions_are_put_together_as_all_others(log: SparkLog) -> None:
    """Whoever wrote them has committed; and a batch of several producers is of no transaction."""
    for number in range(6):
        producer = {"producer_id": number % 3, "producer_epoch": number, "base_sequence": 0}
        publish_batch(log, 2, is_transactional=number % 2 == 0, **producer)
    before = records(log)
    merge(log)
    data, sizes = table_of(log)
    assert (len(sizes), records(log)) == (1, before)
    assert not scan_batches(data, where="merged").is_transactional.any()


def test_late_repetitions_are_still_answered_with_their_offset(log: SparkLog) -> None:
    for sequence in range(8):
        publish_batch(log, 3, producer_id=7, producer_epoch=1, base_sequence=3 * sequence)
    publish_batch(log, 2, producer_id=9, producer_epoch=0, base_sequence=0)

    def found(sequence: int, count: int = 3, producer: int = 7, epoch: int = 1) -> int | None:
        return appended_offset(log.image.partition("t", 0), producer, epoch, sequence, count)

    for _ in range(2):
        merge(log)
        assert len(extents(log)) == 1
        # Of each producer the last five batches, as Kafka.
        assert [found(3 * number) for number in range(8)] == [None, None, None, 9, 12, 15, 18, 21]
        assert (found(22, 2), found(22, 3), found(21, epoch=2)) == (22, None, None)
        assert found(0, 2, producer=9, epoch=0) == 24
        log.metadata.write_snapshot()
        log = SparkLog(log.store, type(log.metadata).open(log.store, log.clock), log.clock)
    publish_batch(log, 1, producer_id=7, producer_epoch=1, base_sequence=24)
    merge(log)
    assert [found(sequence, count) for sequence, count in ((24, 1), (12, 3), (9, 3))] == [26, 12, None]


def test_segments_keep_to_the_topics_size(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"segment.bytes": "5000", "index.interval.bytes": "1000"})
    for number in range(100):
        append([b"%03d" % number * 100], times_ms=[1_000 + number])
    before = records(log)
    merge(log, APART)
    assert records(log) == before
    found = extents(log)
    assert len(found) >= 7
    assert all(extent.size <= 5_000 and is_merged(extent.segment) for extent in found)
    assert len({extent.segment for extent in found}) == len(found)
    merge(log, APART)
    assert extents(log) == found


def test_a_merged_segment_is_laid_out_as_kafkas(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"index.interval.bytes": "10000"})
    times = [5_000, 9_000, 7_000, 9_500]
    for time_ms in times:
        append([b"x" * 9_000, b"y"], times_ms=[time_ms, time_ms - 1])
    append([b"unmerged" * 100_000])
    log.alter_topic("t", {"segment.bytes": "100000"})
    merge(log, MergeLimits(fan_in=None, shared_bytes=0))
    first = extents(log)[0]
    assert first.segment.startswith(f"t-0/{0:020d}.")
    assert (first.position, first.offset_delta, first.record_count) == (0, 0, 8)
    table = scan_batches(log.store.read(first.segment), where="test")
    assert table.base_offset.tolist() == [0, 2, 4, 6]
    index = parse_offset_entries(log.store.read(first.segment.replace(".log", ".index")), "test")
    at = table.position.tolist()
    assert list(zip(index.relative_offset.tolist(), index.position.tolist(), strict=True)) == [
        (5, at[2]),
        (7, at[3]),
    ]
    times_index = parse_time_entries(log.store.read(first.segment.replace(".log", ".timeindex")), "test")
    found = list(zip(times_index.timestamp_ms.tolist(), times_index.relative_offset.tolist(), strict=True))
    assert found == [(9_000, 3), (9_500, 7)]


def test_what_changed_meanwhile_is_left_out_and_the_rest_published(log: SparkLog, append: Append) -> None:
    for _ in range(3):
        append([b"a"])
        append([b"b"], partition=1)
    (work,) = choose_merges(log.refresh(), ALL)
    replacements = run_merge(log.store, log.clock, work)
    merge(log)  # somebody else
    append([b"a"])
    published = publish_replacements(log.metadata, replacements)
    assert (published.actions, published.left_out) == ((), 2)
    (again,) = choose_merges(log.refresh(), ALL)
    both = [*run_merge(log.store, log.clock, again), *replacements]
    published = publish_replacements(log.metadata, both)
    assert ([action.partition for action in published.actions], published.left_out) == ([0], 2)
    assert [value for _, value, _ in records(log)] == [b"a"] * 4


def test_a_topic_that_is_gone_meanwhile_is_left_out(log: SparkLog, append: Append) -> None:
    append([b"a"])
    append([b"a"])
    (work,) = choose_merges(log.refresh(), ALL)
    replacements = run_merge(log.store, log.clock, work)
    log.delete_topic("t")
    log.create_topic("t", 2)
    assert publish_replacements(log.metadata, replacements).left_out == 1


def test_appends_during_the_work_do_not_matter(log: SparkLog, append: Append) -> None:
    append([b"a"])
    append([b"b"])
    (work,) = choose_merges(log.refresh(), ALL)
    replacements = run_merge(log.store, log.clock, work)
    append([b"c"])
    assert publish_replacements(log.metadata, replacements).left_out == 0
    assert [value for _, value, _ in records(log)] == [b"a", b"b", b"c"]
    assert len(extents(log)) == 2


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_a_damaged_batch_is_an_error_and_nothing_is_replaced(
    log: SparkLog, append: Append, memory_or_s3: MemoryStore, limits: MergeLimits
) -> None:
    append([b"first"])
    append([b"second"])
    before = extents(log)
    store = memory_or_s3
    data = bytearray(store.read(before[1].segment))
    data[before[1].position + 65] ^= 1
    store.put_hint(before[1].segment, bytes(data))
    with pytest.raises(CorruptLogError, match=rf"t-0 in {before[1].segment}@{before[1].position}"):
        merge(log, limits)
    assert extents(log) == before


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_what_is_merged_is_durable_before_it_is_published(
    log: SparkLog, append: Append, memory_or_s3: MemoryStore, limits: MergeLimits
) -> None:
    append([b"first"])
    append([b"second"])
    done: list[tuple[str, str]] = []
    memory_or_s3.hook = lambda called, name: done.append((called, name))
    merge(log, limits)
    memory_or_s3.hook = None
    (segment,) = {extent.segment for extent in extents(log)}
    commits = [index for index, (called, name) in enumerate(done) if called == "put_if_absent" and name]
    assert done.index(("sync", segment)) < min(commits)


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_a_store_that_fails_in_the_midst_leaves_everything_as_it_was(
    log: SparkLog, append: Append, memory_or_s3: MemoryStore, limits: MergeLimits
) -> None:
    append([b"first"])
    append([b"second"])
    before = extents(log)

    def fail(called: str, name: str) -> None:
        if called == "append_file":
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="make room")

    memory_or_s3.hook = fail
    with pytest.raises(StorageError, match="no space"):
        merge(log, limits)
    memory_or_s3.hook = None
    assert extents(log) == before
    merge(log, limits)
    assert [value for _, value, _ in records(log)] == [b"first", b"second"]


def test_one_at_a_time_on_a_machine(tmp_path: Path) -> None:
    with sparklog.open(f"{tmp_path}/log") as log:
        held = log.store.hold("maintenance.lock", b"process 77")
        with pytest.raises(RetriableError, match="found process 77 maintaining this root") as raised:
            optimize(log.metadata, log.clock)
        assert raised.value.code == "MAINTENANCE_RUNNING"
        held.release()
        optimize(log.metadata, log.clock)


def test_a_dry_run_writes_nothing(log: SparkLog, append: Append, memory_or_s3: MemoryStore) -> None:
    append([b"a"])
    append([b"b"])
    before = sorted(one.name for one in memory_or_s3.list("", recursive=True))
    report = optimize(log.metadata, log.clock, ["t"], dry_run=True)
    assert (report.topics["t"].merged_extents, report.topics["t"].extents_after) == (2, 2)
    assert sorted(one.name for one in memory_or_s3.list("", recursive=True)) == before


def test_progress_ends_with_everything_done(log: SparkLog, append: Append) -> None:
    for _ in range(4):
        append([b"a" * 1000])
        append([b"b" * 1000], partition=1)
    told: list[tuple[int, int]] = []

    def tell(one: Progress) -> None:
        told.append((one.done_bytes, one.total_bytes))

    optimize(log.metadata, log.clock, limits=APART, progress=tell)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 8_000


def test_files_that_went_with_their_extents_are_no_error(log: SparkLog, append: Append) -> None:
    """Somebody else has merged them, and swept, between the choice and the work."""
    append([b"a"])
    append([b"b"])
    (work,) = choose_merges(log.refresh(), ALL)
    elsewhere = SparkLog(log.store, MetadataLog.open(log.store, log.clock), log.clock)
    merge(elsewhere)
    for name in {extent.segment for piece in work.pieces for extent in piece.extents.extents("", 0)}:
        log.store.delete(name)
    stale = log.metadata.image
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparklog.maintenance.merging.choose_merges", choose_once(work))
        report = optimize(log.metadata, log.clock)
    assert stale.commit < log.image.commit
    assert (report.topics["t"].left_out, report.topics["t"].merged_extents) == (1, 0)
    assert [value for _, value, _ in records(log)] == [b"a", b"b"]


def test_a_missing_file_of_extents_that_are_there_is_an_error(log: SparkLog, append: Append) -> None:
    append([b"a"])
    append([b"b"])
    log.store.delete(extents(log)[0].segment)
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        merge(log)


def choose_once(work: MergeWork) -> Callable[..., list[MergeWork]]:
    """What was chosen from an older image; and then nothing."""
    left = [work]

    def choose(*_: object, **__: object) -> list[MergeWork]:
        return [left.pop()] if left else []

    return choose
