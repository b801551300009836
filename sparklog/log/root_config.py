"""Settings of a whole root, beside which the defaults of its topics are stored (config.py).

Invariants: as in config.py. OWNERS_KEYS are set by the command line, and not by Kafka's clients.
Sources: Kafka ServerLogConfigs, TransactionLogConfig, GroupCoordinatorConfig; adr/0023.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

from sparklog.log.setting import parse_settings, setting
from sparklog.metadata import (
    DEFAULT_MAX_PARTITIONS,
    MAX_PARTITIONS_KEY,
)

PRODUCER_ID_EXPIRATION_KEY = "producer.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_KEY = "transactional.id.expiration.ms"
TRANSACTION_VERSION_KEY = "sparklog.transaction.version"
NEWEST_TRANSACTION_VERSION = 2
# Set by vacuum: files show that the log has lost commits, up to this one at least (docs/adr/0019).
LOST_COMMITS_KEY = "sparklog.lost.until.commit"
OWNERS_KEYS = frozenset(
    {LOST_COMMITS_KEY, TRANSACTION_VERSION_KEY}
)  # Kafka's clients neither see nor set them
_DAY_MS = 86_400_000
_INT_MAX = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RootConfig:
    """Settings of a whole root. The defaults of its topics are stored beside them, as topic keys."""

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        default=True,
        doc="""Create a topic when somebody first writes to it. true: nothing to prepare; false: a
        misspelt name is an error.""",
    )
    num_partitions: int = setting(
        "num.partitions",
        default=1,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of a topic created without saying how many. More: more parallel readers; fewer:
        fewer, larger extents, and more of the order kept.""",
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        default=50,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of __consumer_offsets, read when it is created. More: groups spread over more
        coordinators; fewer: less to load.""",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        default=3,
        minimum=1,
        maximum=100,
        unit="brokers",
        doc="""Among how many brokers leading a partition moves, of topics created without saying how many: as
        many as there are, if those are fewer. It costs nothing, since all have the same storage.""",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        default=3,
        minimum=1,
        maximum=100,
        unit="brokers",
        doc="""As default.replication.factor, of __consumer_offsets: among how many brokers coordinating a
        group moves.""",
    )
    max_partitions: int = setting(
        MAX_PARTITIONS_KEY,
        default=DEFAULT_MAX_PARTITIONS,
        minimum=1,
        maximum=10_000_000,
        unit="partitions",
        doc="""Most partitions in the root, over all topics; topics beyond it are refused. Higher: every
        reader of the root needs more memory, some 500 bytes for each, and 700 for each topic.""",
    )
    producer_id_expiration_ms: int = setting(
        PRODUCER_ID_EXPIRATION_KEY,
        default=_DAY_MS,
        minimum=1,
        maximum=_INT_MAX,
        unit="ms",
        doc="""How long a partition remembers an idempotent producer that writes nothing, at least; it is
        forgotten within twice that. Longer: late repetitions of a batch are still told from new ones;
        shorter: less to remember where each job is a new producer. Keep it above delivery.timeout.ms.""",
    )
    transactional_id_expiration_ms: int = setting(
        TRANSACTIONAL_ID_EXPIRATION_KEY,
        default=7 * _DAY_MS,
        minimum=1,
        maximum=_INT_MAX,
        unit="ms",
        doc="""A transactional id that is not used for so long is forgotten by brokers; its producer has to be
        initialised again. Ids with an open transaction stay. Longer: producers may stay away longer; shorter:
        less to remember where each job has an id of its own.""",
    )
    lost_until_commit: int = setting(
        LOST_COMMITS_KEY,
        default=-1,
        minimum=-1,
        unit="commit",
        doc="""Set by vacuum when files were begun at later commits than there are: an older copy of
        __cluster_metadata was put back. While it is set vacuum removes nothing, since it cannot tell what
        only the lost commits refer to. Putting the newest copy back takes it away, and so does `sparklog root
        restore`, when what came after is given up. -1: nothing is known to be lost.""",
    )
    transaction_version: int = setting(
        TRANSACTION_VERSION_KEY,
        default=NEWEST_TRANSACTION_VERSION,
        minimum=1,
        maximum=NEWEST_TRANSACTION_VERSION,
        doc="""Kafka's feature transaction.version: up to which protocol brokers offer transactions to
        clients. 2: every transaction has an epoch of its own (KIP-890), so that nothing late gets into the
        next one. 1: all clients speak the first protocol, as most do in any case.""",
    )

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> Self:
        """The settings in force: the root's value, else the declared default."""
        return parse_settings(cls, {}, configs)
