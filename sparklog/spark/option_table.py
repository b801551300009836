"""The options of the Spark source and sink, one declaration each: docs/options.md is generated from them.

Names and defaults are those of Spark's Kafka connector, so that changing ``format("kafka")`` suffices;
``path`` or ``kafka.bootstrap.servers`` names the log.
Not here: parsing, and Kafka's client options (options.py).
Sources: Spark's structured-streaming-kafka-integration guide and KafkaSourceProvider.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the source or the sink, as documented."""

    name: str
    default: str
    doc: str
    only: str = ""  # "stream" or "batch": the only kind of query with this option


WITHOUT_EFFECT = "Accepted with a warning; has no effect, since there is no Kafka consumer."
BOOTSTRAP_SERVERS = Option(
    name="kafka.bootstrap.servers",
    default="",
    doc="host:port of a sparklog broker, or several separated by commas, instead of path. The driver "
    "asks the broker for its root once for each plan; records go to the storage directly. Has no "
    "effect together with path. The server at this address decides which root is opened with the query's "
    "credentials: see clusterId and allowedRoots.",
)

SECURITY = Option(
    name="kafka.security.protocol",
    default="PLAINTEXT",
    doc="How the driver connects to the broker of kafka.bootstrap.servers: PLAINTEXT, SSL, SASL_PLAINTEXT or "
    "SASL_SSL; with kafka.sasl.mechanism and kafka.sasl.jaas.config (SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, "
    "OAUTHBEARER), kafka.ssl.truststore.*, kafka.ssl.keystore.* (PEM) and kafka.ssl.key.password, as of "
    "Kafka's clients (docs/security.md). Without effect together with path. Records go to the storage, with "
    "its permissions.",
)

CLUSTER_ID = Option(
    name="clusterId",
    default="",
    doc="The cluster id that the root must have (sparklog root describe shows it), whether path or a "
    "broker names the root. Any other root is refused, and none is created. Takes precedence over "
    "the cluster id in a sink's checkpoint.",
)

ALLOWED_ROOTS = Option(
    name="allowedRoots",
    default="",
    doc="Paths and URLs separated by commas (s3://bucket/prefix,/data/logs). A root that is not under one "
    "of them, given by path or by a broker, is refused before it is opened. The environment "
    "variable SPARKLOG_ALLOWED_ROOTS does the same for all queries of a driver; both must allow the "
    "root (docs/deploy.md).",
)

STORAGE = Option(
    name="s3.<option>",
    default="the environment's",
    doc="How to access an s3:// root, by s3fs's names: s3.key, s3.secret, s3.token, s3.endpoint_url, "
    "s3.profile, ... (docs/s3.md); the common ones also without s3., and Hadoop's fs.s3a.access.key, "
    "fs.s3a.secret.key, fs.s3a.session.token, fs.s3a.endpoint, fs.s3a.endpoint.region, "
    "fs.s3a.path.style.access and fs.s3a.connection.ssl.enabled. Other stores (docs/object-stores.md): "
    "gs.<option> by gcsfs's names, azure.<option> by adlfs's, hdfs.<option>, or Hadoop's fs.gs.* and "
    "fs.azure.*; fsspec.<option>, and storage.protocol=fsspec, for any other file system.",
)

UNSAFE = Option(
    name="allow_unsafe_filesystem",
    default="SPARKLOG_ALLOW_UNSAFE_FILESYSTEM, false",
    doc="true: open the root even on a file system that caches names (NFS, SMB, FUSE, shared folders), "
    "where acknowledged records can be lost if several machines use it (docs/filesystems.md).",
)

TOPIC_CONFIG_PREFIX = "topic.config."
TOPIC_CONFIG = Option(
    name=f"{TOPIC_CONFIG_PREFIX}<setting>",
    default="the root's",
    doc="A setting of topics that the write creates, by Kafka's name: topic.config.max.message.bytes, "
    "topic.config.compression.type, ... (docs/configs.md). Topics that exist keep theirs.",
)

SOURCE_OPTIONS = (
    Option(
        name="path",
        default="",
        doc="The root of the log, a directory or the URL of a bucket; also load(root).",
    ),
    BOOTSTRAP_SERVERS,
    SECURITY,
    CLUSTER_ID,
    ALLOWED_ROOTS,
    STORAGE,
    UNSAFE,
    Option(name="subscribe", default="", doc="Topics to read, separated by commas."),
    Option(
        name="subscribePattern",
        default="",
        doc="Regular expression of Python's re. As with Kafka's connector it may match any part of a topic's "
        "name (^name$ is one topic). Syntax with another meaning in Java (`[a-z&&[^b]]`) is refused. "
        "Internal topics never match.",
    ),
    Option(name="assign", default="", doc='Partitions to read, as JSON: {"topic": [0, 1]}.'),
    Option(
        name="startingOffsets",
        default="latest (stream), earliest (batch)",
        doc="Where a new query starts; a query with a checkpoint continues from it. earliest, latest "
        '(streams only), group, or JSON {"topic": {"0": 23, "1": -2}, "other": "earliest"} with -2 for '
        "earliest and -1 for latest. It must name all partitions that are read; earliest or latest for a "
        "topic is for all of its partitions.",
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
        doc="If no record has that timestamp or a later one: error, or latest.",
    ),
    Option(
        name="endingOffsets",
        default="latest",
        doc="Where a batch query ends (exclusive): latest, group, or JSON with -1 for latest, or latest for "
        "a topic.",
        only="batch",
    ),
    Option(name="endingOffsetsByTimestamp", default="", doc="End before a timestamp, by JSON.", only="batch"),
    Option(name="endingTimestamp", default="", doc="End before a timestamp (ms).", only="batch"),
    Option(
        name="failOnDataLoss",
        default="true",
        doc="true: fail if records to read are gone, or if a stream no longer subscribes to a topic that it "
        "was reading. false: warn, and continue with the next record. Positions outside the log "
        "count as such a loss: startingOffsets of a stream, the checkpoint's, and a group's "
        "(startingOffsets=group). If one is past the log's end, false continues at that end, and with a "
        "group at the beginning.",
    ),
    Option(
        name="minPartitions",
        default="",
        doc="Split the ranges into at least about this many tasks. 1 gives each partition a task of its "
        "own, as with Kafka's connector; maxPartitions describes the default.",
    ),
    Option(
        name="maxPartitions",
        default="",
        doc="At most this many tasks, as far as maxRecordsPerPartition allows: neighbouring partitions "
        "share one. Without it and minPartitions there are as many tasks as the session runs at a time, "
        "if sparklog.register(spark) was called or SPARKLOG_TASK_SLOTS is in the driver's environment "
        "(docs/tuning.md): partitions are spread over them by size, up to 256 MiB each. Otherwise each "
        "partition is a task; from 400 partitions on, neighbours share one up to 4 MiB, in no fewer "
        "than 200 tasks.",
    ),
    Option(name="maxRecordsPerPartition", default="", doc="At most this many records in one task."),
    Option(
        name="maxOffsetsPerTrigger",
        default="",
        doc="At most about this many records per micro-batch, divided by backlog: a partition with a "
        "backlog always gets at least one.",
        only="stream",
    ),
    Option(
        name="maxBytesPerTrigger",
        default="",
        doc="At most about this many stored bytes per micro-batch.",
        only="stream",
    ),
    Option(
        name="minOffsetsPerTrigger",
        default="",
        doc="Wait until this many records are available. The first micro-batch after a start does not wait.",
        only="stream",
    ),
    Option(
        name="maxTriggerDelay",
        default="15m",
        doc="The longest wait for minOffsetsPerTrigger.",
        only="stream",
    ),
    Option(name="includeHeaders", default="false", doc="Add the column headers."),
    Option(
        name="kafka.group.id",
        default="",
        doc="In streams: record the query's progress in __consumer_offsets under this group, so that its "
        "lag can be seen. It overwrites the group's committed offsets: give each query its own group. "
        "In batch queries: only the group of startingOffsets=group and endingOffsets=group; nothing is "
        "recorded.",
    ),
    Option(name="group.id", default="", doc="The same as kafka.group.id."),
    Option(name="groupIdPrefix", default="spark-kafka-source", doc=WITHOUT_EFFECT),
    Option(name="kafkaConsumer.pollTimeoutMs", default="120000", doc=WITHOUT_EFFECT),
    Option(
        name="fetchOffset.numRetries",
        default="3",
        doc="The number of retries of a plan while the storage is unavailable; each try waits for up to the "
        "store's own retry_timeout.",
    ),
    Option(name="fetchOffset.retryIntervalMs", default="10", doc="The pause before each retry."),
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
        doc="The root of the log, a directory or the URL of a bucket; also start(root), save(root).",
    ),
    BOOTSTRAP_SERVERS,
    SECURITY,
    CLUSTER_ID,
    ALLOWED_ROOTS,
    STORAGE,
    UNSAFE,
    Option(
        name="topic",
        default="",
        doc="Write everything to this topic; takes precedence over the column topic.",
    ),
    Option(name="includeHeaders", default="true", doc="false: leave the column headers out."),
    Option(
        name="compression.type",
        default="none",
        doc="none, gzip, snappy, lz4 or zstd, used if the topic's compression.type is producer; "
        "kafka.compression.type means the same.",
    ),
    Option(
        name="batch.size",
        default="262144",
        doc="Aim at record batches of this many bytes before compression; kafka.batch.size means the same.",
    ),
    Option(
        name="max.request.size",
        default="the topic's max.message.bytes",
        doc="Refuse records larger than this; kafka.max.request.size means the same.",
    ),
    Option(
        name="flush.messages",
        default="",
        doc="Besides the flush before each commit, flush after this many records.",
    ),
    Option(name="flush.ms", default="", doc="Besides the flush before each commit, flush this often."),
    Option(
        name="auto.create.topics.enable", default="the root's (true)", doc="Create topics that do not exist."
    ),
    Option(
        name="num.partitions",
        default="the root's (1)",
        doc="Partitions of a topic that the write creates. An existing topic keeps its number (sparklog "
        "topics alter --partitions).",
    ),
    TOPIC_CONFIG,
    Option(
        name="maintenance",
        default="the session's spark.sparklog.maintenance, SPARKLOG_MAINTENANCE, auto",
        doc="auto: when maintenance is due, a process of low priority next to the driver merges small "
        "extents, and removes records past their retention if the root allows automatic removal "
        "(docs/maintenance.md). off: the query runs none (use `sparklog maintain` or a broker). "
        'For all queries of a session: spark.conf.set("spark.sparklog.maintenance", "off").',
        only="stream",
    ),
    Option(
        name="checkpointLocation",
        default="",
        doc="Spark's. If the driver can read it as files, or if it is in a store of the root's kind, two "
        "things are refused: a micro-batch whose number was written before with other offsets (a restored or "
        "copied checkpoint), and a root whose cluster id is not the one that the query has written to "
        "(recorded in the checkpoint's file sparklog-sink; see clusterId).",
        only="stream",
    ),
    Option(name="queryName", default="", doc="Spark's; passed to every sink.", only="stream"),
    Option(
        name="asyncProgressTrackingEnabled",
        default="false",
        doc="Spark's, for Kafka's sink and a few others: offsets are written less often than micro-batches "
        "run, so rows may be written twice. Only false is accepted; with true, Spark refuses this sink.",
        only="stream",
    ),
    Option(
        name="asyncProgressTrackingCheckpointIntervalMs",
        default="",
        doc="Spark's; has no effect without asyncProgressTrackingEnabled.",
        only="stream",
    ),
    Option(
        name="txnAppId",
        default="",
        doc="With txnVersion: apply this write to each topic at most once. A topic remembers the 10,000 "
        "applications that wrote to it last, so give a job one name, not one per run. In foreachBatch "
        "include the query's id in the name: with a new checkpoint the batch ids begin at 0 again, and "
        "would be skipped under the old name (docs/migrate-from-kafka.md).",
        only="batch",
    ),
    Option(
        name="txnVersion",
        default="",
        doc="Increases with every write of txnAppId. A topic that already has this version, or a later one, "
        "is skipped, with a warning. A write to several topics is refused if one has a later version and "
        "another lacks this one (VERSION_OUTDATED).",
        only="batch",
    ),
)
