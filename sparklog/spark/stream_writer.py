"""The streaming sink: each micro-batch is one commit, applied once even if Spark repeats it.

The crash that this handles:
  1. all tasks of micro-batch 7 are done; the driver publishes their extents;
  2. the driver dies before Spark has recorded that batch 7 is done;
  3. Spark restarts from the checkpoint and runs batch 7 again: new tasks, new extents;
  4. the second publication would duplicate every record of the batch.
So the commit records (query id, 7) for each topic that it writes to. In step 4 the topics have that pair, and
the batch is skipped. The query id comes from the checkpoint, so it survives restarts; task results pass it to
the driver. A copy of the checkpoint has the same id, and may write to other topics of the root. If it writes
to the same topics, or if an older copy is restored, a batch of the same number may have other rows: so the
commit also records a checksum of the batch's offsets (sink_root.py), which is compared. A batch before the
topic's last one cannot be compared, and Spark never repeats one: it is refused.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from sparklog.client import AppliedBefore, later_versions, refuse_internal
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.data_source_api import STREAM_WRITER_MAY_GET_ROWS, StreamWriterBase, plain_errors
from sparklog.spark.notices import Notices, prepare_worker
from sparklog.spark.options import SinkOptions
from sparklog.spark.sink_maintenance import maintain_if_due
from sparklog.spark.sink_root import (
    batch_content,
    open_sink_root,
    pin_root,
    validate_pinned,
    warn_of_first_write,
)
from sparklog.spark.write_task import (
    TaskResult,
    append_options,
    publish,
    results_of,
    skipped_text,
    write_task,
)

# --- columns -----------------------------------------------------------------------------------------
#
# The sink's columns, validated before anything is written.
#
# They are those of Kafka's sink (key, value, topic, headers, partition) and an optional timestamp. Other
# columns are not written, as with Kafka's sink. Those of the source are ignored silently, so that rows of a
# topic can be written again. Others log a warning; a name that differs only in case is an error.
# Source: Spark's KafkaWriter.


_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_ALLOWED: dict[str, tuple[DataType, ...]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(), LongType()),
}
_OF_THE_SOURCE = ("offset", "timestampType")
_NAMED = 10


def check_columns(schema: StructType, options: SinkOptions) -> list[str]:
    """Return the columns to write, in a fixed order.

    Raises:
        InvalidRequestError: a column is missing, duplicate, of a wrong type, or differs from one of the
            sink's only in case; the topic is internal.
    """
    names = schema.fieldNames()
    skipped = set()
    if options.topic is not None:
        refuse_internal(options.topic)  # here, before any task runs
        skipped.add("topic")
    if not options.include_headers:
        skipped.add("headers")
    wanted = [name for name in _ALLOWED if name not in skipped]
    for name in wanted:
        _check_name(name, names)
    if "value" not in names:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"the required column value is missing; the columns are {', '.join(names) or 'none'}",
            fix="select an expression as value, for example to_json(struct(*)) AS value",
        )
    if options.topic is None and "topic" not in names:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"neither the option topic nor a column topic is set; the columns are {', '.join(names)}",
            fix='set .option("topic", "...") or add the column topic',
        )
    found = {field.name: field.dataType for field in schema.fields}
    for name in wanted:
        if name in found and not any(_same_type(found[name], allowed) for allowed in _ALLOWED[name]):
            expected = " or ".join(allowed.simpleString() for allowed in _ALLOWED[name])
            raise InvalidRequestError(
                "INVALID_COLUMN",
                f"column {name} is {found[name].simpleString()}, expected {expected}",
                fix=_how_to_convert(name, found[name]),
            )
    _warn_of_unknown(names, wanted, options)
    return [name for name in wanted if name in found]


def _check_name(name: str, names: list[str]) -> None:
    """Refuse duplicates and `Key` for `key`: Spark ignores case, so the column would be lost silently."""
    if names.count(name) > 1:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"column {name} exists {names.count(name)} times; the columns are {', '.join(names)}",
            fix=f"keep one of them, and rename or drop the others named {name}",
        )
    alike = [other for other in names if other.lower() == name]
    if alike and name not in alike:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"found column {alike[0]}, expected it in lower case, as {name}: it would not be written",
            fix=f"rename it to {name}, or to another name if it should not be written",
        )


def _warn_of_unknown(names: list[str], wanted: list[str], options: SinkOptions) -> None:
    """Warn of columns that are not written, with similar names: `keys` for `key` would lose every key."""
    by_option = [name for name in _ALLOWED if name not in wanted]
    known = {*wanted, *_OF_THE_SOURCE}
    unknown = [name for name in names if name not in known and name.lower() not in by_option]
    if not unknown:
        return
    missing = [name for name in wanted if name not in names]
    texts = []
    for name in unknown[:_NAMED]:
        nearest = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.6)
        texts.append(f"{name} (did you mean {nearest[0]}?)" if nearest else name)
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    Notices({"root": options.root, "topic": options.topic or ""}).warn(
        f"the sink does not write the columns {', '.join(texts)}{more}: it takes {', '.join(_ALLOWED)}. "
        "Rename them, put them into value, or drop them"
    )


def _how_to_convert(name: str, found: DataType) -> str:
    if name == "headers":
        return (
            "make it an array of structs with the fields key and value, for example "
            "array(struct('name' AS key, CAST('text' AS BINARY) AS value)) AS headers"
        )
    if isinstance(found, ArrayType | MapType | StructType | VariantType):
        return f"write it as text, for example to_json({name}) AS {name}"
    # TIMESTAMP may be a type without a zone, depending on spark.sql.timestampType.
    wanted = "TIMESTAMP_LTZ" if name == "timestamp" else _ALLOWED[name][0].simpleString().upper()
    return f"cast the column, for example CAST({name} AS {wanted}) AS {name}"


def _same_type(found: DataType, wanted: DataType) -> bool:
    """Return True if the types are equal except for nullability and collation."""
    match found, wanted:
        case (ArrayType(), ArrayType()):
            return _same_type(found.elementType, wanted.elementType)
        case (StructType(), StructType()):
            return [f.name for f in found.fields] == [f.name for f in wanted.fields] and all(
                _same_type(a.dataType, b.dataType) for a, b in zip(found.fields, wanted.fields, strict=True)
            )
        case _:
            return type(found) is type(wanted)


# --- batch writer ------------------------------------------------------------------------------------
#
# The batch sink: one write is one commit over all its topics and partitions, or nothing.


@plain_errors
class SparklogBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one query."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._columns = check_columns(schema, options)
        append_options(options)  # validates the codec before any task runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; runs on executors."""
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible; with txnAppId and txnVersion at most once."""
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
        """Do nothing: the written rows are invisible, and nothing will refer to them."""


# --- stream writer -----------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")


@plain_errors
class SparklogStreamWriter(StreamWriterBase):
    """Writes the micro-batches of one query."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        prepare_worker()  # once per micro-batch in the worker that plans it, and in the one that commits
        self._options = options
        self._schema = schema
        self._columns = check_columns(schema, options)
        append_options(options)  # validates the codec before any task runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task; runs on executors."""
        if STREAM_WRITER_MAY_GET_ROWS:
            from sparklog.spark.rows import as_arrow_batches  # noqa: PLC0415 - for old Sparks only

            iterator = as_arrow_batches(iterator, self._schema, self._columns)
        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the micro-batch visible, at most once."""
        results = results_of(messages)
        if not any(result.staged.drafts for result in results):
            if batchId == 0:
                open_sink_root(self._options, None, 0)  # later micro-batches do not create it
            return
        query_ids = {result.query_id for result in results}
        batch_ids = {result.batch_id for result in results}
        if len(query_ids) != 1 or None in query_ids or batch_ids - {batchId, None}:
            raise SparklogError(
                "INTERNAL",
                f"micro-batch {batchId}: tasks report queries {query_ids} and batches {batch_ids}, expected "
                "one query and this batch; the batch cannot be written exactly once without them",
                fix="report this with Spark's version; none of the batch's rows are visible",
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
            _log_skipped(query_id, batchId, topic, found, content)
        wanted = next(
            (result.maintenance for result in results if result.maintenance is not None),
            options.maintenance,
        )
        if wanted:
            maintain_if_due(log, options)

    def _checkpoint(self, results: Sequence[TaskResult]) -> str | None:
        """Return the location of the query's checkpoint; None if it is unknown."""
        options = self._options
        if options.checkpoint_location is not None:
            return options.checkpoint_location
        directory = next((result.checkpoints for result in results if result.checkpoints), None)
        if directory is None or options.query_name is None:
            return None  # without a name Spark creates a new checkpoint with each start
        return f"{directory.rstrip('/')}/{options.query_name}"

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the written rows are invisible, and nothing will refer to them."""


def _another_batch(query_id: str, batch_id: int, error: InvalidRequestError) -> InvalidRequestError:
    return InvalidRequestError(
        error.code,
        f"micro-batch {batch_id} of query {query_id} starts or ends at other offsets than the one that was "
        f"written under this number, and would be skipped as its repetition: {error.message}",
        fix="check whether the checkpoint is an older copy that was restored, or also used by another query; "
        "then start the query with a new checkpointLocation, and with startingOffsets at the end of its rows "
        "in the topic, or delete the topic and write it again; nothing of the micro-batch is visible",
    )


def _outdated(query_id: str, batch_id: int, later: Mapping[str, AppliedBefore]) -> InvalidRequestError:
    """Return the error for a micro-batch before the last one: no repetition, so it may have new rows."""
    topics = "; ".join(f"{topic} has {found}" for topic, found in sorted(later.items()))
    return InvalidRequestError(
        "CHECKPOINT_OUTDATED",
        f"micro-batch {batch_id} of query {query_id}: later ones were written already ({topics}), so the "
        "checkpoint is an older copy that was restored, or also used by another query",
        fix="restore the newest checkpoint; without one, start the query with a new checkpointLocation, and "
        "with startingOffsets at the end of its rows in the topic; nothing of the micro-batch is visible",
    )


def _log_skipped(query_id: str, batch_id: int, topic: str, found: AppliedBefore, content: str) -> None:
    same = content and content == found.content
    logger.log(
        logging.INFO if same else logging.WARNING,
        "micro-batch %d of query %s is skipped for topic %s, which has it (%s)%s",
        batch_id,
        query_id,
        topic,
        found,
        ": it was repeated" if same else "; without its checkpoint the two cannot be compared",
    )
