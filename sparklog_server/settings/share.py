"""Settings of share groups: of the broker, and of each group.

A group's settings are among those of the root, under `groups/<group>/<name>` (sparklog/log/config.py).
Sources: Kafka ShareGroupConfig, GroupConfig; KIP-932, KIP-1191, KIP-1222.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Self

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.log.config import group_key
from sparklog.log.setting import declared_settings, setting
from sparklog_server.settings.updating import INT_MAX

MAX_RECORD_LOCKS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """The fields' names are the keys with underscores, or shorter."""

    max_size: int = setting(
        "group.share.max.size",
        default=200,
        minimum=1,
        maximum=1_000,
        unit="members",
        doc="""Most members of a share group; further ones get GROUP_MAX_SIZE_REACHED. Higher: more workers,
        and more to assign when one comes or goes.""",
    )
    session_timeout_ms: int = setting(
        "group.share.session.timeout.ms",
        default=45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""A member of a share group that sends no heartbeat for this time is removed. Shorter: its
        partitions go to others sooner. What it has acquired is available again when its locks expire.""",
    )
    heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms",
        default=5_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""How often members of share groups send heartbeats. Shorter: changes reach them sooner; longer:
        fewer requests.""",
    )
    assignment_interval_ms: int = setting(
        "group.share.assignment.interval.ms",
        default=1_000,
        minimum=0,
        maximum=INT_MAX,
        doc="""Least time between two assignments of a share group. Longer: fewer of them while many members
        are started; shorter: members that come later get their partitions sooner. A group may have its own
        (share.assignment.interval.ms).""",
    )
    record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms",
        default=30_000,
        minimum=1_000,
        maximum=3_600_000,
        doc="""How long a member may work on a record that it has acquired, unless it renews that. Then the
        record is delivered again. Shorter: records of dead workers are delivered sooner; longer: slow work is
        not done twice. A group may have its own (share.record.lock.duration.ms).""",
    )
    delivery_count_limit: int = setting(
        "group.share.delivery.count.limit",
        default=5,
        minimum=2,
        maximum=10,
        unit="deliveries",
        doc="""How often a record is delivered before it is archived, and becomes a dead letter if the group
        has a dead-letter topic. Lower: a poison message costs less; higher: a failure that passes does no
        harm. A group may have its own (share.delivery.count.limit).""",
    )
    partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks",
        default=2_000,
        minimum=100,
        maximum=MAX_RECORD_LOCKS,
        unit="records",
        doc="""How far a share group may be ahead in a partition: records from the first one that has not
        ended to the last one that is acquired. Higher: more workers on a partition, and more to remember. A
        group may have its own (share.partition.max.record.locks).""",
    )
    max_share_sessions: int = setting(
        "group.share.max.share.sessions",
        default=2_000,
        minimum=1,
        maximum=INT_MAX,
        unit="sessions",
        doc="""Most members of share groups that fetch from this broker at the same time; further ones get
        SHARE_SESSION_LIMIT_REACHED. Higher: more memory.""",
    )
    dead_letter_prefix: str = setting(
        "errors.deadletterqueue.topic.name.prefix",
        default="dlq.",
        doc="""The beginning of names of dead-letter topics, which groups' settings may name; empty: any.""",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The settings of one group, with the broker's where it has none."""

    auto_offset_reset: str = setting(
        "share.auto.offset.reset",
        default="latest",
        doc="""Where the group begins in a partition that is new to it: `latest`, at its end; `earliest`, at
        its start; or at the first record that is not older than a duration, as `by_duration:PT1H30M`.""",
    )
    isolation_level: str = setting(
        "share.isolation.level",
        default="read_uncommitted",
        choices=("read_uncommitted", "read_committed"),
        doc="""Both are the same here: records of open transactions are not in partitions yet.""",
    )
    session_timeout_ms: int = setting(
        "share.session.timeout.ms",
        default=45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""As group.share.session.timeout.ms, for this group.""",
    )
    heartbeat_interval_ms: int = setting(
        "share.heartbeat.interval.ms",
        default=5_000,
        minimum=1,
        maximum=INT_MAX,
        doc="""As group.share.heartbeat.interval.ms, for this group.""",
    )
    assignment_interval_ms: int = setting(
        "share.assignment.interval.ms",
        default=1_000,
        minimum=0,
        maximum=INT_MAX,
        doc="""As group.share.assignment.interval.ms, for this group.""",
    )
    record_lock_duration_ms: int = setting(
        "share.record.lock.duration.ms",
        default=30_000,
        minimum=1_000,
        maximum=3_600_000,
        doc="""As group.share.record.lock.duration.ms, for this group.""",
    )
    delivery_count_limit: int = setting(
        "share.delivery.count.limit",
        default=5,
        minimum=2,
        maximum=10,
        unit="deliveries",
        doc="""As group.share.delivery.count.limit, for this group.""",
    )
    partition_max_record_locks: int = setting(
        "share.partition.max.record.locks",
        default=2_000,
        minimum=100,
        maximum=MAX_RECORD_LOCKS,
        unit="records",
        doc="""As group.share.partition.max.record.locks, for this group.""",
    )
    renew_acknowledge_enable: bool = setting(
        "share.renew.acknowledge.enable",
        default=True,
        doc="""Whether members may renew their locks.""",
    )
    dead_letter_topic: str = setting(
        "errors.deadletterqueue.topic.name",
        default="",
        doc="""The topic for records that the group rejects, or that were delivered too often; empty: none,
        they are only archived. The topic must have errors.deadletterqueue.group.enable=true.""",
    )
    dead_letter_copy_record: bool = setting(
        "errors.deadletterqueue.copy.record.enable",
        default=False,
        doc="""Whether dead letters have the key, value and headers of their record; if not, only headers that
        say where it is.""",
    )

    @classmethod
    def of(cls, configs: Mapping[str, str], group: str, settings: ShareSettings) -> Self:
        """Return a group's settings; one that is invalid here counts for nothing."""
        values = inherited(settings)
        for name, (field, one) in declared_settings(cls).items():
            text = configs.get(group_key(group, name))
            if text is not None:
                with contextlib.suppress(SparklogError):
                    values[field] = one.parse(text)
        return cls(**values)


def inherited(settings: ShareSettings) -> dict[str, Any]:
    """Return the broker's values for groups that have none, by field."""
    return {
        name: getattr(settings, name)
        for name in (
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "assignment_interval_ms",
            "record_lock_duration_ms",
            "delivery_count_limit",
            "partition_max_record_locks",
        )
    }


_RESET = re.compile(
    r"by_duration:P(?=.)(?:(\d{1,6})D)?(?:T(?=.)(?:(\d{1,7})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
LATEST, EARLIEST = "latest", "earliest"


def reset_age_ms(reset: str) -> int | None:
    """Return the age of a share.auto.offset.reset by duration; None: it is `latest` or `earliest`.

    Raises:
        InvalidRequestError: INVALID_CONFIG_VALUE.
    """
    if reset in (LATEST, EARLIEST):
        return None
    found = _RESET.fullmatch(reset)
    if found is None:
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"share.auto.offset.reset: found {reset!r}, expected latest, earliest, or by_duration: and a "
            "duration as ISO 8601 has them",
            fix="give a value such as earliest or by_duration:PT1H",
        )
    days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
    return int(1000 * (86_400 * days + 3_600 * hours + 60 * minutes + seconds))


def validate_group_configs(changes: Mapping[str, str | None], prefix: str) -> None:
    """Raise InvalidRequestError for values whose declarations do not say all that is illegal."""
    reset = changes.get("share.auto.offset.reset")
    if reset is not None:
        reset_age_ms(reset)
    _validate_dead_letter_topic(changes.get("errors.deadletterqueue.topic.name") or "", prefix)


def _validate_dead_letter_topic(name: str, prefix: str) -> None:
    """Raise InvalidRequestError INVALID_CONFIG_VALUE for a name that Kafka refuses."""
    if name and (name.startswith("__") or not name.startswith(prefix)):
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"errors.deadletterqueue.topic.name: found {name!r}, expected a name that begins with "
            f"{prefix!r}, and not with '__'",
            fix="choose another topic, or set the broker's errors.deadletterqueue.topic.name.prefix",
        )
