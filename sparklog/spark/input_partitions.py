"""What a task reads: planned on the driver, carried to an executor, read there without metadata.

Executors open only the storage. Memory of a task is bounded by the reader's step, whatever the
range's size (log/reader.py).
"""

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sparklog.client import SparkLog
from sparklog.log.reader import ByteRange, plan_read, read_ranges
from sparklog.spark.ranges import OffsetRange
from sparklog.spark.resolve import partition_state
from sparklog.spark.rows import to_rows
from sparklog.spark.storage_options import NO_STORAGE_OPTIONS, StorageOptions
from sparklog.spark.workers import settle_in
from sparklog.storage import Store, open_store

_stores: dict[tuple[int, str, StorageOptions], Store] = {}


class SparklogInputPartition(InputPartition):
    """Byte ranges that hold the offsets [start_offset, end_offset) of one partition; picklable."""

    def __init__(
        self, root: str, offsets: OffsetRange, byte_ranges: list[ByteRange], *, include_headers: bool
    ) -> None:
        super().__init__(None)
        self.root = root
        self.offsets = offsets
        self.byte_ranges = byte_ranges
        self.include_headers = include_headers

    def __repr__(self) -> str:
        o = self.offsets
        return f"SparklogInputPartition({o.topic}-{o.partition} [{o.start_offset}, {o.end_offset}))"


def plan_input_partitions(
    log: SparkLog, ranges: Sequence[OffsetRange], *, include_headers: bool
) -> list[InputPartition]:
    """One input partition per range, in the order of the ranges."""
    return [
        SparklogInputPartition(
            log.url,
            r,
            plan_read(
                log.store,
                partition_state(log.image, (r.topic, r.partition)),
                r.start_offset,
                r.end_offset,
                topic=r.topic,
            ),
            include_headers=include_headers,
        )
        for r in ranges
    ]


def read_input_partition(
    partition: InputPartition, storage: StorageOptions = NO_STORAGE_OPTIONS
) -> Iterator[pa.RecordBatch]:
    """The rows of an input partition, in offset order. Runs on executors; stateless."""
    if not isinstance(partition, SparklogInputPartition):
        # Spark makes up an empty partition when there is nothing to read.
        return
    settle_in()
    key = (os.getpid(), partition.root, storage)
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = open_store(partition.root, storage_options=storage.to_dict())
    decoded = read_ranges(store, partition.byte_ranges, include_headers=partition.include_headers)
    yield from to_rows(
        decoded,
        partition.offsets.topic,
        partition.offsets.partition,
        include_headers=partition.include_headers,
    )
