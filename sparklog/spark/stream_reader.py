"""The streaming source: Spark's interface to the StreamPlanner on the driver.

Spark pickles the reader into each task, so its state is only its options; the planner is created on first use
in the process that plans.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

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
        self._reached: dict[str, Any] | None = None  # the start of the next micro-batch, if it is known
        self._initial: dict[str, Any] | None = None
        self._has_begun = False  # True once Spark has asked for an end
        self._is_new = False  # True once Spark has asked for a start: no micro-batch was finished before

    def __getstate__(self) -> dict[str, object]:
        empty = SparklogStreamReader(self._options)
        return dict(empty.__dict__)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint."""
        self._is_new = True
        if self._initial is None:
            self._initial = self._plan().initial_offset()
        return self._initial

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Return the end of the next micro-batch. Spark before 4.2 does not pass its start.

        For a restarted query it has passed the position before, by planning an empty micro-batch there
        (PythonMicroBatchStream.setLatestSeenOffset); for a new one it asks for the start after this call. The
        first end of both is the log's end: Trigger.AvailableNow runs no more than that one micro-batch.
        """
        if self._reached is None:
            # If a new query's start cannot be resolved, `partitions` raises the error.
            self._initial = self._plan().initial_offset()
            self._reached = self._plan().log_end(self._initial)
        else:
            reached = self._without_initial(self._reached)
            end = self._plan().latest_offset(reached, limited=self._has_begun)
            if end is not reached:  # else return the same document: Spark compares offsets as text
                self._reached = end
        self._has_begun = True
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch."""
        self._reached = end
        self._plan().report_left_out(start, end)
        return self._plan().input_partitions(start, self._without_initial(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; runs on executors."""
        return read_input_partition(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Record `end` for the group, if there is one: everything before it is done."""
        self._plan().commit(self._without_initial(end))

    def _without_initial(self, end: dict[str, Any]) -> dict[str, Any]:
        """Remove the start of a new query, if this one was restarted: Spark passes its start."""
        if self._is_new:
            return end
        return {name: offsets for name, offsets in end.items() if not name.startswith("@initial/")}

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, SystemClock())
        return self._planner
