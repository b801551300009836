"""The streaming source with admission control, for Sparks that have it (4.2 and newer).

Spark says from where on it asks for more, and can be told that there is a limit. Not here: what the
limits mean (stream_planner.py), and what all versions have (stream_reader.py).
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

from sparklog.spark.plain_errors import plain_errors
from sparklog.spark.stream_reader import SparklogStreamReader


@plain_errors
class LimitedStreamReader(SparklogStreamReader, SupportsTriggerAvailableNow):
    """Reads topics of a root as a stream, so much at a time."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts: startingOffsets and its kin."""
        self._is_new = True
        return self._plan().initial_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        return self._plan().input_partitions(start, self._as_it_goes_on(end))

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
