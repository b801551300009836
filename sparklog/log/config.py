"""Settings of topics: every key declared once, with Kafka's name, unit, bounds, default and what it costs.

Invariants: a stored value has been accepted by `validate_topic_configs` or
    `validate_root_configs`; a key that is not declared here is refused, never ignored (some of Kafka's
    with a reason of their own: config.py).
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
    MAX_PARTITIONS_KEY,
)

# --- root config -------------------------------------------------------------------------------------
#
# Settings of a whole root, beside which the defaults of its topics are stored.
#
# Invariants: as in config.py. OWNERS_KEYS are set by the command line, and not by Kafka's clients.
# Sources: Kafka ServerLogConfigs, TransactionLogConfig, GroupCoordinatorConfig; adr/0023.


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
        doc="""How long a partition remembers an idempotent producer that writes nothing, at least; it is
        forgotten within twice that. Longer: late repetitions of a batch are still told from new ones;
        shorter: less to remember where each job is a new producer. Keep it above delivery.timeout.ms.""",
    )
    transactional_id_expiration_ms: int = setting(
        TRANSACTIONAL_ID_EXPIRATION_KEY,
        default=7 * _DAY_MS,
        minimum=1,
        maximum=_INT_MAX,
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


# --- refused settings --------------------------------------------------------------------------------
#
# Kafka's topic settings that have no counterpart here, and why: refused by name, not as unknown.
#
# What is accepted without effect is declared in config.py instead: settings that clients (Kafka Connect,
# Streams, MirrorMaker, topic operators) send as a matter of course, and that promise nothing that does not
# hold here anyway. These here would promise something.
# Sources: Kafka TopicConfig, LogConfig, QuotaConfigs; Kafka 4.0's upgrade notes.


_SHARED = "all data is on shared storage already, and there is one tier of it"
_UNREPLICATED = "brokers do not copy records: they are on shared storage once for all of them"
_REMOVED = "Kafka 4.0 has removed it, and there is only the current format here"

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
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms take its place"
    ),
    "remote.copy.disable": _SHARED,
    "remote.log.copy.disable": _SHARED,
    "remote.log.delete.on.disable": _SHARED,
    "remote.storage.enable": _SHARED,
}


def refuse_kafka_only(keys: Iterable[str]) -> None:
    """Raise for the first key that only Kafka knows.

    Raises:
        InvalidRequestError: UNSUPPORTED_CONFIG.
    """
    for key in keys:
        reason = REFUSED_TOPIC_SETTINGS.get(key)
        if reason is not None:
            raise InvalidRequestError(
                "UNSUPPORTED_CONFIG", f"topic setting {key!r} is not supported: {reason}", fix=f"remove {key}"
            )


# --- broker keys -------------------------------------------------------------------------------------
#
# Settings of brokers, kept among those of their root: under which keys.
#
# `brokers/1/max.connections` is broker 1's; `brokers/default/max.connections` is that of every broker that
# has none of its own. A root keeps what brokers were told, and gives it to them when they start. Nobody but a
# broker acts on it, and whoever does not know such a key leaves it as it is, so that no document says more
# than one of an older version could (adr/0032). Defaults of topics, and the root's own settings, have no such
# keys: they are the root's, and count for every process that uses it (config.py).
# Invariants: no key of a topic or of a root has a slash, so that none is taken for a broker's.
# Not here: which settings a broker takes (sparklog_server/settings).
# Sources: Kafka keeps the same at /config/brokers/<id> and /config/brokers/<default>.


ALL_BROKERS = "default"
_PREFIX = "brokers/"


def broker_key(node_id: int | None, name: str) -> str:
    """The key of a setting of one broker; None: of all that have none of their own."""
    return f"{_prefix(node_id)}{name}"


def is_broker_key(key: str) -> bool:
    """Is it a setting of brokers, whichever?"""
    return key.startswith(_PREFIX)


def broker_configs(configs: Mapping[str, str], node_id: int | None) -> dict[str, str]:
    """Of a root's settings, those of one broker, or of all, by their names."""
    prefix = _prefix(node_id)
    return {
        key.removeprefix(prefix): value for key, value in sorted(configs.items()) if key.startswith(prefix)
    }


def nodes_with_configs(configs: Mapping[str, str]) -> list[int]:
    """The brokers that have settings of their own, by their numbers."""
    found = {key.split("/")[1] for key in configs if is_broker_key(key)}
    return sorted(int(one) for one in found if one.isascii() and one.isdecimal())


def _prefix(node_id: int | None) -> str:
    return f"{_PREFIX}{ALL_BROKERS if node_id is None else node_id}/"


# --- config ------------------------------------------------------------------------------------------


MIB = 1 << 20
INT_MAX = (1 << 31) - 1
DAY_MS = 86_400_000


class TimestampMode(enum.StrEnum):
    """Who says when a record happened: Kafka's message.timestamp.type."""

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
        doc="""delete: old records go, as retention.ms and retention.bytes say; compact: the latest record of
        each key stays. Both together bound a compacted topic; empty: everything stays. Compaction costs
        reading and rewriting.""",
    )
    compression_type: str = setting(
        "compression.type",
        default="producer",
        choices=COMPRESSION_TYPES,
        doc="""Codec of the stored batches; producer keeps what the writer chose. zstd and gzip: fewest
        bytes, most CPU; lz4 and snappy: quick, larger; uncompressed (or none): no CPU, most bytes.""",
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        default=DAY_MS,
        minimum=0,
        maximum=LONG_MAX,
        doc="""How long a tombstone stays in a compacted topic. Longer: a slow consumer still learns of
        the deletion; shorter: less space.""",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        default=60_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Of the root: how long readers still have a file of which all was committed, and has gone since.
        A topic's has no effect. Longer: readers seldom have to look again; shorter: space sooner.""",
    )
    flush_messages: int = setting(
        "flush.messages",
        default=LONG_MAX,
        minimum=1,
        maximum=LONG_MAX,
        unit="records",
        doc="""Sync a segment after so many records. Everything is synced before it is published in any
        case: smaller spreads the disk's work over a long task, larger costs fewer syncs.""",
    )
    flush_ms: int = setting(
        "flush.ms",
        default=LONG_MAX,
        minimum=0,
        maximum=LONG_MAX,
        doc="""Sync a segment at the first append after so long. As flush.messages: smaller spreads the
        disk's work, larger costs fewer syncs; what is published is durable either way.""",
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        default=4096,
        minimum=0,
        maximum=INT_MAX,
        doc="""One index entry per so many bytes of segment. Smaller: reads start closer to their offset,
        larger index; larger: more bytes are skipped over, smaller index.""",
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        default=LONG_MAX,
        minimum=1,
        maximum=LONG_MAX,
        doc="""What is compacted by itself, or with --due, is so at the latest after so long. Shorter:
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
        doc="""How far a record's CreateTime may lie in the future. Smaller protects retention and time
        lookups from wrong clocks; larger accepts more writers.""",
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        default=LONG_MAX,
        minimum=0,
        maximum=LONG_MAX,
        doc="""How far a record's CreateTime may lie in the past. Smaller keeps records out that retention
        would remove at once; larger allows loading history.""",
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        default=str(TimestampMode.CREATE_TIME),
        choices=tuple(str(mode) for mode in TimestampMode),
        doc="""CreateTime: the writer's timestamp, may be out of order. LogAppendTime: the time of the
        append, in order, and the writer's own timestamp is lost.""",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        default=0.5,
        minimum=0,
        maximum=1,
        doc="""A partition is compacted by itself, or with --due, when more than this share of it has not
        been yet. Smaller: less space for duplicates, more rewriting; larger: the other way round.""",
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        default=0,
        minimum=0,
        maximum=LONG_MAX,
        doc="""A record stays untouched by compaction for at least so long. Longer: consumers see every
        version for that time; shorter: less space.""",
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        default=1,
        minimum=1,
        maximum=INT_MAX,
        unit="replicas",
        doc="""Kept for Kafka's tools, no effect: every acknowledged record is on shared storage, and how many
        copies there are is that storage's business.""",
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
        doc="""Keep at most this much per partition; -1: no limit. Smaller: less space; larger: consumers may
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
        retention.bytes, so that a file goes as a whole when they expire. It costs a file, and a sync, more
        for each publish that writes to others, too; on an object store an object.""",
    )
    segment_bytes: int = setting(
        "segment.bytes",
        default=1024 * MIB,
        minimum=14,
        maximum=INT_MAX,
        doc="""A writer rolls its segment at this size. Larger: fewer files; smaller: retention and
        compaction free space sooner.""",
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
        doc="""Kept for Kafka's tools, no effect: the partitions of a writer share its segments, so they do
        not all roll at once.""",
    )
    segment_ms: int = setting(
        "segment.ms",
        default=7 * DAY_MS,
        minimum=1,
        maximum=LONG_MAX,
        doc="""A writer rolls its segment at its next append after so long, and after half a week at the
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
        """The settings in force: `configs`, else the root's value, else the declared default."""
        return parse_settings(cls, configs, root_defaults or {})


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse unknown keys and values out of bounds."""
    refuse_kafka_only(configs)
    validate_settings(configs, declared_settings(TopicConfig), "topic")


def is_topic_setting(key: str) -> bool:
    """Whether topics have a setting of this name."""
    return key in declared_settings(TopicConfig)


def validate_root_configs(configs: Mapping[str, str]) -> None:
    """As for topics; a root also stores the defaults of its topics, under the topic keys."""
    refuse_kafka_only(configs)
    of_brokers = [key for key in configs if is_broker_key(key)]
    if of_brokers:
        raise InvalidRequestError(
            "UNKNOWN_CONFIG",
            f"found {', '.join(of_brokers)}, settings of brokers, which only a broker can check",
            fix="set them through a broker, by their own names: kafka-configs --entity-type brokers",
        )
    validate_settings(configs, declared_settings(TopicConfig) | declared_settings(RootConfig), "root")


def validate_config_keys(keys: list[str], *, root: bool = False) -> None:
    """Refuse unknown keys, where only keys are given (to remove an override)."""
    known = declared_settings(TopicConfig) | (declared_settings(RootConfig) if root else {})
    for key in keys:
        if not (root and is_broker_key(key)):  # also of a broker that does not start any more
            lookup_setting(key, known, "root" if root else "topic")


_OF_TOPICS = (
    "Set with `sparklog topics create` or `alter` (`--config key=value`), by Kafka's admin clients, or with "
    "`create_topic` and `alter_topic` in Python. The same keys on the root are its topics' defaults."
)
_OF_ROOTS = (
    "Set with `sparklog root alter --config key=value`, by Kafka's admin clients as settings of all brokers, "
    "or with `alter_root` in Python; `sparklog root describe --all` shows what is in force."
)


def describe_configs() -> str:
    """A Markdown table of every setting, for the documentation."""
    lines = []
    for title, how, cls in (
        ("Topic settings", _OF_TOPICS, TopicConfig),
        ("Root settings", _OF_ROOTS, RootConfig),
    ):
        lines += [f"## {title}", "", how, ""]
        lines += ["|key|type|unit|default|allowed|meaning|", "|-|-|-|-|-|-|"]
        for key, (_, one) in declared_settings(cls).items():
            cells = (key, TYPE_NAMES[one.kind], one.unit, one.format(one.default), one.bounds, one.doc)
            lines.append("|" + "|".join(cells) + "|")
        lines.append("")
    lines += ["## Topic settings of Kafka that are refused", "", "|key|why|", "|-|-|"]
    lines += [f"|{key}|{why}|" for key, why in REFUSED_TOPIC_SETTINGS.items()]
    return "\n".join(lines) + "\n"


def render_properties() -> str:
    """The text of conf/topic.properties: every topic setting with its default, commented out."""
    lines = [
        "# Settings of a topic, with their defaults. Generated from sparklog/log/config.py.",
        "# No command reads this file: it is for copying from. For one topic:",
        "#     sparklog topics create (or alter) --topic NAME --config key=value",
        "# and for all topics of a root that have no value of their own:",
        "#     sparklog root alter --config key=value",
    ]
    for key, (_, one) in declared_settings(TopicConfig).items():
        unit = f" ({one.unit})" if one.unit else ""
        lines += ["", f"# {one.doc}", f"# Allowed: {one.bounds}{unit}.", f"#{key}={one.format(one.default)}"]
    return "\n".join(lines) + "\n"
