"""What transactions have staged, put into a root by its embedded client."""

from typing import Any

import msgspec
import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.metadata import Staging, plan_begin_producer, plan_stage


def begin(log: SparkLog, name: str = "app", *, timeout_ms: int = 60_000, started_ms: int = -1) -> None:
    """Initialise a producer of this id."""
    now_ms = log.clock.now_ms() if started_ms < 0 else started_ms
    log.metadata.publish(
        lambda image: plan_begin_producer(image, name, timeout_ms=timeout_ms, now_ms=now_ms).actions
    )


def stage(
    log: SparkLog, sequence: int, *values: bytes, topic: str = "t", name: str = "app", **opens: Any
) -> str:
    """In the second protocol, to partition 0; the segment. `started_ms`: when that opens a transaction."""
    with log.appender() as appender:
        rows = {"value": pa.array(values, pa.binary()), "partition": pa.array([0] * len(values), pa.int32())}
        appender.add(pa.table(rows), topic)
        (written,) = appender.finish().drafts
    one = log.image.transactions[name]
    draft = msgspec.structs.replace(
        written,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        base_sequence=sequence,
    )
    parts = [Staging(draft=draft, opens_ms=opens.get("started_ms", log.clock.now_ms()))]
    log.metadata.publish(lambda image: [plan_stage(image, parts)])
    log.close()  # the next one begins another segment
    return draft.segment
