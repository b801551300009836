"""What a compacted topic holds, and rounds of compaction by hand."""

import pickle  # noqa: TID251 - as a Spark task would get it

from sparklog.client import SparkLog
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.maintenance import CompactionLimits
from sparklog.maintenance.choose import choose_compactions
from sparklog.maintenance.compaction import CompactionResult, run_compaction
from sparklog.metadata import Cleaned
from tests.maintenance.conftest import extents

DUE = CompactionLimits(only_due=True)


def left(
    log: SparkLog, partition: int = 0, topic: str = "table"
) -> list[tuple[int, bytes | None, bytes | None]]:
    log.refresh()
    found = log.read(topic, partition, log.log_start_offset(topic, partition))
    columns = (found["offset"], found["key"], found["value"])
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def cleaned(log: SparkLog, partition: int = 0) -> Cleaned:
    return log.refresh().partition("table", partition).cleaned


def stored(log: SparkLog, partition: int = 0) -> BatchTable:
    (extent,) = extents(log, "table", partition)
    return scan_batches(log.store.read(extent.segment, extent.position, extent.size), where="test")


def due(log: SparkLog, limits: CompactionLimits = DUE) -> list[int]:
    """Partitions, the filthiest first."""
    return [work.partition for work in choose_compactions(log.refresh(), log.clock.now_ms(), limits)]


def prepared(log: SparkLog, step_bytes: int = 1 << 20) -> CompactionResult:
    """A round that is done, and not published."""
    (work,) = choose_compactions(log.refresh(), log.clock.now_ms(), CompactionLimits())
    return run_compaction(log.store, log.clock, pickle.loads(pickle.dumps(work)), step_bytes=step_bytes)
