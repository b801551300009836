"""What __consumer_offsets is made with, whoever makes it: a coordinator, a commit, a write, or by name.

Invariants: it is compacted, and by nothing else does a record go: under a retention, committed offsets of
    groups that are quiet would be lost.
Not here: its records (groups.py), altering topics that exist (admin.py).
Sources: Kafka GroupCoordinator.groupMetadataTopicConfigs.
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.format.consumer_offsets import TOPIC
from sparklog.log.config import TopicConfig
from sparklog.log.root_config import RootConfig

OFFSETS_TOPIC = TOPIC
OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact"}


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
    policy = TopicConfig.parse(configs, {}).cleanup_policy
    if policy != ("compact",):
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"topic {name!r}: found cleanup.policy={','.join(policy)}, expected compact: groups' committed "
            "offsets would be lost",
            fix="leave cleanup.policy out",
        )
    return configs
