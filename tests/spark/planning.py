"""What both sources plan, without Spark: shorthands of the tests."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.spark.batch_reader import SparklogBatchReader
from sparklog.spark.input_partitions import SparklogInputPartition
from sparklog.spark.options import parse_source_options
from sparklog.spark.stream_planner import StreamPlanner


def append(log: SparkLog, partition: int, count: int, topic: str = "t") -> None:
    log.append(topic, pa.table({"value": [b"x" * 50] * count}), partition=partition)


def subscribed(options: Mapping[str, str]) -> dict[str, str]:
    """The topic t, unless the options name others."""
    return {} if options.keys() & {"subscribePattern", "assign"} else {"subscribe": "t"}


def planner(root: str, clock: ManualClock | None = None, /, **options: str) -> StreamPlanner:
    defaults = {"path": root, "startingOffsets": "earliest"}
    defaults.update(subscribed(options))
    if root.startswith("s3:"):
        defaults["s3.refresh_interval_ms"] = "0"
    parsed = parse_source_options({**defaults, **options}, streaming=True)
    return StreamPlanner(parsed, clock or ManualClock())


def started(root: str, /, **options: str) -> dict[str, Any]:
    """The first end of a new query: its start is needed for it, and an error if it cannot be had."""
    plan = planner(root, **options)
    return plan.latest_offset(plan.initial_offset(), limited=True)


def batch_reader(root: str, **options: str) -> SparklogBatchReader:
    given = {"path": root, **subscribed(options), **options}
    return SparklogBatchReader(parse_source_options(given, streaming=False))


def topics(document: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {name: offsets for name, offsets in document.items() if not name.startswith("@")}


def read(parts: Iterable[InputPartition]) -> list[tuple[str, int, int, int]]:
    """(topic, partition, start, end) of what the tasks would read."""
    tasks = [part for part in parts if isinstance(part, SparklogInputPartition)]
    offsets = [o for task in tasks for o, _ in task.parts]
    return sorted((o.topic, o.partition, o.start_offset, o.end_offset) for o in offsets)
