"""What a task reads: planned on the driver, carried to an executor, read there without metadata.

Executors open only the storage. Memory of a task is bounded by the reader's step, whatever the
range's size (log/reader.py).
"""

import logging
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sparklog.client import SparkLog
from sparklog.log.range_plan import RangePlan
from sparklog.log.reader import plan_read, read_ranges
from sparklog.spark.options import SourceOptions
from sparklog.spark.ranges import OffsetRange, join_neighbours, join_small, split_ranges
from sparklog.spark.resolve import partition_state
from sparklog.spark.rows import to_rows
from sparklog.spark.storage_options import NO_STORAGE_OPTIONS, StorageOptions
from sparklog.spark.workers import settle_in
from sparklog.storage import Store, open_store

logger = logging.getLogger("sparklog.spark")
_stores: dict[tuple[int, str, StorageOptions], Store] = {}


class SparklogInputPartition(InputPartition):
    """Offsets [start_offset, end_offset) of one or more partitions, and the byte ranges that hold them;
    picklable.
    """

    def __init__(
        self, root: str, parts: list[tuple[OffsetRange, RangePlan]], *, include_headers: bool
    ) -> None:
        super().__init__(None)
        self.root = root
        self.parts = parts
        self.include_headers = include_headers

    def __repr__(self) -> str:
        offsets = (f"{o.topic}-{o.partition} [{o.start_offset}, {o.end_offset})" for o, _ in self.parts)
        return f"SparklogInputPartition({', '.join(offsets)})"


def plan_input_partitions(
    log: SparkLog, ranges: Sequence[OffsetRange], options: SourceOptions
) -> list[InputPartition]:
    """The tasks that read these ranges, cut and put together as minPartitions, maxPartitions and
    maxRecordsPerPartition say; in the order of the ranges.
    """
    max_records = options.max_records_per_partition
    pieces = split_ranges(ranges, min_partitions=options.min_partitions, max_records=max_records)
    places = {r: _byte_ranges(log, r) for r in pieces}
    if options.min_partitions is None and options.max_partitions is None:
        sizes = [(r, places[r].size_bytes) for r in pieces]
        tasks = join_small(sizes, max_records=max_records)
        if len(tasks) < len(pieces):
            logger.info("%d partitions with little in each are read in %d tasks", len(pieces), len(tasks))
    else:
        tasks = join_neighbours(pieces, max_partitions=options.max_partitions, max_records=max_records)
    return [
        SparklogInputPartition(
            log.url, [(r, places[r]) for r in task], include_headers=options.include_headers
        )
        for task in tasks
    ]


def read_input_partition(
    partition: InputPartition, storage: StorageOptions = NO_STORAGE_OPTIONS
) -> Iterator[pa.RecordBatch]:
    """The rows of an input partition, those of each topic's partition in offset order. Runs on executors."""
    if not isinstance(partition, SparklogInputPartition):
        # Spark makes up an empty partition when there is nothing to read.
        return
    settle_in()
    key = (os.getpid(), partition.root, storage)
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = open_store(partition.root, storage_options=storage.to_dict())
    for offsets, byte_ranges in partition.parts:
        decoded = read_ranges(store, byte_ranges, include_headers=partition.include_headers)
        yield from to_rows(
            decoded, offsets.topic, offsets.partition, include_headers=partition.include_headers
        )


def _byte_ranges(log: SparkLog, r: OffsetRange) -> RangePlan:
    state = partition_state(log.image, (r.topic, r.partition))
    return plan_read(log.store, state, r.start_offset, r.end_offset, topic=r.topic)
