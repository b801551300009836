"""One task of a write: makes its rows durable, and returns their extents to the driver, which publishes them.

A task's rows are not visible: it appends to its process's own segment and returns the extents. A task that
fails, is repeated, or runs twice by speculation leaves unreferenced bytes.
Spark's workers live on between micro-batches, and keep appending to the same segment.
Memory: rows are buffered up to a fixed budget, whatever the task's size (client/appender.py).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sparklog.client import AppendOptions, AppendResult, AppliedBefore, SparkLog, StagedAppend
from sparklog.client.publish import publish as publish_staged
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.log.past_retention import past_retention_text
from sparklog.spark.notices import prepare_worker
from sparklog.spark.options import SinkOptions
from sparklog.spark.sink_root import open_sink_root
from sparklog.spark.values import parse_switch

# Spark sets these for every task of a streaming query; it does not pass the query to `commit`, nor the batch
# to the task.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
# The session's default directory of checkpoints.
CHECKPOINTS_PROPERTY = "spark.sql.streaming.checkpointLocation"
# The session's default of the option `maintenance`.
MAINTENANCE_PROPERTY = "spark.sparklog.maintenance"


@dataclass(frozen=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """The result of one task; pickled by Spark on its way to the driver."""

    cluster_id: str
    staged: StagedAppend
    query_id: str | None
    batch_id: int | None
    checkpoints: str | None = None
    maintenance: bool | None = None  # the session's value


def write_task(options: SinkOptions, columns: list[str], rows: Iterator[pa.RecordBatch]) -> TaskResult:
    """Append a task's rows, make them durable, and return their extents.

    Args:
        columns: the columns of `rows` to write, by name.

    Raises:
        InvalidRequestError: an invalid row; the whole write then fails.
        StorageError: storage is full or failed.
    """
    context = TaskContext.get()
    assert context is not None, "write tasks run on executors"
    prepare_worker()
    maintenance = _session_switch(context.getLocalProperty(MAINTENANCE_PROPERTY), options)
    query_id, batch_id = (
        context.getLocalProperty(QUERY_ID_PROPERTY),
        _number(context.getLocalProperty(BATCH_ID_PROPERTY)),
    )
    log = open_sink_root(options, query_id, batch_id)
    with log.appender(append_options(options), sticky_turn=context.partitionId()) as appender:
        for arrow_batch in rows:
            appender.add(arrow_batch.select(columns), topic=options.topic)
        staged = appender.finish()
    return TaskResult(
        cluster_id=log.cluster_id,
        staged=staged,
        query_id=query_id,
        batch_id=batch_id,
        checkpoints=context.getLocalProperty(CHECKPOINTS_PROPERTY),
        maintenance=maintenance,
    )


def _session_switch(text: str | None, options: SinkOptions) -> bool | None:
    """Return the session's value; None: unset, or the query has its own.

    Raises:
        InvalidRequestError: neither auto nor off.
    """
    if text is None or options.maintenance_is_given or not options.streaming:
        return None
    return parse_switch({}, MAINTENANCE_PROPERTY, default=text)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def append_options(options: SinkOptions) -> AppendOptions:
    """Return the appender's options; unset ones default to the topic's or the root's settings."""
    given = {
        "compression": options.compression_type,
        "batch_bytes": options.batch_size_bytes,
        "max_record_bytes": options.max_request_bytes,
        "flush_messages": options.flush_messages,
        "flush_ms": options.flush_ms,
        "auto_create_topics": options.auto_create_topics,
        "num_partitions": options.num_partitions,
        "topic_configs": dict(options.topic_configs),
    }
    return AppendOptions(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


# --- publishing --------------------------------------------------------------------------------------
#
# Publishing of both sinks, on the driver: one commit for the extents of all tasks.
#
# Not here: a write's application and version (the writers).


logger = logging.getLogger("sparklog.spark")


def results_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Return the tasks' results, in the order of the tasks."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    assert len(results) == len(messages), "Spark commits only when every task has succeeded"
    return results


def publish(
    log: SparkLog,
    options: SinkOptions,
    results: Sequence[TaskResult],
    *,
    txn: tuple[str, int] | None,
    content: str = "",
) -> AppendResult:
    """Publish the rows of all tasks in one commit, in their order; warn of rows past their retention.

    Raises:
        InvalidRequestError: the tasks wrote to another root than the driver's `log`; or there are too many
            extents for one commit, COMMIT_TOO_LARGE.
        RetriableError: STAGING_EXPIRED, a sweep may have removed the tasks' segments; the tasks must run
            again.
    """
    other = {result.cluster_id for result in results} - {log.cluster_id}
    if other:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"tasks wrote to the root with cluster id {other.pop()}, and on the driver {options.root} is "
            f"{log.cluster_id}",
            fix="use a path that means the same shared directory on the driver and on all executors",
        )
    try:
        done = publish_staged(
            log.metadata,
            [result.staged for result in results],
            txn=txn,
            content=content,
            now_ms=log.clock.now_ms(),
        )
    except InvalidRequestError as error:
        if error.code != "COMMIT_TOO_LARGE":
            raise
        extents = sum(len(result.staged.drafts) for result in results)
        raise InvalidRequestError(
            error.code,
            f"{len(results)} tasks wrote {extents} extents, too many for one commit: {error.message}; "
            "nothing of the write is visible",
            fix="use fewer tasks (coalesce) or smaller writes (in a stream, a lower maxOffsetsPerTrigger); "
            "or let each task write to few partitions (a column partition, and repartition by it); or give "
            "tasks more space in TMPDIR; see docs/tuning.md",
        ) from None
    except RetriableError as error:
        if error.code != "STAGING_EXPIRED":
            raise
        raise RetriableError(
            error.code,
            "a sweep passed the tasks' rows before they were published; none of them are visible: "
            f"{error.message}",
            fix="run the write again, or restart the query, which repeats the micro-batch; use a longer "
            "retention for `sparklog vacuum` than a write may take",
        ) from None
    if done.past_retention:
        logger.warning("%s", past_retention_text(done.past_retention))
    return done


def skipped_text(what: str, txn: tuple[str, int], skipped: Mapping[str, AppliedBefore]) -> str:
    """Return a message about the topics that a write skipped."""
    topics = "; ".join(f"{topic} has {found}" for topic, found in sorted(skipped.items()))
    return (
        f"{what} is version {txn[1]} of {txn[0]!r}, and was skipped for topics with that or a later version: "
        f"{topics}"
    )
