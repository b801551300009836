"""Settings of the broker itself: its identity, its root, and how often it polls the metadata log.

Sources: Kafka KafkaConfig, BrokerLifecycleManager.
"""

import dataclasses

from sparklog.errors import InvalidRequestError
from sparklog.format.decode import DEFAULT_MAX_DECOMPRESSED_BYTES
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.updating import INT_MAX, MIB

# --- logs --------------------------------------------------------------------------------------------
#
# Settings of the broker's own log files.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The fields' names are the keys with underscores."""

    logs_dir: str = setting(
        "sparklog.logs.dir",
        default="",
        doc="""Directory of the broker's own log files, rolled every midnight; another one for each
        broker; empty: to stderr.
        controller.log: elections, and brokers that come and go; state-change.log: states of this broker,
        and of brokers, topics, partitions and replicas as they change; log-cleaner.log: maintenance;
        request.log: requests; authorizer.log: verdicts of ACLs; server.log: everything else.""",
    )
    logs_format: str = setting(
        "sparklog.logs.format",
        default="text",
        choices=("text", "json"),
        doc="""text: a line to read; json: an object per line, for log collectors.""",
    )
    logs_level: str = setting(
        "sparklog.logs.level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        doc="""The lowest level that is logged.""",
    )
    logs_requests: bool = setting(
        "sparklog.logs.requests",
        default=False,
        doc="""Log every request and its duration. Costs a line per request.""",
    )
    logs_keep_days: int = setting(
        "sparklog.logs.keep.days",
        default=7,
        minimum=1,
        maximum=3650,
        unit="days",
        doc="""The number of rolled log files of each kind to keep.""",
    )


# --- controller --------------------------------------------------------------------------------------
#
# Settings of the controller: when partitions return to their preferred leaders.
#
# Sources: Kafka ReplicationConfigs.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The fields' names are the keys with underscores."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        default=True,
        doc="""Once in a while, partitions are led again by the first of their replicas, where others came to
        lead too many. false: until a client asks for it (ElectLeaders). The controller's value counts.""",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        default=10,
        minimum=0,
        maximum=100,
        unit="percent",
        doc="""How many of the partitions that a broker is the first replica of others may lead, before
        leaders go back. Lower: load is spread better; higher: leaders move less often.""",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        default=300,
        minimum=1,
        maximum=INT_MAX,
        unit="seconds",
        doc="""How often the controller checks for partitions to return to their preferred leaders.""",
    )


# --- publish -----------------------------------------------------------------------------------------
#
# Settings of producing: limits of validation, group commits and the backlog.
#
# Sources: Kafka has no counterpart for most; there each partition syncs alone.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """The fields' names are the keys with underscores."""

    max_decompressed_message_bytes: int = setting(
        "max.decompressed.message.bytes",
        default=DEFAULT_MAX_DECOMPRESSED_BYTES,
        minimum=1024,
        maximum=DEFAULT_MAX_DECOMPRESSED_BYTES,
        doc="""Largest record batch after decompression; checked while it is decompressed. No more than
        readers without a broker decompress. Smaller: one request can make the broker hold less. In addition,
        no batch may decompress to more than 512 times its size, or max.message.bytes where that is more.""",
    )
    produce_check_bytes: int = setting(
        "sparklog.produce.check.bytes",
        default=32 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Memory in which compressed batches are validated, over all connections; a batch that needs more
        is validated alone. Larger: more large batches together; smaller: less memory.""",
    )
    publish_linger_ms: int = setting(
        "sparklog.publish.linger.ms",
        default=0,
        minimum=0,
        maximum=60_000,
        doc="""Under load, wait at most so long for as many requests as the last group commit had, before the
        next one; never when idle. Larger: fewer, larger commits, for slow storage; 0: what came while the
        last one was written.""",
    )
    publish_commit_bytes: int = setting(
        "sparklog.publish.commit.bytes",
        default=32 * MIB,
        minimum=1024,
        maximum=1024 * MIB,
        doc="""Most bytes in one group commit (a larger request has one by itself). Larger: fewer syncs under
        load; smaller: a request waits less for the others in its group commit.""",
    )
    publish_commit_parts: int = setting(
        "sparklog.publish.commit.parts",
        default=10_000,
        minimum=1,
        maximum=100_000,
        unit="parts",
        doc="""Most partitions' shares of requests in one group commit, which is one metadata commit of some
        300 bytes for each.""",
    )
    publish_backlog_bytes: int = setting(
        "sparklog.publish.backlog.bytes",
        default=1024 * MIB,
        minimum=1024,
        maximum=LONG_MAX,
        doc="""Most bytes that wait to be published, or are being published: batches as they will be stored,
        and 2,000 bytes for each partition's share of a request. Beyond it produce requests are refused with
        an error that clients retry, and batches that their topic's compression.type makes larger wait; when
        those of one request have an eighth of it, the rest of the request is refused with that error, too.
        queued.max.request.bytes mostly pushes back long before.""",
    )
    publish_backlog_requests: int = setting(
        "sparklog.publish.backlog.requests",
        default=100_000,
        minimum=1,
        maximum=INT_MAX,
        unit="requests",
        doc="""As sparklog.publish.backlog.bytes, in requests.""",
    )


# --- fetch -------------------------------------------------------------------------------------------
#
# Settings of fetching: limits of answers, sessions, waiting fetches and the cache.
#
# Sources: Kafka ServerConfigs (fetch.max.bytes), KIP-227, KIP-392.


_SELECTORS = "org.apache.kafka.common.replica."
LEADER_SELECTOR, RACK_AWARE_SELECTOR = f"{_SELECTORS}LeaderSelector", f"{_SELECTORS}RackAwareReplicaSelector"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """The fields' names are the keys with underscores."""

    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        default=55 * MIB,
        minimum=1024,
        maximum=INT_MAX,
        doc="""Most bytes of records in one answer, whatever the consumer asks for. Larger: fewer round
        trips; smaller: one consumer makes the broker hold less.""",
    )
    fetch_session_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        default=1000,
        minimum=0,
        maximum=1_000_000,
        unit="sessions",
        doc="""Consumers whose partitions are remembered between fetches (KIP-227). More: more consumers send
        short requests; fewer: less memory.""",
    )
    fetch_session_bytes: int = setting(
        "sparklog.fetch.session.bytes",
        default=32 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Memory for what these sessions remember, some 500 bytes for each partition. Larger: more
        consumers of many partitions send short requests; smaller: less memory.""",
    )
    fetch_waiting_bytes: int = setting(
        "sparklog.fetch.waiting.bytes",
        default=32 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Memory for fetches that wait for records, some 1,000 bytes for each partition; further ones are
        answered after 100 ms instead of max.wait.ms. Larger: more consumers wait; smaller: less memory.""",
    )
    fetch_buffer_bytes: int = setting(
        "sparklog.fetch.buffer.bytes",
        default=512 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Records read for consumers and not yet sent, over all connections; beyond it a fetch is
        answered with one batch at a time. Larger: more consumers at full speed; smaller: less memory when
        many are slow.""",
    )
    fetch_cache_bytes: int = setting(
        "sparklog.fetch.cache.bytes",
        default=64 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Memory for the newest batches of the partitions that were read in the last five minutes.
        Larger: consumers may lag further behind without touching the disk; smaller: less memory.""",
    )
    replica_selector_class: str = setting(
        "replica.selector.class",
        default=LEADER_SELECTOR,
        choices=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
        doc="""Which broker serves a consumer with a rack (client.rack): the leader of the partition, or, with
        RackAwareReplicaSelector, a broker in that rack (broker.rack) that has a replica. The names are
        Kafka's; no class is loaded. RackAwareReplicaSelector: no cost for records that leave a zone;
        LeaderSelector: they come sooner, by up to sparklog.metadata.poll.ms.""",
    )

    @property
    def is_rack_aware(self) -> bool:
        """True if consumers are sent to replicas in their racks."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR


# --- broker ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The fields' names are the keys with underscores."""

    node_id: int = setting(
        "node.id",
        default=1,
        minimum=0,
        maximum=INT_MAX,
        doc="""This broker's number, also called broker.id, unique among the brokers of a root.""",
    )
    broker_rack: str = setting(
        "broker.rack",
        default="",
        doc="""The location of this broker: a zone, a rack. Replicas of a partition are spread over racks, and
        consumers with the same client.rack read from a replica there. Empty: no rack.""",
    )
    log_dirs: str = setting(
        "log.dirs",
        default="",
        doc="""The root: a directory, created if it is missing. Exactly one; --root overrides it.""",
    )
    cluster_id: str = setting(
        "sparklog.cluster.id",
        default="",
        doc="""The cluster id that the root must have (`sparklog root describe` shows it): any other is
        refused, and none is created, for example if a volume is not mounted. Empty: any existing one, or a
        new one.""",
    )
    allow_unsafe_filesystem: bool = setting(
        "sparklog.allow.unsafe.filesystem",
        default=False,
        doc="""Serve a directory also on a file system that caches names (NFS, SMB, FUSE, shared folders of a
        virtual machine), where acknowledged records can be lost if several machines use it; see
        docs/filesystems.md. Also by the environment variable SPARKLOG_ALLOW_UNSAFE_FILESYSTEM, as for every
        process of sparklog.""",
    )
    metadata_poll_ms: int = setting(
        "sparklog.metadata.poll.ms",
        default=20,
        minimum=1,
        maximum=60_000,
        doc="""How often to check for commits of others (Spark, the command line). On an object store only
        while requests are in progress, including waiting fetches; else once per broker.heartbeat.interval.ms.
        Shorter: consumers see their records sooner; longer: fewer lookups in the storage.""",
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        default=9_000,
        minimum=100,
        maximum=INT_MAX,
        doc="""A broker without a heartbeat for this time is considered dead; others lead its partitions.
        And a broker that could not look at the metadata log for so long answers for groups
        and partitions no more, until it can: another one may have taken over. Longer: outages of the storage
        and pauses are felt less; shorter: less time without a leader after a crash. Must be longer than
        sparklog.metadata.poll.ms, and twice broker.heartbeat.interval.ms at least.""",
    )
    broker_heartbeat_interval_ms: int = setting(
        "broker.heartbeat.interval.ms",
        default=2_000,
        minimum=10,
        maximum=INT_MAX,
        doc="""How often each broker replaces its small object in the storage, by which the others see that
        it is alive. Shorter: a session can be shorter; longer: fewer requests.""",
    )
    initial_broker_registration_timeout_ms: int = setting(
        "initial.broker.registration.timeout.ms",
        default=60_000,
        minimum=0,
        maximum=INT_MAX,
        doc="""How long a broker that starts waits for another process of its node.id to end, before it gives
        up: one that is about to stop, or was killed. Longer: it may take longer to stop; shorter: a node.id
        that was given twice is noticed sooner. 0: not at all.""",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        default=True,
        doc="""A broker that stops first hands its partitions over, for at most
        sparklog.shutdown.timeout.ms. false: it stops immediately, and others lead after its end.""",
    )
    num_io_threads: int = setting(
        "num.io.threads",
        default=8,
        minimum=1,
        maximum=1000,
        unit="threads",
        doc="""Threads for storage: reading segments, looking up offsets, changing topics. More: more reads
        concurrently on slow storage; fewer: less memory.""",
    )
    shutdown_timeout_ms: int = setting(
        "sparklog.shutdown.timeout.ms",
        default=10_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="""How long handing over, and then requests in progress, may take when the broker has to
        stop.""",
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        if self.metadata_poll_ms >= self.broker_session_timeout_ms:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"broker.session.timeout.ms: found {self.broker_session_timeout_ms}, expected more than "
                f"sparklog.metadata.poll.ms, {self.metadata_poll_ms}",
                fix="poll more often, or allow for longer",
            )
        if self.broker_session_timeout_ms < 2 * self.broker_heartbeat_interval_ms:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"broker.session.timeout.ms: found {self.broker_session_timeout_ms}, expected at least twice "
                f"broker.heartbeat.interval.ms, {self.broker_heartbeat_interval_ms}",
                fix="send heartbeats more often, or wait longer for them",
            )
