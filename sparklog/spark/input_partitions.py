"""Input partitions: planned on the driver, pickled to an executor, read there without metadata.

A plan has byte ranges, so executors only open the storage. But a job may run for hours; its extents may be
merged or expire, and their files be removed. A task that misses a file opens the metadata log and plans the
rest of its offsets again (log/partition_reader.py). Expired offsets and deleted topics are subject to
failOnDataLoss.
Memory of a task is bounded by the reader's step, whatever the range's size (log/reader.py).
"""

import logging
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sparklog.client import SparkLog
from sparklog.errors import UnknownTopicError
from sparklog.format.decode import DecodedRecords
from sparklog.log.partition_reader import Newest, PartitionReader
from sparklog.log.read_plan import RangePlan
from sparklog.metadata import Image, PartitionState
from sparklog.spark.notices import prepare_worker
from sparklog.spark.options import SourceOptions
from sparklog.spark.ranges import (
    DataLossPolicy,
    OffsetRange,
    balance,
    join_neighbours,
    join_small,
    partition_state,
    split_ranges,
)
from sparklog.spark.roots import StorageOptions, open_root
from sparklog.spark.rows import to_rows
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
    log: SparkLog, image: Image, ranges: Sequence[OffsetRange], options: SourceOptions
) -> list[InputPartition]:
    """Return the tasks that read these ranges, in order.

    minPartitions, maxPartitions and maxRecordsPerPartition decide how ranges are split and joined; without
    them, the number of tasks that run at the same time, if it is known (task_slots.py).

    Args:
        image: the image of the ranges. The log's own may be refreshed during planning, and have another topic
            of the same name, or none.
    """
    max_records = options.max_records_per_partition
    pieces = split_ranges(ranges, min_partitions=options.min_partitions, max_records=max_records)
    loss = DataLossPolicy(fail=options.fail_on_data_loss)
    places = {r: _plan(log, image, r, loss) for r in pieces}
    if options.min_partitions is None and options.max_partitions is None:
        sizes = [(r, places[r].size_bytes) for r in pieces]
        if options.task_slots is None:
            tasks = join_small(sizes, max_records=max_records)
        else:
            tasks = balance(sizes, slots=options.task_slots, max_records=max_records)
        if len(tasks) < len(pieces):
            logger.info("%d ranges are read in %d tasks", len(pieces), len(tasks))
    else:
        tasks = join_neighbours(pieces, max_partitions=options.max_partitions, max_records=max_records)
    return [
        SparklogInputPartition(
            log.url, [(r, places[r]) for r in task], include_headers=options.include_headers
        )
        for task in tasks
    ]


def read_input_partition(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an input partition, each topic's partition in offset order. Runs on executors."""
    if not isinstance(partition, SparklogInputPartition):
        # Spark passes an empty partition if there is nothing to read.
        return
    prepare_worker()
    key = (os.getpid(), partition.root, options.storage)
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = open_store(partition.root, storage_options=options.storage.to_dict())
    loss = DataLossPolicy(fail=options.fail_on_data_loss)
    for offsets, plan in partition.parts:
        decoded = _read(store, partition.root, offsets, plan, options, loss)
        yield from to_rows(
            decoded, offsets.topic, offsets.partition, include_headers=partition.include_headers
        )


def _read(
    store: Store, root: str, r: OffsetRange, plan: RangePlan, options: SourceOptions, loss: DataLossPolicy
) -> Iterator[DecodedRecords]:
    """Yield the records of a range, as planned, or by a newer image if files are missing."""

    def newest() -> PartitionState:
        log = open_root(root, create=False, storage=options.storage, rules=options.rules)
        return log.refresh(force=True).partition_of(plan.topic_id, r.partition)

    reader = _reader(store, newest, r, loss)
    try:
        yield from reader.read(
            r.start_offset, r.end_offset, plan=plan, include_headers=options.include_headers
        )
    except UnknownTopicError as error:
        loss.report(error.message)


def _reader(
    store: Store,
    newest: Newest,
    r: OffsetRange,
    loss: DataLossPolicy,
    state: PartitionState | None = None,
) -> PartitionReader:
    def on_expired(start: int, end: int) -> None:
        loss.report(f"{r.topic}-{r.partition}: offsets {start} to {end} expired while they were read")

    return PartitionReader(
        store, newest, topic=r.topic, partition=r.partition, state=state, on_expired=on_expired
    )


def _plan(log: SparkLog, image: Image, r: OffsetRange, loss: DataLossPolicy) -> RangePlan:
    state = partition_state(image, (r.topic, r.partition))

    def newest() -> PartitionState:
        return log.refresh(force=True).partition_of(state.topic_id, r.partition)

    try:
        return _reader(log.store, newest, r, loss, state).plan(r.start_offset, r.end_offset)
    except UnknownTopicError as error:
        loss.report(error.message)
        return RangePlan(topic=r.topic, topic_id=state.topic_id, partition=r.partition)
