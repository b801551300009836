"""PartitionedAppender: order kept, memory bounded, topics' settings honoured, nothing visible by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import AppendOptions, PartitionedAppender, SparkLog
from sparklog.client.rows import normalise_rows
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, StorageError, UnknownTopicError
from sparklog.format.batch_table import scan_batches
from sparklog.format.codec import Codec
from sparklog.storage import MemoryStore


def rows(count: int, *, start: int = 0, size: int = 20, keyed: bool = True) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    value = pa.array([b"%08d" % number + b"." * (size - 8) for number in numbers.tolist()])
    if not keyed:
        return pa.RecordBatch.from_pydict({"value": value})
    return pa.RecordBatch.from_pydict(
        {"key": pa.array([b"%d" % n for n in numbers.tolist()]), "value": value}
    )


def values_of(log: SparkLog, topic: str) -> list[list[bytes]]:
    return [
        log.read(topic, partition, 0)["value"].to_pylist() for partition in range(log.partition_count(topic))
    ]


def codecs_of(log: SparkLog, topic: str) -> set[Codec]:
    found = set()
    for state in log.image.topics[topic].partitions:
        for extent in state.extents:
            data = log.store.read(extent.segment, extent.position, extent.size)
            found |= {Codec(codec) for codec in scan_batches(data, where="test").codec.tolist()}
    return found


@pytest.mark.parametrize(
    "options",
    [
        AppendOptions(),
        AppendOptions(buffer_bytes=20_000, partition_bytes=5_000, batch_bytes=1000),
        AppendOptions(buffer_bytes=1, partition_bytes=1, batch_bytes=1),
    ],
)
def test_rows_of_a_partition_keep_their_order_whatever_the_buffers(
    log: SparkLog, options: AppendOptions
) -> None:
    log.create_topic("t", 3)
    with log.appender(options) as appender:
        for start in range(0, 2000, 100):
            appender.add(rows(100, start=start), "t")
        log.publish([appender.finish()])
    found = values_of(log, "t")
    assert sorted(value for part in found for value in part) == rows(2000)["value"].to_pylist()
    assert all(part == sorted(part) for part in found)
    assert all(len(part) > 500 for part in found)


def test_one_partition_written_alone_becomes_one_extent(log: SparkLog) -> None:
    log.create_topic("t", 1)
    with log.appender(AppendOptions(partition_bytes=5_000)) as appender:
        for start in range(0, 2000, 100):
            appender.add(rows(100, start=start), "t")
        staged = appender.finish()
    assert len(staged.drafts) == 1
    assert staged.record_count == 2000
    log.publish([staged])
    assert values_of(log, "t") == [rows(2000)["value"].to_pylist()]


def test_nothing_is_visible_before_it_is_published(log: SparkLog, other: SparkLog) -> None:
    log.create_topic("t", 1)
    with log.appender() as appender:
        appender.add(rows(10), "t")
        staged = appender.finish()
    assert other.log_end_offset("t", 0) == 0
    other.publish([staged])
    assert log.read("t", 0, 0).num_rows == 10


def test_a_few_waiting_rows_do_not_keep_more_than_the_budget_alive(log: SparkLog) -> None:
    log.create_topic("t", 2)
    appender = log.appender(AppendOptions(buffer_bytes=500_000, partition_bytes=100_000))
    partition = [0] * 999 + [1]
    for _ in range(20):
        wide = rows(1000, size=100).append_column("partition", pa.array(partition, pa.int32()))
        appender.add(wide, "t")
        assert held_bytes(appender) <= 500_000
    assert values_of(log, "t") == [[], []]
    log.publish([appender.finish()])
    assert [len(values) for values in values_of(log, "t")] == [19_980, 20]


@pytest.mark.parametrize("step", [1, 500])
def test_waiting_rows_stay_within_their_budget(log: SparkLog, step: int) -> None:
    log.create_topic("t", 8)
    appender = log.appender(AppendOptions(buffer_bytes=200_000, partition_bytes=100_000))
    most = 0
    for start in range(0, 40 * step, step):
        appender.add(rows(step, start=start, size=100), "t")
        most = max(most, held_bytes(appender) + 2048 * len(appender.waiting))
        assert most <= 200_000
    assert most > 80_000 - 1, "the test would not notice a larger budget"
    log.publish([appender.finish()])
    assert sum(map(len, values_of(log, "t"))) == 40 * step


def held_bytes(appender: PartitionedAppender) -> int:
    """The memory that waiting rows keep alive, each buffer once."""
    buffers = {
        data.ctypes.data: data.nbytes
        for piece in appender.waiting
        for column in (piece.key, piece.value)
        if column is not None
        for data in column.buffers
    }
    return sum(buffers.values())


def test_the_topic_column_decides_where_no_topic_is_given(log: SparkLog) -> None:
    names = ["b", "a", "b", "c", "a"]
    table = rows(5).append_column("topic", pa.array(names))
    with log.appender() as appender:
        appender.add(table)
        log.publish([appender.finish()])
    expected = rows(5)["value"].to_pylist()
    assert values_of(log, "a") == [[expected[1], expected[4]]]
    assert values_of(log, "b") == [[expected[0], expected[2]]]
    assert values_of(log, "c") == [[expected[3]]]


def test_a_row_without_topic_is_named(log: SparkLog) -> None:
    with pytest.raises(InvalidRequestError, match="row 1: found no topic"):
        log.appender().add(rows(3).append_column("topic", pa.array(["a", None, None])))
    with pytest.raises(InvalidRequestError, match="row 0: found no topic"):
        log.appender().add(rows(3))


@pytest.mark.parametrize(
    ("compression_type", "option", "expected"),
    [
        ("producer", "lz4", Codec.LZ4),
        ("producer", "none", Codec.NONE),
        ("zstd", "lz4", Codec.ZSTD),
        ("uncompressed", "lz4", Codec.NONE),
        ("gzip", "none", Codec.GZIP),
        ("snappy", "none", Codec.SNAPPY),
    ],
)
def test_the_topics_compression_beats_the_writers(
    log: SparkLog, compression_type: str, option: str, expected: Codec
) -> None:
    log.create_topic("t", 1, {"compression.type": compression_type})
    log.append("t", rows(500, keyed=False), compression_type=option)
    assert codecs_of(log, "t") == {expected}
    assert values_of(log, "t") == [rows(500)["value"].to_pylist()]


def test_log_append_time_replaces_the_writers_timestamps(log: SparkLog, clock: ManualClock) -> None:
    log.create_topic("t", 1, {"message.timestamp.type": "LogAppendTime"})
    log.append("t", rows(2, keyed=False).append_column("timestamp", pa.array([5, 6])))
    found = log.read("t", 0, 0)
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [clock.now_ms()] * 2
    assert found["timestamp_type"].to_pylist() == [1, 1]


def test_missing_timestamps_are_the_time_of_the_append(log: SparkLog, clock: ManualClock) -> None:
    log.append("t", rows(2, keyed=False).append_column("timestamp", pa.array([5, None])))
    found = log.read("t", 0, 0)
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [5, clock.now_ms()]
    assert found["timestamp_type"].to_pylist() == [0, 0]


def test_records_larger_than_max_message_bytes_are_refused(log: SparkLog) -> None:
    log.create_topic("t", 1, {"max.message.bytes": "1000"})
    log.append("t", rows(100, size=200))
    with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*t-0, among the rows.*row 1"):
        log.append("t", pa.table({"value": ["small", "x" * 2000]}))
    assert log.log_end_offset("t", 0) == 100


def test_topics_that_an_append_creates_get_the_settings_it_was_given(log: SparkLog) -> None:
    log.create_topic("old", 1)
    options = AppendOptions(topic_configs={"max.message.bytes": "5000000", "compression.type": "zstd"})
    with log.appender(options) as appender:
        for topic in ("new", "old"):
            appender.add(pa.table({"value": ["x" * 1000]}), topic=topic)
        appender.add(pa.table({"value": ["x" * 2_000_000]}), topic="new")
        log.publish([appender.finish()])
    assert log.describe_topic("new").configs == options.topic_configs
    assert log.describe_topic("old").configs == {}
    assert codecs_of(log, "new") == {Codec.ZSTD}
    with pytest.raises(InvalidRequestError, match="UNKNOWN_CONFIG"):
        log.appender(AppendOptions(topic_configs={"max.mesage.bytes": "1"}))


def test_a_partition_that_the_topic_does_not_have_is_named_with_the_topic(log: SparkLog) -> None:
    log.create_topic("t", 1)
    copied = rows(3).append_column("partition", pa.array([0, 1, 0], pa.int32()))
    message = "topic t, row 1: found partition 1, expected 0 to 0.*drop the column partition"
    with pytest.raises(InvalidRequestError, match=message):
        log.append("t", copied)


def test_options_may_lower_the_topics_limits_but_not_raise_them(log: SparkLog) -> None:
    log.create_topic("t", 1, {"max.message.bytes": "1000"})
    big = pa.table({"value": ["x" * 500]})
    for limit, refused in ((300, True), (5000, False)):
        with log.appender(AppendOptions(max_record_bytes=limit)) as appender:
            appender.add(big, "t")
            if refused:
                with pytest.raises(InvalidRequestError, match="RECORD_TOO_LARGE"):
                    appender.finish()
            else:
                appender.finish()
    with log.appender(AppendOptions(max_record_bytes=5000)) as appender:
        appender.add(pa.table({"value": ["x" * 2000]}), "t")
        with pytest.raises(InvalidRequestError, match="RECORD_TOO_LARGE"):
            appender.finish()


def test_a_missing_topic_is_refused_where_it_may_not_be_created(log: SparkLog) -> None:
    log.alter_root({"auto.create.topics.enable": "false"})
    with pytest.raises(UnknownTopicError, match=r"found no topic 'nope'.*auto\.create\.topics\.enable"):
        log.append("nope", rows(1))
    with log.appender(AppendOptions(auto_create_topics=True, num_partitions=3)) as appender:
        appender.add(rows(1), "yes")
        log.publish([appender.finish()])
    assert log.partition_count("yes") == 3


def test_an_error_leaves_nothing_but_unreferenced_bytes(log: SparkLog, store: MemoryStore) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".log"):
            raise StorageError("STORAGE_FULL", name, fix="free space")

    store.hook = hook
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        log.append("t", rows(10))
    assert log.topics() == []
    store.hook = None
    log.append("t", rows(10))
    assert log.log_end_offset("t", 0) == 10


def test_a_finished_or_failed_appender_is_not_used_again(log: SparkLog) -> None:
    def unusable(act: Callable[[], Any]) -> None:
        with pytest.raises(AssertionError, match="finished, failed or been aborted"):
            act()

    appender = log.appender()
    assert appender.finish().drafts == ()
    unusable(lambda: appender.add(rows(1), "t"))
    unusable(appender.finish)
    appender = log.appender()
    with pytest.raises(InvalidRequestError):
        appender.add(pa.table({"nope": [1]}), "t")
    unusable(appender.finish)


def test_headers_survive(log: SparkLog) -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    log.append("t", pa.table({"value": ["x", "y", "z"], "headers": pa.array(headers, kind)}))
    assert log.read("t", 0, 0, include_headers=True)["headers"].to_pylist() == [headers[0], None, None]
    assert "headers" not in log.read("t", 0, 0).column_names


def test_empty_rows_are_checked_and_publish_nothing(log: SparkLog) -> None:
    result = log.append("t", rows(0))
    assert (result.commit, result.record_count, log.topics()) == (None, 0, [])
    with pytest.raises(InvalidRequestError, match="unknown column"):
        log.append("t", pa.table({"nope": pa.array([], pa.string())}))


def test_an_extent_never_spans_more_records_than_an_index_can_count(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.client.appender.MAX_EXTENT_RECORDS", 250)
    log.create_topic("t", 1)
    with log.appender(AppendOptions(partition_bytes=1)) as appender:
        for start in range(0, 1000, 100):
            appender.add(rows(100, start=start), "t")
        staged = appender.finish()
    assert [draft.record_count for draft in staged.drafts] == [200] * 5
    log.publish([staged])
    assert values_of(log, "t") == [rows(1000)["value"].to_pylist()]


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_takes_no_record_without_a_key(log: SparkLog, policy: str) -> None:
    log.create_topic("t", 1, {"cleanup.policy": policy})
    log.create_topic("d", 1, {"cleanup.policy": "delete"})
    log.append("t", rows(3))
    some = pa.table({"key": pa.array(["a", None], pa.string()), "value": ["1", "2"], "topic": ["t", "t"]})
    for broken, row in ((rows(3, keyed=False), 0), (some, 1)):
        with pytest.raises(
            InvalidRequestError, match=f"row {row}: found no key, .* compacted .*{policy}"
        ) as info:
            log.append("t", broken)
        assert info.value.code == "INVALID_ROWS"
        log.append("d", broken)
    log.append("t", rows(0, keyed=False))
    log.append("t", pa.table({"key": ["a"], "value": pa.array([None], pa.string())}))  # a tombstone
    assert log.log_end_offset("t", 0) == 4
    assert log.log_end_offset("d", 0) == 5


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_small_partitions_are_encoded_together(
    log: SparkLog, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And hold, byte for byte, what each would hold by itself."""
    log.create_topic("t", 40)
    log.create_topic("alone", 40)
    timed = rows(400, size=60).append_column("timestamp", pa.array(range(400)))
    log.append("t", timed, compression_type=codec)
    with monkeypatch.context() as patch:
        patch.setattr("sparklog.client.appender.encode_partitions", lambda *_: None)
        log.append("alone", timed, compression_type=codec)
    calls = []
    monkeypatch.setattr("sparklog.client.appender.encode_batches", lambda *_: calls.append(1))
    log.append("t", timed, compression_type=codec)
    assert calls == []
    assert all(
        values == 2 * alone
        for values, alone in zip(values_of(log, "t"), values_of(log, "alone"), strict=True)
    )
    for together, alone in zip(
        log.image.topics["t"].partitions, log.image.topics["alone"].partitions, strict=True
    ):
        stored = [
            log.store.read(state.extents[0].segment, state.extents[0].position, state.extents[0].size)
            for state in (together, alone)
        ]
        assert stored[0] == stored[1]


def test_a_record_that_is_too_large_is_named_with_its_partition_among_many(log: SparkLog) -> None:
    log.create_topic("t", 9, {"max.message.bytes": "1000"})
    table = rows(90).append_column("partition", pa.array([n % 9 for n in range(90)], pa.int32()))
    wide = pa.table({"value": ["x" * 2000], "key": ["k"], "partition": pa.array([4], pa.int32())})
    with log.appender() as appender:
        appender.add(table, "t")
        appender.add(wide, "t")
        with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*t-4, among the rows.*row 10:"):
            appender.finish()
    assert log.image.topics["t"].partitions[0].log_end_offset == 0


def test_rows_that_share_a_value_are_taken_a_few_at_a_time(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary of a megabyte may be gigabytes of records."""
    taken: list[int] = []

    def normalise(part: pa.RecordBatch) -> Any:
        taken.append(part.num_rows)
        return normalise_rows(part)

    monkeypatch.setattr("sparklog.client.appender.normalise_rows", normalise)
    value = np.random.default_rng(1).bytes(1 << 19)
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20, np.int32)), pa.array([value]))
    log.create_topic("t", 4)
    with log.appender() as appender:
        appender.add(pa.table({"value": column, "partition": [row % 4 for row in range(20)]}), "t")
        log.publish([appender.finish()])
    assert max(taken) <= 8
    assert values_of(log, "t") == [[value] * 5] * 4


def test_a_large_record_that_shrinks_goes_with_many_small_ones(log: SparkLog) -> None:
    log.create_topic("t", 9, {"max.message.bytes": "1000"})
    table = rows(90).append_column("partition", pa.array([n % 9 for n in range(90)], pa.int32()))
    wide = pa.table({"value": ["x" * 2000], "key": ["k"], "partition": pa.array([4], pa.int32())})
    with log.appender(AppendOptions(compression="zstd")) as appender:
        appender.add(table, "t")
        appender.add(wide, "t")
        log.publish([appender.finish()])
    assert [len(values) for values in values_of(log, "t")] == [10, 10, 10, 10, 11, 10, 10, 10, 10]
    assert values_of(log, "t")[4][-1] == b"x" * 2000
