"""Options of the Spark source and sink: one declaration each, parsed once, unknown ones refused.

Names, defaults and precedence are those of Spark's Kafka connector, so that changing
``format("kafka")`` suffices; ``path`` or ``kafka.bootstrap.servers`` says where the log is.
Not here: what the offsets mean against a root (offsets.py), who calls whom (datasource.py).
Sources: Spark's structured-streaming-kafka-integration guide and KafkaSourceProvider.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.errors import InvalidRequestError
from sparklog.spark.kafka_options import check_kafka_option
from sparklog.spark.offset_spec import (
    EARLIEST,
    LATEST,
    OffsetSpec,
    parse_ending,
    parse_starting,
)
from sparklog.spark.roots import root_of_broker
from sparklog.spark.storage_options import NO_STORAGE_OPTIONS, StorageOptions, parse_storage, storage_name
from sparklog.spark.subscription import Subscription, parse_subscription
from sparklog.spark.values import parse_bool, parse_duration_ms, parse_int

logger = logging.getLogger("sparklog.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its name as users type it, its default, what it does, where it applies."""

    name: str
    default: str
    doc: str
    only: str = ""  # "stream" or "batch" when it has no meaning elsewhere


NEEDS_BROKER = "Accepted with a warning; has no effect without a broker."
BOOTSTRAP_SERVERS = Option(
    name="kafka.bootstrap.servers",
    default="",
    doc="host:port of a sparklog broker, several separated by commas: instead of path, the broker is asked "
    "for its root, once for each plan on the driver; records go to the storage directly. With path it is "
    "not used.",
)

STORAGE = Option(
    name="s3.<option>",
    default="the environment's",
    doc="How to reach an s3:// root, by s3fs's names: s3.key, s3.secret, s3.token, s3.endpoint_url, "
    "s3.profile, ... (docs/s3.md); the usual ones also without s3., and Hadoop's fs.s3a.access.key, "
    "fs.s3a.secret.key, fs.s3a.session.token, fs.s3a.endpoint, fs.s3a.endpoint.region, "
    "fs.s3a.path.style.access and fs.s3a.connection.ssl.enabled.",
)

UNSAFE = Option(
    name="allow_unsafe_filesystem",
    default="SPARKLOG_ALLOW_UNSAFE_FILESYSTEM, false",
    doc="true: open the root also on a file system that caches names (NFS, SMB, FUSE, shared folders), where "
    "acknowledged records can be lost if several machines use it (docs/filesystems.md).",
)

SOURCE_OPTIONS = (
    Option(name="path", default="", doc="The root of the log, a directory or s3:// URL; also load(root)."),
    BOOTSTRAP_SERVERS,
    STORAGE,
    UNSAFE,
    Option(name="subscribe", default="", doc="Topics to read, separated by commas."),
    Option(
        name="subscribePattern",
        default="",
        doc="Regular expression, looked for anywhere in topics' names as by Kafka's connector (^name$ is "
        "one topic); internal topics are not found.",
    ),
    Option(name="assign", default="", doc='Partitions to read, as JSON: {"topic": [0, 1]}.'),
    Option(
        name="startingOffsets",
        default="latest (stream), earliest (batch)",
        doc='Where a new query starts: earliest, latest (streams only), group, or JSON {"topic": {"0": 23, '
        '"1": -2}} with -2 for earliest and -1 for latest.',
    ),
    Option(
        name="startingOffsetsByTimestamp",
        default="",
        doc='Start at the first record at or after a timestamp: {"topic": {"0": 1735689600000}} (ms).',
    ),
    Option(name="startingTimestamp", default="", doc="The same timestamp (ms) for every partition."),
    Option(
        name="startingOffsetsByTimestampStrategy",
        default="error",
        doc="When no record is that late: error, or latest.",
    ),
    Option(
        name="endingOffsets",
        default="latest",
        doc="Where a batch query ends (exclusive): latest, group, or JSON with -1 for latest.",
        only="batch",
    ),
    Option(name="endingOffsetsByTimestamp", default="", doc="End before a timestamp, by JSON.", only="batch"),
    Option(name="endingTimestamp", default="", doc="End before a timestamp (ms).", only="batch"),
    Option(
        name="failOnDataLoss",
        default="true",
        doc="Fail when records that should be there are gone, or a stream no longer subscribes to what "
        "it was reading; false: warn and go on with the next.",
    ),
    Option(name="minPartitions", default="", doc="Split the ranges into at least about this many tasks."),
    Option(
        name="maxPartitions",
        default="",
        doc="Let neighbouring partitions share a task so that there are at most so many tasks, where "
        "maxRecordsPerPartition allows: for many partitions with little in each, as in short micro-batches.",
    ),
    Option(name="maxRecordsPerPartition", default="", doc="At most this many records in one task."),
    Option(
        name="maxOffsetsPerTrigger",
        default="",
        doc="At most this many records a micro-batch, shared by backlog.",
        only="stream",
    ),
    Option(
        name="maxBytesPerTrigger",
        default="",
        doc="At most about this many stored bytes a micro-batch.",
        only="stream",
    ),
    Option(
        name="minOffsetsPerTrigger",
        default="",
        doc="Wait until there are so many; the first micro-batch after a start does not wait.",
        only="stream",
    ),
    Option(name="maxTriggerDelay", default="15m", doc="... but no longer than this.", only="stream"),
    Option(name="includeHeaders", default="false", doc="Add the column headers."),
    Option(
        name="kafka.group.id",
        default="",
        doc="Record the progress in __consumer_offsets under this group, so that lag can be seen.",
    ),
    Option(name="group.id", default="", doc="The same as kafka.group.id."),
    Option(name="groupIdPrefix", default="spark-kafka-source", doc=NEEDS_BROKER),
    Option(name="kafkaConsumer.pollTimeoutMs", default="120000", doc=NEEDS_BROKER),
    Option(name="fetchOffset.numRetries", default="3", doc="Tries again when the storage is busy."),
    Option(name="fetchOffset.retryIntervalMs", default="10", doc="... after this long."),
    Option(
        name="filterPushdown",
        default="false",
        doc="Prune by topic, partition, offset and timestamp; needs "
        "spark.sql.python.filterPushdown.enabled=true.",
        only="batch",
    ),
)

SINK_OPTIONS = (
    Option(
        name="path",
        default="",
        doc="The root of the log, a directory or s3:// URL; also start(root), save(root).",
    ),
    BOOTSTRAP_SERVERS,
    STORAGE,
    UNSAFE,
    Option(name="topic", default="", doc="Write everything to this topic; overrides the column topic."),
    Option(name="includeHeaders", default="true", doc="false: leave the column headers out."),
    Option(
        name="compression.type",
        default="none",
        doc="none, gzip, snappy, lz4 or zstd, unless the topic's compression.type says otherwise; "
        "kafka.compression.type means the same.",
    ),
    Option(
        name="batch.size",
        default="262144",
        doc="Aim at record batches of so many bytes, before compression; kafka.batch.size means the same.",
    ),
    Option(
        name="max.request.size",
        default="the topic's max.message.bytes",
        doc="Refuse records larger than this; kafka.max.request.size means the same.",
    ),
    Option(
        name="flush.messages", default="", doc="Besides the flush before each commit, flush after so many."
    ),
    Option(name="flush.ms", default="", doc="Besides the flush before each commit, flush this often."),
    Option(name="auto.create.topics.enable", default="the root's (true)", doc="Create topics on write."),
    Option(name="num.partitions", default="the root's (1)", doc="Partitions of a topic created on write."),
    Option(
        name="checkpointLocation",
        default="",
        doc="Spark's. Where the driver can read it as files, or in S3 as the root, a micro-batch that comes "
        "again under its number with other offsets is refused (a restored or copied checkpoint).",
        only="stream",
    ),
    Option(name="queryName", default="", doc="Spark's; passed to every sink.", only="stream"),
    Option(
        name="txnAppId",
        default="",
        doc="With txnVersion: apply this write to each topic at most once. A topic remembers the 10,000 that "
        "have written to it last: a job needs one name, not one for each run.",
        only="batch",
    ),
    Option(
        name="txnVersion",
        default="",
        doc="Grows with every write of txnAppId. A topic that has this version, or a later one, is left out, "
        "with a warning.",
        only="batch",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the source was asked for, checked; picklable."""

    root: str
    storage: StorageOptions = NO_STORAGE_OPTIONS
    streaming: bool
    subscription: Subscription
    starting: OffsetSpec
    ending: OffsetSpec
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    include_headers: bool
    group_id: str | None
    retries: int
    retry_interval_ms: int
    filter_pushdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What the sink was asked for, checked; picklable."""

    root: str
    storage: StorageOptions = NO_STORAGE_OPTIONS
    streaming: bool
    topic: str | None
    include_headers: bool
    compression_type: str | None
    batch_size_bytes: int | None
    max_request_bytes: int | None
    flush_messages: int | None
    flush_ms: int | None
    auto_create_topics: bool | None
    num_partitions: int | None
    txn_app_id: str | None
    txn_version: int | None
    checkpoint_location: str | None
    query_name: str | None


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Check and parse the options of one query.

    Raises:
        InvalidRequestError: an unknown, missing, contradictory or malformed option.
    """
    given = _known(options, SOURCE_OPTIONS, "source", streaming=streaming)
    group_id = _same_value(given, "kafka.group.id", "group.id")
    starting = parse_starting(given, default=LATEST if streaming else EARLIEST, streaming=streaming)
    ending = parse_ending(given, default=LATEST)
    for spec, option in ((starting, "startingOffsets"), (ending, "endingOffsets")):
        if spec.kind == "group" and group_id is None:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{option}=group, but no group is named",
                fix="set kafka.group.id to the group whose offsets to use",
            )
    root = _root(given, "load")
    parsed = SourceOptions(
        root=root,
        storage=parse_storage(given, root, streaming=streaming),
        streaming=streaming,
        subscription=parse_subscription(given),
        starting=starting,
        ending=ending,
        fail_on_data_loss=parse_bool(given, "failOnDataLoss", default=True),
        min_partitions=parse_int(given, "minPartitions", minimum=1),
        max_partitions=parse_int(given, "maxPartitions", minimum=1),
        max_records_per_partition=parse_int(given, "maxRecordsPerPartition", minimum=1),
        max_offsets_per_trigger=parse_int(given, "maxOffsetsPerTrigger", minimum=1),
        max_bytes_per_trigger=parse_int(given, "maxBytesPerTrigger", minimum=1),
        min_offsets_per_trigger=parse_int(given, "minOffsetsPerTrigger", minimum=1),
        max_trigger_delay_ms=parse_duration_ms(given, "maxTriggerDelay", default_ms=15 * 60_000),
        include_headers=parse_bool(given, "includeHeaders", default=False),
        group_id=group_id,
        retries=parse_int(given, "fetchOffset.numRetries", minimum=0, default=3),
        retry_interval_ms=parse_int(given, "fetchOffset.retryIntervalMs", minimum=0, default=10),
        filter_pushdown=parse_bool(given, "filterPushdown", default=False),
    )
    parse_int(given, "kafkaConsumer.pollTimeoutMs", minimum=0)
    _check_order("OffsetsPerTrigger", parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger)
    _check_order("Partitions", parsed.min_partitions, parsed.max_partitions)
    return parsed


def _check_order(name: str, low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"min{name} ({low}) is higher than max{name} ({high})",
            fix=f"lower min{name} or raise max{name}",
        )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check and parse the options of one write.

    Raises:
        InvalidRequestError: an unknown, missing, contradictory or malformed option.
    """
    given = _known(options, SINK_OPTIONS, "sink", streaming=streaming)
    for name in ("compression.type", "batch.size", "max.request.size"):
        if (value := _same_value(given, f"kafka.{name}", name)) is not None:
            given[name] = value
    topic = given.get("topic", "").strip() or None
    app_id, version = given.get("txnappid"), parse_int(given, "txnVersion", minimum=0)
    if (app_id is None) != (version is None):
        raise InvalidRequestError(
            "INVALID_OPTION",
            "txnAppId and txnVersion make sense only together, and one is missing",
            fix="set both: a name for the job, and a number that grows with every run",
        )
    root = _root(given, "start" if streaming else "save")
    return SinkOptions(
        root=root,
        storage=parse_storage(given, root),
        streaming=streaming,
        topic=topic,
        include_headers=parse_bool(given, "includeHeaders", default=True),
        compression_type=given.get("compression.type"),
        batch_size_bytes=parse_int(given, "batch.size", minimum=1),
        max_request_bytes=parse_int(given, "max.request.size", minimum=1),
        flush_messages=parse_int(given, "flush.messages", minimum=1),
        flush_ms=parse_int(given, "flush.ms", minimum=1),
        auto_create_topics=parse_bool(given, "auto.create.topics.enable", default=None),
        num_partitions=parse_int(given, "num.partitions", minimum=1),
        txn_app_id=app_id,
        txn_version=version,
        checkpoint_location=given.get("checkpointlocation"),
        query_name=given.get("queryname"),
    )


def _known(
    options: Mapping[str, str], declared: tuple[Option, ...], side: str, *, streaming: bool
) -> dict[str, str]:
    """The options by lower-case name, all of them known to this side and fit for this kind of query."""
    by_name = {option.name.lower(): option for option in declared}
    given = {}
    for name, value in options.items():
        lower = name.lower()
        option = by_name.get(lower)
        if option is not None and option.doc == NEEDS_BROKER:
            logger.warning("%s has no effect: sparklog reads the storage itself", option.name)
        if option is None and lower.startswith("kafka."):
            check_kafka_option(lower, value, side)
        elif option is None and storage_name(lower) is not None:
            pass  # checked with the others of its kind (storage_options.py)
        elif option is None:
            nearest = difflib.get_close_matches(lower, by_name, n=1, cutoff=0.6)
            hint = f"did you mean {by_name[nearest[0]].name}?" if nearest else "see the README's option table"
            raise InvalidRequestError(
                "UNKNOWN_OPTION",
                f"the {side} has no option {name!r}; {hint}",
                fix="correct or remove the option",
            )
        elif option.only == "batch" and streaming:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{option.name} is not valid in streaming queries",
                fix=f"remove {option.name}",
            )
        elif option.only == "stream" and not streaming and lower not in ("checkpointlocation", "queryname"):
            # Kafka's connector warns here as well, so that one option set serves both kinds of query.
            logger.warning("%s is ignored in batch queries", option.name)
            continue
        given[lower] = value
    return given


def _same_value(given: Mapping[str, str], *names: str) -> str | None:
    values = {given[name.lower()] for name in names if name.lower() in given}
    if len(values) > 1:
        raise InvalidRequestError(
            "INVALID_OPTION", f"{' and '.join(names)} differ: {sorted(values)}", fix="set only one of them"
        )
    return values.pop() if values else None


def _root(given: Mapping[str, str], method: str) -> str:
    servers = given.get("kafka.bootstrap.servers", "").strip()
    if root := given.get("path", "").strip():
        if servers:
            logger.warning("kafka.bootstrap.servers has no effect: the root is named by path")
        return root
    if servers:
        return root_of_broker(servers)
    raise InvalidRequestError(
        "MISSING_OPTION",
        "no root directory is given, and no broker",
        fix=f"call {method}(root), or set option path to the log's directory, or kafka.bootstrap.servers to "
        "a sparklog broker",
    )
