"""Settings of the broker itself: who it is, which root it serves, how closely it follows it.

Sources: Kafka KafkaConfig, BrokerLifecycleManager.
"""

import dataclasses

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.units import INT_MAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The fields' names are the keys with underscores."""

    node_id: int = setting(
        "node.id",
        default=1,
        minimum=0,
        maximum=INT_MAX,
        doc="""This broker's number, also called broker.id: another one for each broker of a root.""",
    )
    broker_rack: str = setting(
        "broker.rack",
        default="",
        doc="""Where this broker is: a zone, a rack. Replicas of a partition are spread over racks, and
        consumers that say the same client.rack read from a replica there. Empty: nowhere in particular.""",
    )
    log_dirs: str = setting(
        "log.dirs",
        default="",
        doc="""The root: a directory, made if it is not there. Exactly one; --root wins over it.""",
    )
    cluster_id: str = setting(
        "sparklog.cluster.id",
        default="",
        doc="""The cluster id that the root must have (`sparklog root describe` shows it): any other is
        refused, and none is made, as where a volume is not mounted. Empty: whichever is there, or a new
        one.""",
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
        unit="ms",
        doc="""How often to look for commits of others (Spark, the command line). On an object store only
        while requests are worked on, waiting fetches among them; else once a broker.heartbeat.interval.ms.
        Shorter: consumers see their records sooner; longer: fewer lookups in the storage.""",
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        default=9_000,
        minimum=100,
        maximum=INT_MAX,
        unit="ms",
        doc="""A broker of which nothing is heard for so long is taken for dead, and others lead what it led.
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
        unit="ms",
        doc="""How often each broker replaces its small object in the storage, by which the others see that
        it is alive. Shorter: a session can be shorter; longer: fewer requests.""",
    )
    initial_broker_registration_timeout_ms: int = setting(
        "initial.broker.registration.timeout.ms",
        default=60_000,
        minimum=0,
        maximum=INT_MAX,
        unit="ms",
        doc="""How long a broker that starts waits for another process of its node.id to end, before it gives
        up: one that is about to stop, or was killed. Longer: it may take longer to stop; shorter: a node.id
        that was given twice is noticed sooner. 0: not at all.""",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        default=True,
        doc="""A broker that is told to stop hands over first what it leads, for at most
        sparklog.shutdown.timeout.ms. false: it stops at once, and others lead when it is gone.""",
    )
    num_io_threads: int = setting(
        "num.io.threads",
        default=8,
        minimum=1,
        maximum=1000,
        unit="threads",
        doc="""Threads for storage: reading segments, looking up offsets, changing topics. More: more reads
        at once on storage that is slow to answer; fewer: less memory.""",
    )
    shutdown_timeout_ms: int = setting(
        "sparklog.shutdown.timeout.ms",
        default=10_000,
        minimum=0,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How long handing over, and then requests in progress, may take when the broker is told to
        stop.""",
    )

    def __post_init__(self) -> None:
        """What one declaration cannot say."""
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
                fix="send signs of life more often, or wait longer for them",
            )
