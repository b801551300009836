"""The streaming source: what Spark asks of it, answered by a StreamPlanner on the driver.

Spark pickles the reader into each task, so it holds options only; the planner is made on first use
in the process that plans.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sparklog.clock import SystemClock
from sparklog.spark.input_partitions import read_input_partition
from sparklog.spark.options import SourceOptions
from sparklog.spark.plain_errors import plain_errors
from sparklog.spark.stream_planner import StreamPlanner


@plain_errors
class SparklogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics of a root as a stream. Source: Spark's KafkaMicroBatchStream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts: startingOffsets and its kin."""
        return self._plan().initial_offset()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself when there is nothing to do."""
        # Spark passes our own default limit, except for Trigger.Once, which wants everything.
        unlimited = isinstance(limit, ReadAllAvailable)
        return self._plan().latest_offset(start, limited=not unlimited)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that there is a limit; its arithmetic is ours, since limits combine."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The log's end, for the progress report (and so for lag)."""
        return self._plan().report_latest_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the log's end: this query reads up to there and stops."""
        self._plan().freeze_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        return self._plan().input_partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on executors."""
        return read_input_partition(partition, self._options.storage)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done: record it for the group, if there is one."""
        self._plan().commit(end)

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, SystemClock())
        return self._planner
