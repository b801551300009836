"""The streaming source with admission control, for Spark 4.2 and newer.

Spark passes the start of each micro-batch, and a limit.
A module of its own, since earlier Sparks have no limits to import.
Not here: the meaning of limits (stream_planner.py).
Source: Spark's KafkaMicroBatchStream.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sparklog.spark.data_source_api import plain_errors
from sparklog.spark.stream_reader import SparklogStreamReader


@plain_errors
class LimitedStreamReader(SparklogStreamReader, SupportsTriggerAvailableNow):
    """Reads topics of a root as a stream, with limited micro-batches."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint."""
        self._is_new = True
        return self._plan().initial_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch."""
        return self._plan().input_partitions(start, self._without_initial(end))

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if none is due."""
        # Spark passes our own default limit, but for Trigger.Once it passes ReadAllAvailable.
        unlimited = isinstance(limit, ReadAllAvailable)
        return self._plan().latest_offset(start, limited=not unlimited)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit, so that Spark passes it; the planner computes all limits together."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's end, for the progress report (and so for lag)."""
        return self._plan().report_latest_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the log's end: this query reads up to there and stops."""
        self._plan().freeze_end()
