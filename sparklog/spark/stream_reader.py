"""The streaming source: what every Spark asks of it, answered by a StreamPlanner on the driver.

What Sparks from 4.2 on ask besides is in stream_reader.py.

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
from sparklog.spark.data_source_api import plain_errors
from sparklog.spark.input_partitions import read_input_partition
from sparklog.spark.options import SourceOptions
from sparklog.spark.stream_planner import StreamPlanner


@plain_errors
class SparklogStreamReader(DataSourceStreamReader):
    """Reads topics of a root as a stream. Source: Spark's KafkaMicroBatchStream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: StreamPlanner | None = None
        self._reached: dict[str, Any] | None = None  # where the next micro-batch starts, if that is known
        self._initial: dict[str, Any] | None = None
        self._has_begun = False  # Spark has asked for an end
        self._is_new = False  # Spark has asked where to start: nothing was finished before

    def __getstate__(self) -> dict[str, object]:
        empty = SparklogStreamReader(self._options)
        return dict(empty.__dict__)

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts: startingOffsets and its kin."""
        self._is_new = True
        if self._initial is None:
            self._initial = self._plan().initial_offset()
        return self._initial

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """The end of the next micro-batch. Sparks before 4.2 do not say where it starts.

        To a query that goes on they have said it before, with the plan of an empty micro-batch where it is
        (PythonMicroBatchStream.setLatestSeenOffset); a new one is asked for its start after this. The first
        end of both is that of the log: Trigger.AvailableNow runs no more than that one micro-batch.
        """
        if self._reached is None:
            # A new query gets the error, if its start cannot be resolved, with the plan of its first tasks.
            self._initial = self._plan().initial_offset()
            self._reached = self._plan().log_end(self._initial)
        else:
            reached = self._as_it_goes_on(self._reached)
            end = self._plan().latest_offset(reached, limited=self._has_begun)
            if end is not reached:  # else the very same as last time: Spark compares offsets as text
                self._reached = end
        self._has_begun = True
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        self._reached = end
        self._plan().report_left_out(start, end)
        return self._plan().input_partitions(start, self._as_it_goes_on(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on executors."""
        return read_input_partition(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done: record it for the group, if there is one."""
        self._plan().commit(self._as_it_goes_on(end))

    def _as_it_goes_on(self, end: dict[str, Any]) -> dict[str, Any]:
        """A query that goes on starts where Spark says, not where a new one would."""
        if self._is_new:
            return end
        return {name: offsets for name, offsets in end.items() if not name.startswith("@initial/")}

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, SystemClock())
        return self._planner


# --- limited reader ----------------------------------------------------------------------------------
#
# The streaming source with admission control, for Sparks that have it (4.2 and newer).
#
# Spark says from where on it asks for more, and can be told that there is a limit. Not here: what the
# limits mean (stream_planner.py), and what all versions have.
# Source: Spark's KafkaMicroBatchStream.


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
