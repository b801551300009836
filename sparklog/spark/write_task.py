"""One task of a write: rows become durable, and the driver learns where they are.

Nothing that a task does is visible: it appends to its process's own segment and returns the extents.
A task that fails, is repeated, or runs twice by speculation leaves bytes that nothing refers to.
Spark's workers live on between micro-batches, and so does the segment: a worker keeps appending to it.
Memory: rows are buffered up to a fixed budget, whatever the task's size (client/appender.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sparklog.client import AppendOptions, StagedAppend
from sparklog.spark.options import SinkOptions
from sparklog.spark.sink_root import open_sink_root
from sparklog.spark.values import parse_switch
from sparklog.spark.workers import settle_in

# Set by Spark for every task of a streaming query; the sink's commit itself is told neither the
# query nor (in the task) the batch.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
# Of the session: where the checkpoints of queries lie that were not given one.
CHECKPOINTS_PROPERTY = "spark.sql.streaming.checkpointLocation"
# Of the session: option `maintenance` of queries that do not say it.
MAINTENANCE_PROPERTY = "spark.sparklog.maintenance"


@dataclass(frozen=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """What one task wrote; pickled by Spark on its way to the driver."""

    cluster_id: str
    staged: StagedAppend
    query_id: str | None
    batch_id: int | None
    checkpoints: str | None = None
    maintenance: bool | None = None  # as the session has it


def write_task(options: SinkOptions, columns: list[str], rows: Iterator[pa.RecordBatch]) -> TaskResult:
    """Append a task's rows, make them durable, and say where they are.

    Args:
        columns: the columns of `rows` to write, by name.

    Raises:
        InvalidRequestError: a row that cannot be written; the whole write then fails.
        StorageError: storage full, failed, ...
    """
    context = TaskContext.get()
    assert context is not None, "write tasks run on executors"
    settle_in()
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
    """What the session says; None: nothing that counts. InvalidRequestError: neither auto nor off."""
    if text is None or options.maintenance_is_given or not options.streaming:
        return None
    return parse_switch({}, MAINTENANCE_PROPERTY, default=text)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def append_options(options: SinkOptions) -> AppendOptions:
    """The sink's options as the appender takes them; what is not set is the topic's or the root's."""
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
