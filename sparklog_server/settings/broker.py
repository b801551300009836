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
        doc="""This broker's number. Clients see it as leader of every partition, coordinator of every group
        and controller.""",
    )
    log_dirs: str = setting(
        "log.dirs",
        default="",
        doc="""The root: a directory, made if it is not there. Exactly one; --root wins over it.""",
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
        doc="""How often to look for commits of others (Spark, the command line). Shorter: consumers see
        their records sooner; longer: fewer lookups in the storage.""",
    )
    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        default=9_000,
        minimum=100,
        maximum=INT_MAX,
        unit="ms",
        doc="""A broker that could not look at the metadata log for so long answers for groups and partitions
        no more, until it can: another one may have taken over. Longer: outages of the storage are felt less;
        shorter: two brokers tell members different things for less long. Must be longer than
        sparklog.metadata.poll.ms.""",
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
        doc="""How long requests in progress may take when the broker is told to stop.""",
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
