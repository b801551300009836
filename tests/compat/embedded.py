"""What lies in a root, read by `sparklog` itself: records as a consumer would see them, and batch headers."""

from typing import Any

import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.format.record_batch import BatchHeader, parse_header
from sparklog.log.reader import plan_read
from tests.compat.clients import Seen


def stored_records(log: SparkLog, topic: str, partition: int = 0) -> list[Seen]:
    """All records of a partition; their offsets are dense."""
    rows: list[dict[str, Any]] = []
    for batch in log.read_batches(topic, partition, include_headers=True):
        column = batch.schema.get_field_index("timestamp")
        times = batch.column(column).cast(pa.int64())
        rows += batch.set_column(column, "timestamp", times).to_pylist()
    start = log.log_start_offset(topic, partition)
    assert [row["offset"] for row in rows] == list(range(start, log.log_end_offset(topic, partition)))
    return [
        Seen(
            partition=row["partition"],
            offset=row["offset"],
            timestamp_ms=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for row in rows
    ]


def stored_bytes(log: SparkLog, topic: str, partition: int = 0) -> bytes:
    """The batches of a partition as they lie in the segments."""
    state = log.refresh().topic(topic).partitions[partition]
    ranges = plan_read(log.store, state, 0, state.log_end_offset)
    return b"".join(log.store.read(part.segment, part.position, part.size) for part in ranges)


def stored_headers(log: SparkLog, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of a partition's batches."""
    data, position, headers = stored_bytes(log, topic, partition), 0, []
    while position < len(data):
        headers.append(parse_header(data, position, topic))
        position += headers[-1].size
    return headers
