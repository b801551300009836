"""The log against a model: dicts of lists. Random appends, reads and reopenings, all codecs."""

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import sparklog
from sparklog.client import AppendOptions, SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import MergeLimits, optimize

PARTITIONS = 3
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]

keys = st.none() | st.binary(max_size=20)
values = st.none() | st.binary(max_size=200) | st.integers(1, 3000).map(lambda size: b"z" * size)
headers = st.none() | st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), min_size=1, max_size=3
)
times = st.integers(0, 1_700_000_000_000)
rows = st.lists(
    st.tuples(keys, values, times, headers, st.integers(0, PARTITIONS - 1)), min_size=1, max_size=30
)


def table(given: list[Any]) -> pa.Table:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    listed = [
        None if row[3] is None else [{"key": key, "value": value} for key, value in row[3]] for row in given
    ]
    return pa.table(
        {
            "key": pa.array([row[0] for row in given], pa.binary()),
            "value": pa.array([row[1] for row in given], pa.binary()),
            "timestamp": pa.array([row[2] for row in given], pa.int64()),
            "headers": pa.array(listed, kind),
            "partition": pa.array([row[4] for row in given], pa.int32()),
        }
    )


def unpacked(found: pa.Table) -> list[tuple[int, Row]]:
    times_ms = found["timestamp"].cast(pa.int64()).to_pylist()
    return [
        (
            row["offset"],
            (
                row["key"],
                row["value"],
                time_ms,
                None if row["headers"] is None else [(one["key"], one["value"]) for one in row["headers"]],
            ),
        )
        for row, time_ms in zip(found.to_pylist(), times_ms, strict=True)
    ]


class LogAgainstModel(RuleBasedStateMachine):
    """`model[topic][partition]` is the list of rows; an offset is an index into it."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"memory://model-{uuid.uuid4().hex}"
        self.model: dict[str, list[list[Row]]] = {}
        self.versions: dict[str, int] = {}
        self.log: SparkLog = self.opened()

    def opened(self) -> SparkLog:
        return sparklog.open(self.url, clock=ManualClock())

    @initialize(segment_bytes=st.sampled_from([14, 2_000, 1 << 30]), interval=st.sampled_from([0, 100, 4096]))
    def configure(self, segment_bytes: int, interval: int) -> None:
        self.log.alter_root(
            {
                "segment.bytes": str(segment_bytes),
                "index.interval.bytes": str(interval),
                "num.partitions": str(PARTITIONS),
            }
        )

    def expect(self, topic: str, given: list[Any]) -> None:
        partitions = self.model.setdefault(topic, [[] for _ in range(PARTITIONS)])
        for key, value, time_ms, header, partition in given:
            partitions[partition].append((key, value, time_ms, header))

    @rule(topic=st.sampled_from(["a", "b"]), given=rows, codec=st.sampled_from(CODECS))
    def append(self, topic: str, given: list[Any], codec: str) -> None:
        result = self.log.append(topic, table(given), compression_type=codec)
        self.expect(topic, given)
        for partition, appended in result.partitions.items():
            assert appended.end_offset == len(self.model[topic][partition])

    @rule(given=rows, codec=st.sampled_from(CODECS), buffer=st.sampled_from([1, 500, 1 << 20]))
    def append_through_small_buffers(self, given: list[Any], codec: str, buffer: int) -> None:
        options = AppendOptions(
            compression=codec, buffer_bytes=buffer, partition_bytes=buffer, batch_bytes=buffer
        )
        with self.log.appender(options) as appender:
            appender.add(table(given[: len(given) // 2]), "a")
            appender.add(table(given[len(given) // 2 :]), "a")
            self.log.publish([appender.finish()])
        self.expect("a", given)

    @rule(given=rows, again=st.booleans())
    def append_once(self, given: list[Any], again: bool) -> None:
        version = self.versions.get("app", -1) + (0 if again and self.versions else 1)
        result = self.log.append("a", table(given), txn=("app", version))
        assert result.duplicate == (again and bool(self.versions))
        if not result.duplicate:
            self.expect("a", given)
        self.versions["app"] = version

    @rule(
        fan_in=st.none() | st.integers(2, 4),
        target_bytes=st.none() | st.integers(100, 5_000),
        shared_bytes=st.sampled_from([0, 300, 1 << 20]),
    )
    def merge(self, fan_in: int | None, target_bytes: int | None, shared_bytes: int) -> None:
        limits = MergeLimits(fan_in=fan_in, target_bytes=target_bytes, shared_bytes=shared_bytes)
        report = optimize(self.log.metadata, ManualClock(), limits=limits)
        assert not any(topic.left_out for topic in report.topics.values())

    @rule(given=rows)
    def abort(self, given: list[Any]) -> None:
        with self.log.appender() as appender:
            appender.add(table(given), "a")

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.opened()

    @rule(
        topic=st.sampled_from(["a", "b"]),
        partition=st.integers(0, PARTITIONS - 1),
        start=st.floats(0, 1),
        max_records=st.none() | st.integers(1, 40),
        max_bytes=st.none() | st.integers(1, 4000),
    )
    def read(
        self, topic: str, partition: int, start: float, max_records: int | None, max_bytes: int | None
    ) -> None:
        if topic not in self.model:
            return
        expected = self.model[topic][partition]
        at = round(start * len(expected))
        found = unpacked(
            self.log.read(
                topic, partition, at, max_records=max_records, max_bytes=max_bytes, include_headers=True
            )
        )
        assert found == list(enumerate(expected))[at : at + len(found)]
        sizes = np.cumsum([len(row[0] or b"") + len(row[1] or b"") for row in expected[at:]])
        allowed = len(expected) - at if max_records is None else min(max_records, len(expected) - at)
        if max_bytes is not None and allowed:
            allowed = min(allowed, max(1, int((sizes <= max_bytes).sum())))
        # A limit reached exactly may leave out records of no size that follow.
        assert len(found) == allowed or (max_bytes is not None and sizes[len(found) - 1] >= max_bytes)

    @rule(
        topic=st.sampled_from(["a", "b"]),
        partition=st.integers(0, PARTITIONS - 1),
        ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    )
    def read_range(self, topic: str, partition: int, ends: tuple[float, float]) -> None:
        if topic not in self.model:
            return
        expected = list(enumerate(self.model[topic][partition]))
        start, end = sorted(round(one * len(expected)) for one in ends)
        found: list[tuple[int, Row]] = []
        for part in self.log.read_batches(topic, partition, start, end, include_headers=True):
            found += unpacked(pa.Table.from_batches([part]))
        assert found == expected[start:end]

    @rule(topic=st.sampled_from(["a", "b"]), partition=st.integers(0, PARTITIONS - 1), time_ms=times)
    def look_up_time(self, topic: str, partition: int, time_ms: int) -> None:
        if topic in self.model:
            expected = next(
                (offset for offset, row in enumerate(self.model[topic][partition]) if row[2] >= time_ms), None
            )
            assert self.log.offset_for_time(topic, partition, time_ms) == expected

    @invariant()
    def ends_are_the_models(self) -> None:
        for topic, partitions in self.model.items():
            for partition, expected in enumerate(partitions):
                assert self.log.log_end_offset(topic, partition) == len(expected)


TestLogAgainstModel = LogAgainstModel.TestCase
TestLogAgainstModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
