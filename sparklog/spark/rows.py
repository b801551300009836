"""The rows of the source (schema.py), as Arrow batches.

Cost matters here: every record passes through. Columns that are constant within a chunk (topic,
partition, timestampType) are made once per task and sliced, never rebuilt.
"""

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format.decode import DecodedRecords

logger = logging.getLogger("sparklog.spark")
_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
# A record may have any 64 bits of milliseconds; Spark's timestamps are as many microseconds, and end in the
# year 294247. What lies beyond is shown as that end, rather than as some other time, and with a warning.
_MOST_MS = (2**63 - 1) // 1000


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The schema in Arrow, exactly as Spark expects it from a Python source."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(pa.field("headers", _HEADERS_TYPE))
    return pa.schema(fields)


class RowBuilder:
    """Turns decoded records of one partition into the source's rows."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = arrow_schema(include_headers=include_headers)
        self._include_headers = include_headers
        self._topic, self._partition = topic, partition
        self._has_warned = False
        self._topics: pa.Array = pa.array([], pa.string())
        self._partitions: pa.Array = pa.array([], pa.int32())

    def rows(self, records: DecodedRecords) -> pa.RecordBatch:
        """One Arrow batch with as many rows as there are records."""
        count = records.num_rows
        if count > len(self._topics):
            self._topics = pa.repeat(pa.scalar(self._topic, pa.string()), count)
            self._partitions = pa.repeat(pa.scalar(self._partition, pa.int32()), count)
        timestamps_us = pa.array(self._shown_ms(records) * 1000, pa.int64())
        columns = [
            records.key,
            records.value,
            self._topics.slice(0, count),
            self._partitions.slice(0, count),
            pa.array(records.offset, pa.int64()),
            timestamps_us.view(pa.timestamp("us", tz="UTC")),
            pa.array(records.timestamp_type.astype(np.int32, copy=False), pa.int32()),
        ]
        if self._include_headers:
            columns.append(self._headers(records.headers, count))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _shown_ms(self, records: DecodedRecords) -> npt.NDArray[np.int64]:
        """The timestamps, as far as Spark has them; the first one that it has not is logged."""
        times_ms = records.timestamp_ms
        beyond = (times_ms > _MOST_MS) | (times_ms < -_MOST_MS)
        if not beyond.any():
            return times_ms
        if not self._has_warned:
            self._has_warned = True
            at = int(beyond.argmax())
            logger.warning(
                "%s-%d: the record at offset %d has the timestamp %d ms, and Spark's timestamps end at %d "
                "ms: this and others beyond read as that end. Is the record's timestamp in microseconds?",
                self._topic,
                self._partition,
                records.offset[at],
                times_ms[at],
                _MOST_MS,
            )
        return np.clip(times_ms, -_MOST_MS, _MOST_MS)

    @staticmethod
    def _headers(headers: pa.Array | None, count: int) -> pa.Array:
        if headers is None:
            return pa.nulls(count, _HEADERS_TYPE)
        return headers.cast(_HEADERS_TYPE)


def to_rows(
    decoded: Iterator[DecodedRecords], topic: str, partition: int, *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Rows for each non-empty chunk of records, in order."""
    builder = RowBuilder(topic, partition, include_headers=include_headers)
    for records in decoded:
        if records.num_rows:
            yield builder.rows(records)
