"""The options of the Spark source and sink, one declaration each: docs/options.md is generated from them.

Names and defaults are those of Spark's Kafka connector, so that changing ``format("kafka")`` suffices;
``path`` or ``kafka.bootstrap.servers`` says where the log is.
Not here: parsing (options.py); what is passed on to Kafka clients elsewhere (kafka_options.py).
Sources: Spark's structured-streaming-kafka-integration guide and KafkaSourceProvider.
"""

from dataclasses import dataclass


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
    "not used. Whoever answers there chooses what is opened with the query's credentials: see clusterId and "
    "allowedRoots.",
)

CLUSTER_ID = Option(
    name="clusterId",
    default="",
    doc="The cluster id of the root that is meant (sparklog root describe shows it), named by path or by a "
    "broker: another one is refused, and none is made. Beats what a sink's checkpoint remembers.",
)

ALLOWED_ROOTS = Option(
    name="allowedRoots",
    default="",
    doc="Paths and URLs, separated by commas (s3://bucket/prefix,/data/logs): a root that lies under none of "
    "them, by path or as a broker's answer, is refused before it is looked at. The environment variable "
    "SPARKLOG_ALLOWED_ROOTS does the same for all queries of a driver; both must allow the root "
    "(docs/deploy.md).",
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

TOPIC_CONFIG_PREFIX = "topic.config."
TOPIC_CONFIG = Option(
    name=f"{TOPIC_CONFIG_PREFIX}<setting>",
    default="the root's",
    doc="A setting of topics created on write, by Kafka's name: topic.config.max.message.bytes, "
    "topic.config.compression.type, ... (docs/configs.md); topics that exist keep theirs.",
)

SOURCE_OPTIONS = (
    Option(name="path", default="", doc="The root of the log, a directory or s3:// URL; also load(root)."),
    BOOTSTRAP_SERVERS,
    CLUSTER_ID,
    ALLOWED_ROOTS,
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
        "it was reading; false: warn and go on with the next. A group's position outside the log "
        "(startingOffsets=group) is such a loss; past the log's end, false reads from the beginning.",
    ),
    Option(
        name="minPartitions",
        default="",
        doc="Split the ranges into at least about this many tasks. 1 gives each partition a task of its own, "
        "as with Kafka's connector; for what happens without it see maxPartitions.",
    ),
    Option(
        name="maxPartitions",
        default="",
        doc="Let neighbouring partitions share a task so that there are at most so many tasks, where "
        "maxRecordsPerPartition allows. Without it, and without minPartitions, there are as many tasks as "
        "the session runs at a time, where sparklog.register(spark) or SPARKLOG_TASK_SLOTS in the driver's "
        "environment says how many (docs/tuning.md): partitions share them by their bytes, up to 256 MiB. "
        "Elsewhere a partition is a task, but from 400 partitions on neighbours share one up to 4 MiB, in no "
        "fewer than 200 tasks.",
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
    Option(
        name="fetchOffset.numRetries",
        default="3",
        doc="A plan is tried again so often when the storage is busy; each try waits as long as the store's "
        "own retry_timeout says.",
    ),
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
    CLUSTER_ID,
    ALLOWED_ROOTS,
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
    TOPIC_CONFIG,
    Option(
        name="maintenance",
        default="the session's spark.sparklog.maintenance, SPARKLOG_MAINTENANCE, auto",
        doc="auto: when the root is due for it, a process of low priority beside the driver merges small "
        "extents, and removes what is past its retention where the root lets records go by themselves "
        "(docs/maintenance.md); off: somebody else does (`sparklog maintain`, a broker), or nobody. For all "
        'queries of a session: spark.conf.set("spark.sparklog.maintenance", "off").',
        only="stream",
    ),
    Option(
        name="checkpointLocation",
        default="",
        doc="Spark's. Where the driver can read it as files, or in S3 as the root, a micro-batch that comes "
        "again under its number with other offsets is refused (a restored or copied checkpoint), and so is a "
        "root with another cluster id than the one that the query has written to (file sparklog-sink in it; "
        "see clusterId).",
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
        "with a warning; a write to several topics is refused if one has a later version and another lacks "
        "this one (VERSION_OUTDATED).",
        only="batch",
    ),
)
