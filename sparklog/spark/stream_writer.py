"""The streaming sink: each micro-batch is one commit, applied once however often Spark repeats it.

The race that this settles:
  1. all tasks of micro-batch 7 are done; the driver publishes their extents;
  2. the driver dies before Spark has noted that batch 7 is done;
  3. Spark restarts from the checkpoint and runs batch 7 again: new tasks, new extents;
  4. without more, the second publication would double every record of the batch.
So the commit also says (query id, 7), for each topic that it writes to. In step 4 that pair is found in
the log, and nothing is done. The query id comes from the checkpoint, so it survives restarts; the tasks
tell it to the driver. A copy of the checkpoint has it too, and may write to other topics of the root.
"""

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparklog.errors import SparklogError
from sparklog.spark.columns import check_columns
from sparklog.spark.options import SinkOptions
from sparklog.spark.publishing import publish, results_of, skipped_text
from sparklog.spark.workers import settle_in
from sparklog.spark.write_task import append_options, write_task

logger = logging.getLogger("sparklog.spark")


class SparklogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        settle_in()  # once per micro-batch in the worker that makes it, and in the one that commits
        self._options = options
        self._columns = check_columns(schema, options)
        append_options(options)  # a wrong codec is better refused here than in every task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task; runs on executors."""
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the micro-batch visible, unless it is already."""
        results = results_of(messages)
        if not any(result.staged.drafts for result in results):
            return
        query_ids = {result.query_id for result in results}
        batch_ids = {result.batch_id for result in results}
        if len(query_ids) != 1 or None in query_ids or batch_ids - {batchId, None}:
            raise SparklogError(
                "INTERNAL",
                f"micro-batch {batchId}: tasks report queries {query_ids} and batches {batch_ids}, expected "
                "one query and this batch; without them nothing can be written exactly once",
                fix="report this with Spark's version; nothing of the batch was made visible",
            )
        txn = (f"spark-streaming:{query_ids.pop()}", batchId)
        skipped = publish(self._options, results, txn=txn).skipped
        if skipped:
            logger.warning("%s", skipped_text(f"micro-batch {batchId}", txn, skipped))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: what was written is not visible, and nothing will ever refer to it."""
