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
what the checkpoint says of it (sink_root.py) goes into the commit and is compared. A batch below the topic's
last one has nothing to be compared with, and Spark never repeats one: it is refused.
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
from sparklog.spark.notices import Notices, settle_in
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
# The columns that the sink takes, checked before anything is written.
#
# Kafka's sink's columns (key, value, topic, headers, partition) and an optional timestamp. Other columns are
# not written, as with Kafka's sink. The source's own are left out silently, so that rows read from a topic
# can be written again. The rest is a warning, and a name that differs in capitals only is an error.
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
    """Which of the columns to write, in a fixed order.

    Raises:
        InvalidRequestError: a column is missing, is there twice, has the wrong type, or is named as one of
            the sink's but for its capitals; the topic is an internal one.
    """
    names = schema.fieldNames()
    skipped = set()
    if options.topic is not None:
        refuse_internal(options.topic)  # better here than in every task
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
            fix="select something as value, for example to_json(struct(*)) AS value",
        )
    if options.topic is None and "topic" not in names:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"there is neither an option topic nor a column topic; the columns are {', '.join(names)}",
            fix='set .option("topic", "...") or add the column topic',
        )
    found = {field.name: field.dataType for field in schema.fields}
    for name in wanted:
        if name in found and not any(_same_type(found[name], one) for one in _ALLOWED[name]):
            expected = " or ".join(one.simpleString() for one in _ALLOWED[name])
            raise InvalidRequestError(
                "INVALID_COLUMN",
                f"column {name} is {found[name].simpleString()}, expected {expected}",
                fix=_how_to_convert(name, found[name]),
            )
    _warn_of_unknown(names, wanted, options)
    return [name for name in wanted if name in found]


def _check_name(name: str, names: list[str]) -> None:
    """Spark takes `Key` for `key`; left out like any other column, it would be lost without a word."""
    if names.count(name) > 1:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"column {name} is there {names.count(name)} times; the columns are {', '.join(names)}",
            fix=f"select the one that is meant, and rename or drop the others named {name}",
        )
    alike = [other for other in names if other.lower() == name]
    if alike and name not in alike:
        raise InvalidRequestError(
            "INVALID_COLUMN",
            f"found column {alike[0]}, expected it in lower case, as {name}: it would not be written",
            fix=f"rename it to {name}, or to something else if it is not meant to be written",
        )


def _warn_of_unknown(names: list[str], wanted: list[str], options: SinkOptions) -> None:
    """Name the columns that are not written, and what may be meant: `keys` for `key` loses every key."""
    by_option = [name for name in _ALLOWED if name not in wanted]
    known = {*wanted, *_OF_THE_SOURCE}
    unknown = [name for name in names if name not in known and name.lower() not in by_option]
    if not unknown:
        return
    missing = [name for name in wanted if name not in names]
    said = []
    for name in unknown[:_NAMED]:
        nearest = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.6)
        said.append(f"{name} (did you mean {nearest[0]}?)" if nearest else name)
    more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
    Notices({"root": options.root, "topic": options.topic or ""}).warn(
        f"the sink does not write the columns {', '.join(said)}{more}: it takes {', '.join(_ALLOWED)}. "
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
    # TIMESTAMP alone is one without a zone where spark.sql.timestampType says so.
    wanted = "TIMESTAMP_LTZ" if name == "timestamp" else _ALLOWED[name][0].simpleString().upper()
    return f"cast the column, for example CAST({name} AS {wanted}) AS {name}"


def _same_type(found: DataType, wanted: DataType) -> bool:
    """Equal but for nullability and collation."""
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


# --- stream writer -----------------------------------------------------------------------------------


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
            from sparklog.spark.rows import as_arrow_batches  # noqa: PLC0415 - for old Sparks only

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
