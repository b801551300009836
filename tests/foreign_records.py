"""Records as somebody else might write them: straight to the log, past every check of ours."""

import os
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.metadata import plan_append


def append_foreign(
    log: SparkLog, topic: str, partition: int, records: list[tuple[bytes | None, bytes | None]]
) -> None:
    """Append (key, value) pairs to a partition."""
    columns = RecordColumns(
        key=pa.array([key for key, _ in records], pa.binary()),
        value=pa.array([value for _, value in records], pa.binary()),
        timestamp_ms=np.full(len(records), log.clock.now_ms(), np.int64),
    )
    encoded = encode_batches(columns, EncodeOptions())
    draft = log.writer.append(log.refresh().topic(topic).topic_id, partition, encoded, TopicConfig())
    assert draft is not None
    log.writer.sync([draft])
    log.metadata.publish(lambda image: [plan_append(image, [draft])])


def damage(log: SparkLog, topic: str, partition: int) -> None:
    """Change the last byte of a partition's first extent, as a bad disk does."""
    extent = next(iter(log.refresh().partition(topic, partition).extents))
    with open(unquote(urlsplit(f"{log.url}/{extent.segment}").path), "r+b") as file:
        file.seek(extent.position + extent.size - 1)
        (before,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([before ^ 1]))
