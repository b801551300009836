"""The streaming sink: each micro-batch is one commit, applied once however often Spark repeats it.

The race that this settles:
  1. all tasks of micro-batch 7 are done; the driver publishes their extents;
  2. the driver dies before Spark has noted that batch 7 is done;
  3. Spark restarts from the checkpoint and runs batch 7 again: new tasks, new extents;
  4. without more, the second publication would double every record of the batch.
So the commit also says (query id, 7), for each topic that it writes to. In step 4 that pair is found in
the log, and nothing is done. The query id comes from the checkpoint, so it survives restarts; the tasks
tell it to the driver. A copy of the checkpoint has it too, and may write to other topics of the root.
If it writes to the same ones, or an older copy is put back, a batch of the same number may hold other rows:
what the checkpoint says of it (checkpoint.py) goes into the commit and is compared. A batch below the topic's
last one has nothing to be compared with, and Spark never repeats one: it is refused.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from sparklog.client import AppliedBefore, later_versions
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.checkpoint import batch_content
from sparklog.spark.columns import check_columns
from sparklog.spark.data_source_api import STREAM_WRITER_MAY_GET_ROWS, StreamWriterBase
from sparklog.spark.options import SinkOptions
from sparklog.spark.pinned_root import pin_root, validate_pinned
from sparklog.spark.plain_errors import plain_errors
from sparklog.spark.publishing import publish, results_of
from sparklog.spark.sink_maintenance import maintain_if_due
from sparklog.spark.sink_root import open_sink_root, warn_of_first_write
from sparklog.spark.workers import settle_in
from sparklog.spark.write_task import TaskResult, append_options, write_task

logger = logging.getLogger("sparklog.spark")


@plain_errors
class SparklogStreamWriter(StreamWriterBase):
    """Writes the micro-batches of one query."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        settle_in()  # once per micro-batch in the worker that makes it, and in the one that commits
        self._options = options
        self._schema = schema
        self._columns = check_columns(schema, options)
        append_options(options)  # a wrong codec is better refused here than in every task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task; runs on executors."""
        if STREAM_WRITER_MAY_GET_ROWS:
            from sparklog.spark.row_batches import as_arrow_batches  # noqa: PLC0415 - for old Sparks only

            iterator = as_arrow_batches(iterator, self._schema, self._columns)
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the micro-batch visible, unless it is already."""
        results = results_of(messages)
        if not any(result.staged.drafts for result in results):
            if batchId == 0:
                open_sink_root(self._options, None, 0)  # later ones expect it
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
        query_id = str(query_ids.pop())
        options = self._options
        log = open_sink_root(options, query_id, batchId)
        checkpoint = self._checkpoint(results)
        validate_pinned(checkpoint, query_id, batchId, log, options)
        content = batch_content(checkpoint, query_id, batchId, options)
        txn = (f"spark-streaming:{query_id}", batchId)
        warn_of_first_write(log, query_id, txn[0], batchId)
        try:
            done = publish(log, options, results, txn=txn, content=content)
        except InvalidRequestError as error:
            if error.code == "VERSION_OUTDATED":
                staged = [result.staged for result in results]
                overtaken = later_versions(log.refresh(force=True), staged, *txn)
                raise _outdated(query_id, batchId, overtaken) from None
            if error.code != "TXN_CONTENT_DIFFERS":
                raise
            raise _another_batch(query_id, batchId, error) from None
        pin_root(checkpoint, query_id, log, options)
        overtaken = {topic: found for topic, found in done.skipped.items() if found.version > batchId}
        if overtaken:
            raise _outdated(query_id, batchId, overtaken)
        for topic, found in done.skipped.items():
            _say_what_was_left_out(query_id, batchId, topic, found, content)
        wanted = next(
            (one.maintenance for one in results if one.maintenance is not None), options.maintenance
        )
        if wanted:
            maintain_if_due(log, options)

    def _checkpoint(self, results: Sequence[TaskResult]) -> str | None:
        """Where Spark keeps the query's checkpoint, as far as that can be known."""
        options = self._options
        if options.checkpoint_location is not None:
            return options.checkpoint_location
        directory = next((result.checkpoints for result in results if result.checkpoints), None)
        if directory is None or options.query_name is None:
            return None  # without a name Spark makes a new one with each start
        return f"{directory.rstrip('/')}/{options.query_name}"

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: what was written is not visible, and nothing will ever refer to it."""


def _another_batch(query_id: str, batch_id: int, error: InvalidRequestError) -> InvalidRequestError:
    return InvalidRequestError(
        error.code,
        f"micro-batch {batch_id} of query {query_id} starts or ends at other offsets than the one that was "
        f"written under this number, and would be lost as its repetition: {error.message}",
        fix="find out whether the checkpoint is an older copy that was put back, or one that another query "
        "uses too; then start the query with a new checkpointLocation, and with startingOffsets where its "
        "rows in the topic end, or delete the topic to write it anew; nothing of the micro-batch is visible",
    )


def _outdated(query_id: str, batch_id: int, later: Mapping[str, AppliedBefore]) -> InvalidRequestError:
    """Spark repeats its last micro-batch only. One below the last can hold rows that are nowhere else."""
    topics = "; ".join(f"{topic} has {found}" for topic, found in sorted(later.items()))
    return InvalidRequestError(
        "CHECKPOINT_OUTDATED",
        f"micro-batch {batch_id} of query {query_id}: later ones were written already ({topics}), so the "
        "checkpoint is an older copy that was put back, or another query uses it too",
        fix="put the newest checkpoint back; without one, start the query with a new checkpointLocation, and "
        "with startingOffsets where its rows in the topic end; nothing of the micro-batch is visible",
    )


def _say_what_was_left_out(
    query_id: str, batch_id: int, topic: str, found: AppliedBefore, content: str
) -> None:
    same = content and content == found.content
    logger.log(
        logging.INFO if same else logging.WARNING,
        "micro-batch %d of query %s is left out of topic %s, which has it (%s)%s",
        batch_id,
        query_id,
        topic,
        found,
        ": it was repeated" if same else "; whether it is the same cannot be told without its checkpoint",
    )
