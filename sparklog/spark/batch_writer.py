"""The batch sink: one write is one commit over all its topics and partitions, or nothing."""

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparklog.spark.columns import check_columns
from sparklog.spark.options import SinkOptions
from sparklog.spark.plain_errors import plain_errors
from sparklog.spark.publishing import publish, results_of, skipped_text
from sparklog.spark.sink_root import open_sink_root
from sparklog.spark.write_task import append_options, write_task

logger = logging.getLogger("sparklog.spark")


@plain_errors
class SparklogBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one query."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._columns = check_columns(schema, options)
        append_options(options)  # a wrong codec is better refused here than in every task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task; runs on executors."""
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible; with txnAppId and txnVersion only if that has not been done before."""
        options, results = self._options, results_of(messages)
        if not any(result.staged.drafts for result in results):
            return
        txn = None
        if options.txn_app_id is not None and options.txn_version is not None:
            txn = (options.txn_app_id, options.txn_version)
        log = open_sink_root(options, None, None)
        skipped = publish(log, options, results, txn=txn).skipped
        if txn is not None and skipped:
            logger.warning("%s", skipped_text("this write", txn, skipped))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: what was written is not visible, and nothing will ever refer to it."""
