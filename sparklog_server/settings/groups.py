"""Settings of consumer groups and their offsets.

Sources: Kafka GroupCoordinatorConfig, OffsetConfig.
"""

import dataclasses
from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import LONG_MAX, setting
from sparklog.maintenance.budget import FILES_PER_SECOND
from sparklog.maintenance.choose import DEDUPE_BUFFER_BYTES
from sparklog_server.settings.updating import INT_MAX, MIB, root_default

# --- topics ------------------------------------------------------------------------------------------
#
# Defaults of topics; a value on the root wins (config.py, `root_defaults`).
#
# Sources: Kafka ServerLogConfigs, ReplicationConfigs.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The fields' names are the keys with underscores."""

    auto_create_topics_enable: bool = root_default(
        "auto.create.topics.enable",
        doc="""Create a topic when a client first asks for it and allows it. true: nothing to prepare; false:
        a misspelt name is an error. For clients of this broker; a value on the root wins, and is all that
        Spark, Python and the command line know.""",
    )
    num_partitions: int = root_default(
        "num.partitions",
        doc="""Partitions of a topic created without a number. For clients of this broker; a value on
        the root wins, and is all that Spark, Python and the command line know.""",
    )
    default_replication_factor: int = root_default(
        "default.replication.factor",
        doc="""The number of brokers that may lead a partition, for topics created without a number: as
        many as there are, if those are fewer. It costs nothing, since all have the same storage. A value on
        the root wins.""",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        default=True,
        doc="""Let clients delete topics. false: only the embedded client and the command line can.""",
    )
    message_max_bytes: int = root_default(
        "message.max.bytes",
        doc="""Largest record batch, after compression, of topics without max.message.bytes. A
        value on the root wins.""",
    )


# --- transactions ------------------------------------------------------------------------------------
#
# Settings of transactions.
#
# producer.id.expiration.ms is one of maintenance, as forgetting producers is.
# Sources: Kafka TransactionStateManagerConfig.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The fields' names are the keys with underscores, or shorter."""

    max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        default=900_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Longest time-out that a producer may ask for its transactions; more is refused
        (INVALID_TRANSACTION_TIMEOUT). Longer: slow jobs get through; shorter: records that a dead
        producer has staged take space for less time. No consumer waits for an open transaction in either
        case.""",
    )
    id_expiration_ms: int = root_default(
        "transactional.id.expiration.ms",
        doc="""A transactional id that is not used for this time is forgotten; its producer is no longer
        fenced, and has to be initialised again. Ids with an open transaction stay. Longer: producers may stay
        away longer; shorter: less memory if each job has its own id. A value on the root wins, and
        can be changed while brokers run.""",
    )
    abort_timed_out_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How often the controller checks for transactions past their time-out, aborts them, and fences
        their producers. Shorter: sooner; longer: fewer checks.""",
    )
    remove_expired_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        default=3_600_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How often the controller checks for transactional ids to forget. Shorter: sooner; longer: fewer
        checks.""",
    )


# --- maintenance -------------------------------------------------------------------------------------
#
# Settings of maintenance by the broker, and defaults of the retention of records and producers.
#
# log.retention.minutes and log.retention.hours are log.retention.ms in other units (sources.py).
# Sources: Kafka CleanerConfig, ServerLogConfigs, TransactionLogConfig.


NO_RATE = 1.7976931348623157e308  # Kafka's default: the largest double


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """The fields' names are the keys with underscores."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        default=True,
        doc="""Merge small extents, compact, and remove dead files in the background, in a process of low
        priority. false: another process does (`sparklog maintain`), or the log grows, and is slower to read.
        As in Kafka, records past their retention go in any case.""",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        default=NO_RATE,
        minimum=1,
        unit="bytes/s",
        doc="""How much maintenance reads and writes in a second, together. Smaller: others feel less of it;
        larger: it is done sooner.""",
    )
    sparklog_vacuum_max_files_per_second: int = setting(
        "sparklog.vacuum.max.files.per.second",
        default=FILES_PER_SECOND,
        minimum=1,
        maximum=LONG_MAX,
        unit="files/s",
        doc="""How many dead files maintenance removes in a second. Smaller: the disk, or the object store's
        limit of requests, is left to others; larger: space is freed sooner.""",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        default=DEDUPE_BUFFER_BYTES,
        minimum=1 << 20,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory for the keys of a round of compaction, in the process that does it: 24 bytes a slot, of
        which two thirds are filled. Smaller: more rounds where many keys were written, each of which rewrites
        the partition; larger: more memory.""",
    )
    log_cleaner_delete_retention_ms: int = root_default(
        "log.cleaner.delete.retention.ms",
        doc="""The default of delete.retention.ms, for topics that this broker compacts; a value on
        the root wins, and also applies to `sparklog compact` and streams. Longer: slower readers still see
        a key's deletion; shorter: tombstones take space for less time.""",
    )
    log_cleaner_min_compaction_lag_ms: int = root_default(
        "log.cleaner.min.compaction.lag.ms",
        doc="""As log.cleaner.delete.retention.ms, for min.compaction.lag.ms: how long a record stays as it
        is.""",
    )
    log_cleaner_max_compaction_lag_ms: int = root_default(
        "log.cleaner.max.compaction.lag.ms",
        doc="""As log.cleaner.delete.retention.ms, for max.compaction.lag.ms: after how long a record is
        compacted, whatever the dirty ratio.""",
    )
    log_cleaner_min_cleanable_ratio: float = root_default(
        "log.cleaner.min.cleanable.ratio",
        unit="ratio",
        doc="""As log.cleaner.delete.retention.ms, for min.cleanable.dirty.ratio: how much of a partition is
        dirty when it is compacted. Smaller: less space; larger: less rewriting.""",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        default=15_000,
        minimum=1,
        maximum=LONG_MAX,
        doc="""How often to check for data to merge, compact or remove. Shorter: fewer small
        extents; longer: fewer checks.""",
    )
    sparklog_maintenance_delay_max_ms: int = setting(
        "sparklog.maintenance.delay.max.ms",
        default=60_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="""For how long merging, compaction and the removal of dead files wait while the broker is busy:
        while it takes more than a tenth of a processor. 0: they do not wait. Longer: bursts of load have disk
        and processors for themselves; shorter: fewer small extents while the load lasts.""",
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        default=300_000,
        minimum=1,
        maximum=LONG_MAX,
        doc="""How often to check for records past their retention. Shorter: space is freed sooner;
        longer: fewer checks.""",
    )
    log_retention_ms: int = root_default(
        "log.retention.ms",
        excluded=(0,),  # by which all records of all topics would go; Kafka refuses it, too
        doc="""The default of retention.ms, for topics that this broker expires and reports; -1:
        forever, which is not Kafka's default. log.retention.minutes and log.retention.hours are the same in
        other units; the smallest given unit wins. Only log.retention.hours=168 in a file has no effect,
        since Kafka's own file has it: for a week write log.retention.ms=604800000. A value on the
        root wins, and also applies to `sparklog expire` and streams.""",
    )
    log_retention_bytes: int = root_default(
        "log.retention.bytes",
        doc="""As log.retention.ms, for retention.bytes: of a partition; -1: no limit.""",
    )
    producer_id_expiration_ms: int = root_default(
        "producer.id.expiration.ms",
        doc="""The least time for which partitions remember idempotent producers that write nothing; they are
        forgotten within twice that. Longer: late repetitions of a batch are still recognised;
        shorter: less memory if each job is a new producer. A value on the root wins.""",
    )

    @property
    def bytes_per_second(self) -> int | None:
        """None: no limit."""
        rate = self.log_cleaner_io_max_bytes_per_second
        return None if rate >= LONG_MAX else int(rate)


# --- groups ------------------------------------------------------------------------------------------

ASSIGNORS = ("uniform", "range")  # groups/assignors.py


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The fields' names are the keys with underscores."""

    offsets_topic_replication_factor: int = root_default(
        "offsets.topic.replication.factor",
        doc="""As default.replication.factor, of __consumer_offsets: the number of brokers that may coordinate
        a group. A value on the root wins.""",
    )
    offsets_topic_num_partitions: int = root_default(
        "offsets.topic.num.partitions",
        doc="""Partitions of __consumer_offsets, read when it is created. A value on the root wins.""",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        default=4096,
        minimum=0,
        maximum=32_767,
        doc="""Longest metadata text that a consumer may commit with an offset. Larger: more memory for
        offsets.""",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        default=10_080,
        minimum=1,
        maximum=INT_MAX,
        unit="minutes",
        doc="""Offsets of a group that is empty, or of a consumer without group that commits nothing, are
        forgotten after this time. Longer: consumers may stay away longer; shorter: less to keep.""",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        default=600_000,
        minimum=1,
        maximum=LONG_MAX,
        doc="""How often to check for offsets to forget. Shorter: gone sooner; longer: less work.""",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        default=6_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Shortest session that a member may ask for. Shorter: failures are found sooner, for more
        heartbeats; longer: a pause is less often taken for a failure.""",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        default=1_800_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Longest session that a member may ask for. Longer: members may be silent for longer; shorter:
        failures are found sooner.""",
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        default=3_000,
        minimum=0,
        maximum=INT_MAX,
        doc="""How long an empty group waits for more members before its first rebalance. Longer: fewer
        rebalances while many are started; shorter: the first one gets its partitions sooner.""",
    )
    group_max_size: int = setting(
        "group.max.size",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="members",
        doc="""Most members of a group (Kafka: no limit). Lower keeps a runaway client from filling the
        broker's memory and from rebalances that never end.""",
    )
    group_max_groups: int = setting(
        "sparklog.group.max.groups",
        default=100_000,
        minimum=1,
        maximum=INT_MAX,
        unit="groups",
        doc="""Most groups that clients can make; further ones are refused. Higher: more memory.""",
    )
    group_max_bytes: int = setting(
        "sparklog.group.max.bytes",
        default=256 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Most memory that subscriptions and assignments of all members may take; members beyond it are
        refused. Higher: more memory.""",
    )
    group_max_record_bytes: int = setting(
        "sparklog.group.max.record.bytes",
        default=4 * MIB,
        minimum=64 << 10,
        maximum=15 * MIB,  # the whole record, with the group's own names, has 16 (coordination/records.py)
        doc="""Longest record of one group: names, subscriptions and assignments of all its members, which are
        written together and sent to their leader together. Members beyond it are refused
        (GROUP_MAX_SIZE_REACHED), and so are assignments (UNKNOWN_SERVER_ERROR, as where Kafka's record is
        longer than message.max.bytes, 1 MiB). Higher: more members, or longer subscriptions, of one group;
        lower: less to write when a member comes.""",
    )
    group_max_offset_bytes: int = setting(
        "sparklog.group.max.offset.bytes",
        default=512 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Most memory that committed offsets of all groups may take, some 300 bytes for each, and their
        notes; commits that need more beyond it are refused (INVALID_COMMIT_OFFSET_SIZE). Higher: more memory;
        lower: fewer groups times partitions.""",
    )

    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        default=45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How long a member of a consumer group of the new protocol (KIP-848) may be silent. A group's
        own consumer.session.timeout.ms wins. Shorter: failures are found sooner; longer: a pause is less
        often taken for a failure.""",
    )
    consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        default=45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Shortest consumer.session.timeout.ms that a group may have.""",
    )
    consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        default=60_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Longest consumer.session.timeout.ms that a group may have.""",
    )
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        default=5_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How often members of consumer groups (KIP-848) send heartbeats, by which they also learn of new
        assignments. A group's own consumer.heartbeat.interval.ms wins. Shorter: rebalances end sooner, for
        more requests.""",
    )
    consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        default=5_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Shortest consumer.heartbeat.interval.ms that a group may have.""",
    )
    consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        default=15_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""Longest consumer.heartbeat.interval.ms that a group may have.""",
    )
    consumer_max_size: int = setting(
        "group.consumer.max.size",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="members",
        doc="""As group.max.size, of consumer groups of the new protocol (Kafka: no limit).""",
    )
    consumer_assignors: str = setting(
        "group.consumer.assignors",
        default="uniform,range",
        doc="""Assignors that members may ask for, separated by commas; the first one is the default. There
        are `uniform` and `range`.""",
    )
    consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms",
        default=1_000,
        minimum=0,
        maximum=INT_MAX,
        doc="""Least time between two assignments of a consumer group. Longer: fewer rebalances while many
        members are started; shorter: members that come later get their partitions sooner.""",
    )
    consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        default="bidirectional",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        doc="""Whether a group with members changes its protocol while its members are restarted one by one.
        upgrade: a classic group becomes a consumer group when a member of the new protocol (KIP-848) joins;
        downgrade: a consumer group becomes a classic one when the last of these is gone; bidirectional:
        both; disabled: neither, and no group has members of both protocols.""",
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        _check_assignors(self.consumer_assignor_names)
        for what, given, least_ms, most_ms in (
            (
                "session.timeout.ms",
                self.consumer_session_timeout_ms,
                self.consumer_min_session_timeout_ms,
                self.consumer_max_session_timeout_ms,
            ),
            (
                "heartbeat.interval.ms",
                self.consumer_heartbeat_interval_ms,
                self.consumer_min_heartbeat_interval_ms,
                self.consumer_max_heartbeat_interval_ms,
            ),
        ):
            _check_between(f"group.consumer.{what}", given, least_ms, most_ms)
        least, most = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if least > most:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"group.min.session.timeout.ms: found {least}, more than the longest, {most}: "
                "no member could join a group",
                fix="give the shortest session a value that is at most the longest one",
            )

    @property
    def may_upgrade(self) -> bool:
        """True if a classic group with members becomes a consumer group."""
        return self.consumer_migration_policy in {"bidirectional", "upgrade"}

    @property
    def may_downgrade(self) -> bool:
        """True if a consumer group with members becomes a classic group."""
        return self.consumer_migration_policy in {"bidirectional", "downgrade"}

    @property
    def may_mix(self) -> bool:
        """True if members of the classic protocol may join a consumer group that has members."""
        return self.consumer_migration_policy != "disabled"

    @property
    def consumer_assignor_names(self) -> tuple[str, ...]:
        """The assignors that members may ask for."""
        return tuple(name.strip() for name in self.consumer_assignors.split(","))


def _check_assignors(names: tuple[str, ...]) -> None:
    if len(set(names)) != len(names) or not set(names) <= set(ASSIGNORS):
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"group.consumer.assignors: found {', '.join(names)[:100]!r}, expected each of "
            f"{' and '.join(ASSIGNORS)} at most once",
            fix="name the assignors, separated by a comma",
        )


def _check_between(key: str, given: int, least: int, most: int) -> None:
    if not least <= given <= most:
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"{key}: found {given}, expected {least} to {most}",
            fix=f"give {key} a value between the settings of its minimum and maximum, or change these",
        )


# --- one group ---------------------------------------------------------------------------------------
#
# Settings that a group may have of its own: the names, and the broker's settings that are their defaults and
# bounds. They are kept among those of the root (log/config.py, `group_key`).
#
# Invariants: what a group has of its own is within the bounds when it is set; a broker with other bounds uses
#     the nearest one.
# Sources: Kafka GroupConfig, GroupConfigManager.


SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """The fields' names are the keys with underscores."""

    consumer_session_timeout_ms: int = setting(
        SESSION_TIMEOUT,
        default=45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How long a member of this consumer group may be silent.""",
    )
    consumer_heartbeat_interval_ms: int = setting(
        HEARTBEAT_INTERVAL,
        default=5_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How often members of this consumer group send heartbeats.""",
    )


def bounds_of(settings: GroupSettings) -> dict[str, tuple[int, int]]:
    """Return the least and most that a group may have, by the name of its setting."""
    return {
        SESSION_TIMEOUT: (
            settings.consumer_min_session_timeout_ms,
            settings.consumer_max_session_timeout_ms,
        ),
        HEARTBEAT_INTERVAL: (
            settings.consumer_min_heartbeat_interval_ms,
            settings.consumer_max_heartbeat_interval_ms,
        ),
    }


def of_group(settings: GroupSettings, own: Mapping[str, str]) -> ConsumerGroupSettings:
    """Return the settings in force for a group. `own`: as stored; a value that is no number has no effect."""
    found = {
        SESSION_TIMEOUT: settings.consumer_session_timeout_ms,
        HEARTBEAT_INTERVAL: settings.consumer_heartbeat_interval_ms,
    }
    for name, (least, most) in bounds_of(settings).items():
        text = own.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < len(str(INT_MAX)) + 1:
            found[name] = min(max(int(text), least), most)
    return ConsumerGroupSettings(
        consumer_session_timeout_ms=found[SESSION_TIMEOUT],
        consumer_heartbeat_interval_ms=found[HEARTBEAT_INTERVAL],
    )
