"""Reading a partition as Arrow tables, in bounded memory.

Columns: key, value, topic, partition, offset, timestamp, timestamp_type, and optionally headers: the names
    and meanings of Spark's Kafka source, with timestamps in milliseconds, UTC.
Invariants: offsets ascend; a read returns at least one record if there is one, whatever the limits. Reads use
    the given image, and a newer one only if files were deleted (log/partition_reader.py).
Not here: groups (groups.py), following the log (the caller refreshes).
Concurrency: any number of threads.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError
from sparklog.format.decode import DecodedRecords
from sparklog.format.schema import HEADERS_TYPE
from sparklog.log.partition_reader import PartitionReader
from sparklog.log.read_plan import validate_range
from sparklog.log.reader import STEP_BYTES
from sparklog.metadata import Image, MetadataLog

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS_TYPE))
_FIRST_WINDOW_OFFSETS = 1 << 16


def partition_reader(
    metadata: MetadataLog, image: Image, topic: str, partition: int, *, skip_expired: bool = False
) -> PartitionReader:
    """Return a reader of the partition as it is in the image.

    Args:
        skip_expired: skip offsets that expire before they are read, instead of raising OFFSET_OUT_OF_RANGE.
    """
    state = image.partition(topic, partition)
    return PartitionReader(
        metadata.store,
        lambda: metadata.refresh(force=True).partition_of(state.topic_id, partition),
        topic=topic,
        partition=partition,
        state=state,
        on_expired=_ignore_expired if skip_expired else None,
    )


def _ignore_expired(_start: int, _end: int) -> None:
    pass


def read_batches(
    metadata: MetadataLog,
    image: Image,
    topic: str,
    partition: int,
    *,
    start_offset: int | None = None,
    end_offset: int | None = None,
    include_headers: bool = False,
    skip_expired: bool = False,
    step_bytes: int = STEP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of [start_offset, end_offset) in batches; by default all records of the image.

    Args:
        skip_expired: as partition_reader.

    Raises:
        OffsetOutOfRangeError: before the first batch, if an offset is outside the log; later, if offsets
            have expired before they were read.
        UnknownTopicError, DataLossError, CorruptLogError.
    """
    reader = partition_reader(metadata, image, topic, partition, skip_expired=skip_expired)
    start = reader.state.log_start_offset if start_offset is None else start_offset
    end = reader.state.log_end_offset if end_offset is None else end_offset
    plan = reader.plan(start, end)
    decoded = reader.read(start, end, plan=plan, include_headers=include_headers, step_bytes=step_bytes)
    return (to_arrow_batch(records, topic, partition, include_headers=include_headers) for records in decoded)


def read_table(
    metadata: MetadataLog,
    image: Image,
    topic: str,
    partition: int,
    start_offset: int,
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    include_headers: bool = False,
) -> pa.Table:
    """Return records from `start_offset` on, up to a limit; an empty table only at the log's end.

    Args:
        max_records: None: no limit.
        max_bytes: of keys and values, approximate; at least one record is returned.
    """
    for name, limit in (("max_records", max_records), ("max_bytes", max_bytes)):
        if limit is not None and limit < 1:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{name}: found {limit}, expected at least 1",
                fix=f"raise {name}, or omit it",
            )
    reader = partition_reader(metadata, image, topic, partition)
    log_end_offset = reader.state.log_end_offset
    validate_range(topic, reader.state, start_offset, log_end_offset)
    limits = _Limits(max_records, max_bytes)
    step_bytes = STEP_BYTES if max_bytes is None else min(STEP_BYTES, max(64 * 1024, max_bytes))
    window = max_records if max_records is not None else log_end_offset - start_offset
    if max_bytes is not None:
        window = min(window, _FIRST_WINDOW_OFFSETS)
    start = start_offset
    while start < log_end_offset and not limits.reached():
        end = min(start + max(1, window), log_end_offset)
        for records in reader.read(start, end, include_headers=include_headers, step_bytes=step_bytes):
            limits.take(to_arrow_batch(records, topic, partition, include_headers=include_headers))
            if limits.reached():
                break
        start = end
        window *= 2  # gaps (compaction) may leave a window without records
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    return pa.Table.from_batches(limits.taken, schema)


class _Limits:
    """Collects batches until a limit is reached; slices the last one."""

    def __init__(self, max_records: int | None, max_bytes: int | None) -> None:
        self.taken: list[pa.RecordBatch] = []
        self._reached = False
        self._records_left = max_records
        self._bytes_left = max_bytes

    def reached(self) -> bool:
        return self._reached

    def take(self, arrow_batch: pa.RecordBatch) -> None:
        rows = arrow_batch.num_rows
        if self._records_left is not None:
            rows = min(rows, self._records_left)
            self._records_left -= rows
            self._reached = self._records_left == 0
        if self._bytes_left is not None:
            ends = np.cumsum(_row_bytes(arrow_batch))
            fitting = int(ends.searchsorted(self._bytes_left, "right"))
            if fitting < rows:
                rows = max(fitting, 0 if self.taken else 1)
                self._reached = True
            self._bytes_left -= int(ends[rows - 1]) if rows else 0
            self._reached = self._reached or self._bytes_left <= 0
        if rows:
            self.taken.append(arrow_batch.slice(0, rows))


def _row_bytes(arrow_batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    total = np.zeros(arrow_batch.num_rows, np.int64)
    for name in ("key", "value"):
        lengths = pc.binary_length(arrow_batch.column(name)).fill_null(0)
        total += lengths.to_numpy(zero_copy_only=False)
    return total


def to_arrow_batch(
    records: DecodedRecords, topic: str, partition: int, *, include_headers: bool
) -> pa.RecordBatch:
    """Return decoded records with the columns of SCHEMA."""
    rows = records.num_rows
    name = topic.encode()
    ends = np.array([0, len(name)], np.int32)
    topics = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(name))
    columns = [
        records.key,
        records.value,
        pa.repeat(topics[0], rows),
        _numbers(np.full(rows, partition), np.int32, pa.int32()),
        _numbers(records.offset, np.int64, pa.int64()),
        _numbers(records.timestamp_ms, np.int64, pa.timestamp("ms", "UTC")),
        _numbers(records.timestamp_type, np.int32, pa.int32()),
    ]
    if include_headers:
        columns.append(pa.nulls(rows, HEADERS_TYPE) if records.headers is None else records.headers)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS if include_headers else SCHEMA)


def _numbers(values: npt.NDArray[Any], kind: type, arrow_type: pa.DataType) -> pa.Array:
    """Numbers as a column. pa.array() and pa.scalar() would import pandas: 0.2 s, where it is installed."""
    return pa.Array.from_buffers(
        arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values, kind))]
    )
