"""A log in memory with a topic `t` of two partitions, written by many small appends."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import ManualClock
from sparklog.metadata import Extent, MetadataLog
from sparklog.storage import MemoryStore

Append = Callable[..., None]
Put = Callable[..., None]
Pair = tuple[bytes | None, bytes | None]


@pytest.fixture
def log(memory_or_s3: MemoryStore) -> SparkLog:
    clock = ManualClock()
    log = SparkLog(memory_or_s3, MetadataLog.open(memory_or_s3, clock, create=True), clock)
    log.create_topic("t", 2)
    return log


@pytest.fixture
def tmp_path_log(tmp_path: Path) -> Iterator[SparkLog]:
    """An empty log in a directory, whose names can be held."""
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture
def append(log: SparkLog) -> Append:
    """Append values, one extent a call."""

    def add(
        values: Sequence[bytes],
        *,
        topic: str = "t",
        partition: int = 0,
        times_ms: Sequence[int] | None = None,
        compression: str = "none",
    ) -> None:
        columns = {"value": pa.array(values, pa.binary())}
        if times_ms is not None:
            columns["timestamp"] = pa.array(times_ms, pa.int64())
        log.append(topic, pa.table(columns), partition=partition, compression_type=compression)

    return add


@pytest.fixture
def four(log: SparkLog, append: Append) -> SparkLog:
    """Two topics of two partitions, each with three extents in a segment of its own."""
    log.create_topic("a", 2)
    for topic in ("a", "t"):
        for partition in range(2):
            for number in range(3):
                append([b"%d" % number], topic=topic, partition=partition)
            log.close()
    return log


@pytest.fixture
def clock(log: SparkLog) -> ManualClock:
    assert isinstance(log.clock, ManualClock)
    return log.clock


@pytest.fixture
def table(log: SparkLog) -> SparkLog:
    log.create_topic("table", 2, {"cleanup.policy": "compact"})
    return log


@pytest.fixture
def put(table: SparkLog) -> Put:
    """One extent a call, of now."""

    def add(*pairs: Pair, partition: int = 0, topic: str = "table", compression: str = "none") -> None:
        columns = {
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
            "timestamp": pa.array([table.clock.now_ms()] * len(pairs), pa.int64()),
        }
        table.append(topic, pa.table(columns), partition=partition, compression_type=compression)

    return add


def records(log: SparkLog, topic: str = "t", partition: int = 0) -> list[tuple[int, bytes, int]]:
    """(offset, value, timestamp in ms) of everything."""
    log.refresh()
    found = log.read(topic, partition, log.log_start_offset(topic, partition))
    times = found["timestamp"].cast(pa.int64()).to_pylist()
    return list(zip(found["offset"].to_pylist(), found["value"].to_pylist(), times, strict=True))


def extents(log: SparkLog, topic: str = "t", partition: int = 0) -> list[Extent]:
    """Of a partition, as of now."""
    return list(log.refresh().partition(topic, partition).extents)
