"""What __consumer_offsets is made with, whoever makes it: a coordinator, a commit, a write, or by name.

Invariants: it is compacted, and by nothing else does a record go: under a retention, committed offsets of
    groups that are quiet would be lost.
    How many partitions it has is for ever: groups are found by it.
Not here: its records (groups.py), altering topics (admin.py).
Sources: Kafka GroupCoordinator.groupMetadataTopicConfigs.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.format.consumer_offsets import TOPIC
from sparklog.log.config import TopicConfig
from sparklog.log.root_config import RootConfig
from sparklog.metadata import Image

OFFSETS_TOPIC = TOPIC
OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact"}


def validate_partitions(image: Image, name: str, total: int) -> None:
    """Refuse another number of partitions than __consumer_offsets has.

    A group's offsets are in the partition that its name and this number choose: by another one they would not
    be found any more, and every group would begin anew.

    Raises:
        InvalidRequestError: INVALID_PARTITION_COUNT.
    """
    topic = image.topics.get(OFFSETS_TOPIC)
    if name == OFFSETS_TOPIC and topic is not None and total != len(topic.partitions):
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT",
            f"topic {name!r}: found {total} partitions, expected {len(topic.partitions)}, as it has: by "
            "another number groups' committed offsets would not be found any more",
            fix="leave it; a new root makes it with offsets.topic.num.partitions",
        )


def validate_settings(image: Image, name: str, changes: Mapping[str, str | None]) -> None:
    """Refuse a change by which __consumer_offsets would lose records otherwise than by compaction.

    Raises:
        InvalidRequestError: INVALID_CONFIG_VALUE.
    """
    topic = image.topics.get(name)
    if name != OFFSETS_TOPIC or topic is None or "cleanup.policy" not in changes:
        return
    overrides = {**topic.configs, **changes}
    _validate_policy(
        name, {key: value for key, value in overrides.items() if value is not None}, image.configs
    )


def partitions_of_new(name: str, root: RootConfig) -> int:
    """How many partitions a topic is made with, where nobody says it."""
    return root.offsets_topic_num_partitions if name == OFFSETS_TOPIC else root.num_partitions


def configs_of_new(name: str, asked: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a topic to be made, of those that were asked for, which are legal.

    Raises:
        InvalidRequestError: INVALID_CONFIG_VALUE, the topic cannot be made with them.
    """
    if name != OFFSETS_TOPIC:
        return dict(asked or {})
    configs = {**OFFSETS_TOPIC_CONFIGS, **(asked or {})}
    _validate_policy(name, configs, {})
    return configs


def _validate_policy(name: str, overrides: Mapping[str, str], root: Mapping[str, str]) -> None:
    policy = TopicConfig.parse(overrides, root).cleanup_policy
    if policy != ("compact",):
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"topic {name!r}: found cleanup.policy={','.join(policy)}, expected compact: groups' committed "
            "offsets would be lost",
            fix="leave it at cleanup.policy=compact",
        )
