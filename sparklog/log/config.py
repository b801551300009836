"""Settings of topics: every key declared once, with Kafka's name, unit, bounds, default and trade-off.

Invariants: every stored value passed `validate_topic_configs` or `validate_root_configs`; an undeclared key
    is refused, never ignored (some of Kafka's with their own reason, see below).
Layers of defaults: a topic's own value, then the root's value under the same key, then the
    default declared here.
Not here: storing values (metadata), acting on retention and compaction (maintenance/).
Documentation: `describe_configs` and `render_properties` are generated from the declarations.
Sources: Kafka TopicConfig and ServerLogConfigs.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Self

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import (
    LONG_MAX,
    TYPE_NAMES,
    declared_settings,
    lookup_setting,
    parse_settings,
    setting,
    validate_settings,
)
from sparklog.metadata import (
    DEFAULT_MAX_PARTITIONS,
    ISOLATION_KEY,
    MAX_PARTITIONS_KEY,
)

# --- root config -------------------------------------------------------------------------------------
#
# Settings of a whole root. The defaults of its topics are stored with them.
#
# Invariants: as for topics. The command line sets OWNERS_KEYS; Kafka's clients cannot.
# Sources: Kafka ServerLogConfigs, TransactionLogConfig, GroupCoordinatorConfig; adr/0023.


PRODUCER_ID_EXPIRATION_KEY = "producer.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_KEY = "transactional.id.expiration.ms"
TRANSACTION_VERSION_KEY = "sparklog.transaction.version"
NEWEST_TRANSACTION_VERSION = 2
# Set by vacuum: files prove that the log has lost commits, up to this one at least (docs/adr/0019).
LOST_COMMITS_KEY = "sparklog.lost.until.commit"
OWNERS_KEYS = frozenset({LOST_COMMITS_KEY, TRANSACTION_VERSION_KEY})  # hidden from Kafka's clients
_DAY_MS = 86_400_000
_INT_MAX = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RootConfig:
    """Settings of a whole root. The defaults of its topics are stored with them, under topic keys."""

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        default=True,
        doc="""Create a topic at the first write to it. true: no preparation; false: a misspelt name is an
        error.""",
    )
    num_partitions: int = setting(
        "num.partitions",
        default=1,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of a topic that is created without a number. More: more parallel readers; fewer:
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
        doc="""The number of brokers that may lead a partition, for topics created without a number; at most
        the brokers that exist. It costs nothing, since all have the same storage.""",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        default=3,
        minimum=1,
        maximum=100,
        unit="brokers",
        doc="""As default.replication.factor, for __consumer_offsets: the number of brokers that may
        coordinate a group.""",
    )
    max_partitions: int = setting(
        MAX_PARTITIONS_KEY,
        default=DEFAULT_MAX_PARTITIONS,
        minimum=1,
        maximum=10_000_000,
        unit="partitions",
        doc="""Maximum number of partitions in the root, over all topics; topics beyond it are refused.
        Higher: every reader of the root needs more memory, some 500 bytes for each, and 700 for each
        topic.""",
    )
    producer_id_expiration_ms: int = setting(
        PRODUCER_ID_EXPIRATION_KEY,
        default=_DAY_MS,
        minimum=1,
        maximum=_INT_MAX,
        doc="""Minimum time for which a partition remembers an idempotent producer that writes nothing; it is
        evicted within twice that. Longer: late repetitions of a batch are still recognized;
        shorter: less memory where each job is a new producer. Keep it above delivery.timeout.ms.""",
    )
    transactional_id_expiration_ms: int = setting(
        TRANSACTIONAL_ID_EXPIRATION_KEY,
        default=7 * _DAY_MS,
        minimum=1,
        maximum=_INT_MAX,
        doc="""Brokers forget a transactional id that is unused for this time; its producer must initialise
        again. Ids with an open transaction stay. Longer: producers may pause longer; shorter:
        less memory where each job has its own id.""",
    )
    lost_until_commit: int = setting(
        LOST_COMMITS_KEY,
        default=-1,
        minimum=-1,
        unit="commit",
        doc="""Set by vacuum if files name later commits than the log has: an older copy of
        __cluster_metadata was restored. While it is set vacuum removes nothing, since it does not know which
        files only the lost commits refer to. Restoring the newest copy clears it; so does `sparklog root
        restore`, which gives up the lost commits. -1: no commits are known to be lost.""",
    )
    transaction_version: int = setting(
        TRANSACTION_VERSION_KEY,
        default=NEWEST_TRANSACTION_VERSION,
        minimum=1,
        maximum=NEWEST_TRANSACTION_VERSION,
        doc="""Kafka's feature transaction.version: the highest transaction protocol that brokers offer to
        clients. 2: every transaction has its own epoch (KIP-890), so that late requests cannot get into the
        next one. 1: all clients use the first protocol, as most do in any case.""",
    )

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> Self:
        """Parse the effective settings: the root's value, else the declared default."""
        return parse_settings(cls, {}, configs)


# --- refused settings --------------------------------------------------------------------------------
#
# Kafka's topic settings without a counterpart here, and the reasons: refused by name, not as unknown.
#
# Settings accepted without effect are declared in TopicConfig instead: clients (Kafka Connect, Streams,
# MirrorMaker, topic operators) send them routinely, and they promise nothing that does not hold here anyway.
# The settings here would promise something.
# Sources: Kafka TopicConfig, LogConfig, QuotaConfigs; Kafka 4.0's upgrade notes.


_SHARED = "all data is already on shared storage, which has a single tier"
_UNREPLICATED = "brokers do not copy records: all brokers share one storage"
_REMOVED = "Kafka 4.0 has removed it, and sparklog has only the current format"

REFUSED_TOPIC_SETTINGS = {
    "compression.gzip.level": "codecs work at their default level",
    "compression.lz4.level": "codecs work at their default level",
    "compression.zstd.level": "codecs work at their default level",
    "follower.replication.throttled.replicas": _UNREPLICATED,
    "leader.replication.throttled.replicas": _UNREPLICATED,
    "local.retention.bytes": _SHARED,
    "local.retention.ms": _SHARED,
    "message.downconversion.enable": _REMOVED,
    "message.format.version": _REMOVED,
    "message.timestamp.difference.max.ms": (
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms replace it"
    ),
    "remote.copy.disable": _SHARED,
    "remote.log.copy.disable": _SHARED,
    "remote.log.delete.on.disable": _SHARED,
    "remote.storage.enable": _SHARED,
}


def refuse_kafka_only(keys: Iterable[str]) -> None:
    """Refuse the first key that only Kafka supports.

    Raises:
        InvalidRequestError: UNSUPPORTED_CONFIG.
    """
    for key in keys:
        reason = REFUSED_TOPIC_SETTINGS.get(key)
        if reason is not None:
            raise InvalidRequestError(
                "UNSUPPORTED_CONFIG", f"topic setting {key!r} is not supported: {reason}", fix=f"Remove {key}"
            )


# --- broker keys -------------------------------------------------------------------------------------
#
# Keys of broker settings, which are stored among those of their root.
#
# `brokers/1/max.connections` is broker 1's; `brokers/default/max.connections` is the default of all brokers;
# `groups/G/consumer.session.timeout.ms` is group G's.
# A root stores dynamic broker settings, and brokers read them when they start. Only brokers act on them, and
# other processes leave these keys unchanged, so documents need no newer version for them (adr/0032). Defaults
# of topics, and the root's own settings, have no such keys: they apply to every process that uses the root.
# Invariants: no key of a topic or of a root has a slash, so that none is mistaken for a broker's.
# Not here: the settings of brokers (sparklog_server/settings).
# Sources: Kafka keeps the same at /config/brokers/<id> and /config/brokers/<default>.
ALL_BROKERS = "default"
_PREFIX = "brokers/"


def broker_key(node_id: int | None, name: str) -> str:
    """Return the key of a setting of one broker; None: of the default for all brokers."""
    return f"{_prefix(node_id)}{name}"


def is_broker_key(key: str) -> bool:
    """True if it is a setting of any broker, or of all."""
    return key.startswith(_PREFIX)


def broker_configs(configs: Mapping[str, str], node_id: int | None) -> dict[str, str]:
    """Return a broker's settings, or those for all, by name, from a root's settings."""
    prefix = _prefix(node_id)
    return {
        key.removeprefix(prefix): value for key, value in sorted(configs.items()) if key.startswith(prefix)
    }


def nodes_with_configs(configs: Mapping[str, str]) -> list[int]:
    """Return the ids of the brokers that have their own settings."""
    found = {key.split("/")[1] for key in configs if is_broker_key(key)}
    return sorted(int(node_id) for node_id in found if node_id.isascii() and node_id.isdecimal())


_GROUPS = "groups/"


def group_key(group: str, name: str) -> str:
    """Return the key of a setting of one group, which may have slashes in its name."""
    return f"{_GROUPS}{group}/{name}"


def is_group_key(key: str) -> bool:
    """True if it is a setting of any group."""
    return key.startswith(_GROUPS)


def group_configs(configs: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of each group that has any, by name, from a root's settings."""
    found: dict[str, dict[str, str]] = {}
    for key, value in configs.items():
        if is_group_key(key):
            group, _, name = key.removeprefix(_GROUPS).rpartition("/")
            found.setdefault(group, {})[name] = value
    return found


def _prefix(node_id: int | None) -> str:
    return f"{_PREFIX}{ALL_BROKERS if node_id is None else node_id}/"


# --- config ------------------------------------------------------------------------------------------


MIB = 1 << 20
INT_MAX = (1 << 31) - 1
DAY_MS = 86_400_000


class TimestampMode(enum.StrEnum):
    """The origin of a record's timestamp: Kafka's message.timestamp.type."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


COMPRESSION_TYPES = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings, typed; the fields' names are Kafka's keys with underscores."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        default=("delete",),
        choices=("delete", "compact"),
        may_be_empty=True,
        doc="""delete: remove old records, by retention.ms and retention.bytes; compact: keep the latest
        record of each key. Both together bound a compacted topic; empty: keep everything. Compaction costs
        reading and rewriting.""",
    )
    compression_type: str = setting(
        "compression.type",
        default="producer",
        choices=COMPRESSION_TYPES,
        doc="""Codec of the stored batches; producer keeps the writer's. zstd and gzip: fewest
        bytes, most CPU; lz4 and snappy: fast, larger; uncompressed (or none): no CPU, most bytes.""",
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        default=DAY_MS,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Time that a tombstone stays in a compacted topic. Longer: a slow consumer still sees
        the deletion; shorter: less space.""",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        default=60_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="""For the root: time that readers still have a committed file after its last extent is gone.
        A topic's value has no effect. Longer: readers seldom have to plan again; shorter: space sooner.""",
    )
    flush_messages: int = setting(
        "flush.messages",
        default=LONG_MAX,
        minimum=1,
        maximum=LONG_MAX,
        unit="records",
        doc="""Sync a segment after this many records. Everything is synced before it is published in any
        case: smaller spreads the disk's work over a long task, larger costs fewer syncs.""",
    )
    flush_ms: int = setting(
        "flush.ms",
        default=LONG_MAX,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Sync a segment at the first append after this time. As flush.messages: smaller spreads the
        disk's work, larger costs fewer syncs; what is published is durable either way.""",
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        default=4096,
        minimum=0,
        maximum=INT_MAX,
        doc="""One index entry per this many bytes of segment. Smaller: reads start closer to their offset,
        larger index; larger: reads skip more bytes, smaller index.""",
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        default=LONG_MAX,
        minimum=1,
        maximum=LONG_MAX,
        doc="""Maximum time until automatic compaction (or --due) compacts a record. Shorter:
        deletions take effect sooner; longer: less rewriting.""",
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        default=1_048_588,
        minimum=0,
        maximum=INT_MAX,
        doc="""Largest record batch, after compression. Larger: larger records fit, and every reader needs
        the memory for them; smaller: more, smaller batches.""",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        default=3_600_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="""How far a record's CreateTime may be in the future. Smaller protects retention and time
        lookups from wrong clocks; larger accepts more writers.""",
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        default=LONG_MAX,
        minimum=0,
        maximum=LONG_MAX,
        doc="""How far a record's CreateTime may be in the past. Smaller rejects records that retention
        would remove immediately; larger allows loading history.""",
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        default=str(TimestampMode.CREATE_TIME),
        choices=tuple(str(mode) for mode in TimestampMode),
        doc="""CreateTime: the writer's timestamp, may be out of order. LogAppendTime: the time of the
        append, in order, and the writer's own timestamp is lost.""",
    )
    errors_deadletterqueue_group_enable: bool = setting(
        "errors.deadletterqueue.group.enable",
        default=False,
        doc="""Whether share groups may write their dead letters to this topic (KIP-1191). A group names it
        with errors.deadletterqueue.topic.name.""",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        default=0.5,
        minimum=0,
        maximum=1,
        doc="""Automatic compaction (or --due) compacts a partition when more than this share of it is not
        compacted yet. Smaller: less space for duplicates, more rewriting; larger: the opposite.""",
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        default=0,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Minimum time before compaction may remove a record. Longer: consumers see every
        version for that time; shorter: less space.""",
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        default=1,
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        doc="""Kept for Kafka's tools, no effect: every acknowledged record is on shared storage, which
        decides on the number of copies.""",
    )
    preallocate: bool = setting(
        "preallocate",
        default=False,
        doc="""Kept for Kafka's tools, no effect: segments grow as they are written.""",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        default=-1,
        minimum=-1,
        maximum=LONG_MAX,
        doc="""Maximum bytes per partition; -1: no limit. Smaller: less space; larger: consumers may
        lag further behind.""",
    )
    retention_ms: int = setting(
        "retention.ms",
        default=-1,
        minimum=-1,
        maximum=LONG_MAX,
        doc="""Keep records for this long after their timestamp; -1: forever, which is not Kafka's default.
        Shorter: less space; longer: consumers may lag further behind, and more can be replayed.""",
    )
    segment_apart: bool = setting(
        "sparklog.segment.apart",
        default=False,
        doc="""true: segments are shared only with topics of the same cleanup.policy, retention.ms and
        retention.bytes, so that a whole file can be removed when they expire. It costs one more file and sync
        (on an object store one more object) for each publish that also writes to other topics.""",
    )
    segment_bytes: int = setting(
        "segment.bytes",
        default=1024 * MIB,
        minimum=14,
        maximum=INT_MAX,
        doc="""A writer rolls its segment at this size. Larger: fewer files; smaller: retention and
        compaction free space sooner.""",
    )
    segment_isolation: bool = setting(
        ISOLATION_KEY,
        default=False,
        doc="""true: the topic's segments are in `isolated/<topic>/`, which no other topic uses. So a policy
        of the storage can name the topic, and the next sweep after its deletion frees its bytes. Later
        batches follow a change; the next merge moves earlier ones into the directory. It costs one more file
        and sync (on an object store one more object) for each publish that also writes to other topics.
        Software that does not know the setting can no longer open the root.""",
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        default=10 * MIB,
        minimum=4,
        maximum=INT_MAX,
        doc="""A writer rolls its segment when the index is full. Larger: room for a denser index;
        smaller: less to map into memory.""",
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        default=0,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Kept for Kafka's tools, no effect: the partitions of a writer share its segments, so their
        segments do not roll at the same time.""",
    )
    segment_ms: int = setting(
        "segment.ms",
        default=7 * DAY_MS,
        minimum=1,
        maximum=LONG_MAX,
        doc="""A writer rolls its segment at its next append after this time, and after half a week at the
        latest. Longer: fewer files; shorter: retention and compaction reach quiet topics sooner.""",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        default=False,
        doc="""Kept for Kafka's tools, no effect: any broker can lead any partition without losing a record,
        so no election is unclean.""",
    )

    @classmethod
    def parse(cls, configs: Mapping[str, str], root_defaults: Mapping[str, str] | None = None) -> Self:
        """Parse the effective settings: `configs`, else the root's value, else the declared default."""
        return parse_settings(cls, configs, root_defaults or {})


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse unknown keys and values out of bounds."""
    refuse_kafka_only(configs)
    validate_settings(configs, declared_settings(TopicConfig), "topic")


def is_topic_setting(key: str) -> bool:
    """True if topics have a setting of this name."""
    return key in declared_settings(TopicConfig)


def validate_root_configs(configs: Mapping[str, str]) -> None:
    """As for topics; a root also stores the defaults of its topics, under the topic keys."""
    refuse_kafka_only(configs)
    of_groups = [key for key in configs if is_group_key(key)]
    if of_groups:
        raise InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"found {', '.join(of_groups)}, settings of groups, which only a broker can check",
            fix="Set them through a broker, by their own names: kafka-configs --entity-type groups",
        )
    of_brokers = [key for key in configs if is_broker_key(key)]
    if of_brokers:
        raise InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"found {', '.join(of_brokers)}, settings of brokers, which only a broker can check",
            fix="Set them through a broker, by their own names: kafka-configs --entity-type brokers",
        )
    validate_settings(configs, declared_settings(TopicConfig) | declared_settings(RootConfig), "root")


def validate_config_keys(keys: list[str], *, root: bool = False) -> None:
    """Refuse unknown keys, where only keys are given (to remove overrides)."""
    known = declared_settings(TopicConfig) | (declared_settings(RootConfig) if root else {})
    for key in keys:
        if not (root and (is_broker_key(key) or is_group_key(key))):  # also those of a removed broker
            lookup_setting(key, known, "root" if root else "topic")


_OF_TOPICS = (
    "Set with `sparklog topics create` or `alter` (`--config key=value`), by Kafka's admin clients, or with "
    "`create_topic` and `alter_topic` in Python. The same keys on the root are its topics' defaults."
)
_OF_ROOTS = (
    "Set with `sparklog root alter --config key=value`, by Kafka's admin clients as settings of all brokers, "
    "or with `alter_root` in Python; `sparklog root describe --all` shows the effective values."
)


def describe_configs() -> str:
    """Return a Markdown table of every setting, for the documentation."""
    lines = []
    for title, how, cls in (
        ("Topic settings", _OF_TOPICS, TopicConfig),
        ("Root settings", _OF_ROOTS, RootConfig),
    ):
        lines += [f"## {title}", "", how, ""]
        lines += ["|key|type|unit|default|allowed|meaning|", "|-|-|-|-|-|-|"]
        for key, (_, entry) in declared_settings(cls).items():
            default = entry.format(entry.default)
            cells = (key, TYPE_NAMES[entry.kind], entry.unit, default, entry.bounds, entry.doc)
            lines.append("|" + "|".join(cells) + "|")
        lines.append("")
    lines += ["## Topic settings of Kafka that are refused", "", "|key|why|", "|-|-|"]
    lines += [f"|{key}|{why}|" for key, why in REFUSED_TOPIC_SETTINGS.items()]
    return "\n".join(lines) + "\n"


def render_properties() -> str:
    """Return the text of conf/topic.properties: every topic setting with its default, commented out."""
    lines = [
        "# Settings of a topic, with their defaults. Generated from sparklog/log/config.py.",
        "# No command reads this file: it is for copying from. For one topic:",
        "#     sparklog topics create (or alter) --topic NAME --config key=value",
        "# and for all topics of a root that have no value of their own:",
        "#     sparklog root alter --config key=value",
    ]
    for key, (_, entry) in declared_settings(TopicConfig).items():
        unit = f" ({entry.unit})" if entry.unit else ""
        lines += ["", f"# {entry.doc}", f"# Allowed: {entry.bounds}{unit}."]
        lines.append(f"#{key}={entry.format(entry.default)}")
    return "\n".join(lines) + "\n"
