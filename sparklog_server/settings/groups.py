"""Settings of consumer groups and their offsets.

Sources: Kafka GroupCoordinatorConfig, OffsetConfig.
"""

import dataclasses

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.units import INT_MAX, MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The fields' names are the keys with underscores."""

    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        default=3,
        minimum=1,
        maximum=100,
        unit="brokers",
        doc="""As default.replication.factor, of __consumer_offsets: among how many brokers coordinating a
        group moves. A value on the root wins.""",
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        default=50,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of __consumer_offsets, read when it is created. A value on the root wins.""",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        default=4096,
        minimum=0,
        maximum=32_767,
        unit="bytes",
        doc="""Longest note that a consumer may commit with an offset. Larger: more memory for offsets.""",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        default=10_080,
        minimum=1,
        maximum=INT_MAX,
        unit="minutes",
        doc="""Offsets of a group that is empty, or of a consumer without group that commits nothing, are
        forgotten after so long. Longer: consumers may stay away longer; shorter: less to keep.""",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        default=600_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How often to look for offsets to forget. Shorter: gone sooner; longer: less work.""",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        default=6_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""Shortest session that a member may ask for. Shorter: failures are found sooner, for more
        heartbeats; longer: a pause is less often taken for a failure.""",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        default=1_800_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""Longest session that a member may ask for. Longer: members may be silent for longer; shorter:
        failures are found sooner.""",
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        default=3_000,
        minimum=0,
        maximum=INT_MAX,
        unit="ms",
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
        unit="bytes",
        doc="""Most memory that subscriptions and assignments of all members may take; members beyond it are
        refused. Higher: more memory.""",
    )
    group_max_record_bytes: int = setting(
        "sparklog.group.max.record.bytes",
        default=4 * MIB,
        minimum=64 << 10,
        maximum=15 * MIB,  # the whole record, with the group's own names, has 16 (coordination/records.py)
        unit="bytes",
        doc="""Longest record of one group: names, subscriptions and assignments of all its members, which are
        written together and told to their leader together. Members beyond it are refused
        (GROUP_MAX_SIZE_REACHED), and so are assignments (UNKNOWN_SERVER_ERROR, as where Kafka's record is
        longer than message.max.bytes, 1 MiB). Higher: more members, or longer subscriptions, of one group;
        lower: less to write when a member comes.""",
    )
    group_max_offset_bytes: int = setting(
        "sparklog.group.max.offset.bytes",
        default=512 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Most memory that committed offsets of all groups may take, some 300 bytes for each, and their
        notes; commits that need more beyond it are refused (INVALID_COMMIT_OFFSET_SIZE). Higher: more memory;
        lower: fewer groups times partitions.""",
    )

    def __post_init__(self) -> None:
        """What one declaration cannot say."""
        least, most = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if least > most:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"group.min.session.timeout.ms: found {least}, more than the longest, {most}: "
                "no member could join a group",
                fix="give the shortest session a value that is at most the longest one",
            )
