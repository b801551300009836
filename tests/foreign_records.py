"""Records as somebody else might write them: straight to the log, past every check of ours."""

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
