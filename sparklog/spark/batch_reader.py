"""The batch source: plans all tasks against one image, so that a query sees one version of the log."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.metadata import Image
from sparklog.spark.data_source_api import plain_errors
from sparklog.spark.input_partitions import plan_input_partitions, read_input_partition
from sparklog.spark.options import SourceOptions
from sparklog.spark.ranges import (
    DataLossPolicy,
    OffsetRange,
    OffsetResolver,
    check_ends_after_start,
    check_in_log,
    log_ends,
    log_starts,
    ranges_between,
    retrying,
)
from sparklog.spark.roots import open_root


@plain_errors
class SparklogBatchReader(DataSourceReader):
    """Reads a range of offsets of each partition, once. Source: Spark's KafkaBatch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. For an empty list Spark runs one empty task."""
        return retrying(self._options, SystemClock(), self._planned)

    def _planned(self) -> list[InputPartition]:
        options = self._options
        log = open_root(options.root, create=False, storage=options.storage, rules=options.rules)
        image = log.image  # for the whole plan: planning around missing files may refresh `log`
        return plan_input_partitions(log, image, self._pruned(self._ranges(log, image), image), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; runs on executors."""
        return read_input_partition(partition, self._options)

    def _pruned(self, ranges: list[OffsetRange], image: Image) -> list[OffsetRange]:  # noqa: ARG002 - pushdown.py
        """Return the ranges that the filters leave."""
        return ranges

    def _ranges(self, log: SparkLog, image: Image) -> list[OffsetRange]:
        options = self._options
        loss = DataLossPolicy(fail=options.fail_on_data_loss)
        tps = options.subscription.resolve(image, must_exist=True)
        resolver = OffsetResolver(log, image, tps, group_id=options.group_id, report=loss.report)
        begin, end = resolver.starting(options.starting), resolver.ending(options.ending)
        if options.fail_on_data_loss:
            check_in_log(begin, image, "startingOffsets")
            check_in_log(end, image, "endingOffsets")
        check_ends_after_start(begin, end, image)
        begin = loss.clamp_start(begin, end, image)
        last = log_ends(image, tps)
        first = log_starts(image, tps)
        end = {tp: max(first[tp], min(offset, last[tp])) for tp, offset in end.items()}
        return ranges_between(begin, end)
