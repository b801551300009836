"""Topics: create_topic, delete_topic, add_partitions.

Invariants: a topic's id and its name are unique; partitions are only added, and start empty at offset 0.
Not here: settings of topics (settings.py).
"""

from collections.abc import Mapping

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, Int64, is_id, refuse
from sparklog.metadata.model.draft import ImageDraft, TopicDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.image import (
    Image,
    PartitionLeadership,
    PartitionState,
    why_illegal_topic_name,
    why_no_new_topic_name,
)
from sparklog.metadata.model.settings import is_isolating, validate_configs, why_illegal_configs

# --- capacity ----------------------------------------------------------------------------------------
#
# The limit on a root's partitions: each is in the memory of every reader, and in every snapshot.
#
# It limits plans, not the log: roots with more can be read.
#
# Invariants: a valid plan does not take the root beyond its setting, `sparklog.max.partitions`.
# Not here: the limit of one request (sparklog_server/admin/changes.py).
# Concurrency: pure functions.


MAX_PARTITIONS_KEY = "sparklog.max.partitions"  # a setting of the root; declared in log/config.py
DEFAULT_MAX_PARTITIONS = 200_000


def validate_room(image: Image, added: int) -> None:
    """Raise InvalidRequestError TOO_MANY_PARTITIONS if this many more would exceed the limit."""
    present = image.partition_count
    limit = _limit(image.configs)
    if present + added > limit:
        raise InvalidRequestError(
            "TOO_MANY_PARTITIONS",
            f"root: found {present} partitions and {added} to be added, expected at most {limit} in all",
            fix=f"Ask for fewer, delete topics, or raise {MAX_PARTITIONS_KEY} of the root",
        )


def _limit(configs: Mapping[str, str]) -> int:
    text = configs.get(MAX_PARTITIONS_KEY, "")
    return int(text) if text.isascii() and text.isdigit() else DEFAULT_MAX_PARTITIONS


# --- topics ------------------------------------------------------------------------------------------


MAX_PARTITIONS = 100_000


class CreateTopic(ActionBase, tag="create_topic", frozen=True, kw_only=True):
    """A new topic; its partitions start empty at offset 0."""

    topic_id: str
    name: str
    partitions: Int64
    configs: dict[str, str] = {}  # noqa: RUF012 - of a msgspec.Struct, which copies it

    @property
    def isolates(self) -> bool:
        """True if the topic is isolated."""
        return is_isolating(self.configs)


class DeleteTopic(ActionBase, tag="delete_topic", frozen=True, kw_only=True):
    """The topic and everything in it; its files are swept later."""

    topic_id: str

    @property
    def frees_space(self) -> bool:
        """Always."""
        return True


class AddPartitions(ActionBase, tag="add_partitions", frozen=True, kw_only=True):
    """The topic has `partitions` partitions from now on: more than before."""

    topic_id: str
    partitions: Int64


def added_partitions(image: Image, action: object) -> int:
    """Return how many partitions the action, or None, adds."""
    match action:
        case CreateTopic():
            return action.partitions
        case AddPartitions():
            return action.partitions - len(image.topic_by_id[action.topic_id].partitions)
        case _:
            return 0


# --- rules -------------------------------------------------------------------------------------------


def why_illegal_partition_count(partitions: int) -> str | None:
    """A topic has at least one partition."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        return f"{partitions} partitions, expected 1 to {MAX_PARTITIONS}"
    return None


# --- effects -----------------------------------------------------------------------------------------


def create_topic(draft: ImageDraft, action: CreateTopic) -> None:
    """Apply; the id and the name must be free."""
    if not is_id(action.topic_id) or draft.has_topic(action.topic_id):
        raise ActionRefusedError(f"topic id {action.topic_id!r} is malformed or taken")
    refuse(why_illegal_topic_name(action.name), f"topic name {action.name!r}")
    if draft.has_name(action.name):
        raise ActionRefusedError(f"topic name {action.name!r} is taken")
    refuse(why_illegal_partition_count(action.partitions), f"topic {action.name!r}")
    refuse(why_illegal_configs(action.configs), f"topic {action.name!r}")
    partitions = _empty_partitions(draft, action.topic_id, 0, action.partitions)
    draft.add_topic(TopicDraft(action.topic_id, action.name, partitions, dict(action.configs), {}))


def delete_topic(draft: ImageDraft, action: DeleteTopic) -> None:
    """Apply: delete the topic with all of its data."""
    draft.remove_topic(draft.topic(action.topic_id))


def add_partitions(draft: ImageDraft, action: AddPartitions) -> None:
    """Apply: add empty partitions after the existing ones."""
    topic = draft.topic(action.topic_id)
    refuse(why_illegal_partition_count(action.partitions), f"topic {topic.name!r}")
    count = len(topic.partitions)
    if action.partitions <= count:
        raise ActionRefusedError(f"{action.partitions} partitions, the topic has {count} and can only grow")
    topic.partitions += _empty_partitions(draft, action.topic_id, count, action.partitions)


def _empty_partitions(draft: ImageDraft, topic_id: str, start: int, stop: int) -> list[PartitionState]:
    """In a restored root, clients may have seen higher leader epochs of these partitions."""
    leadership = PartitionLeadership(leader_epoch=draft.incarnation.leader_epoch)
    return [
        PartitionState(
            topic_id=topic_id,
            partition=partition,
            log_start_offset=0,
            log_end_offset=0,
            extents=ExtentList(topic_id, partition),
            leadership=leadership,
        )
        for partition in range(start, stop)
    ]


# --- plans -------------------------------------------------------------------------------------------


def plan_create_topic(
    image: Image, name: str, partitions: int, *, topic_id: str, configs: Mapping[str, str] | None = None
) -> CreateTopic:
    """Return the action for a new topic; `topic_id` from new_id(). Raises TOPIC_EXISTS."""
    reason = why_no_new_topic_name(name)
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_NAME",
            f"topic name {name!r}: {reason}",
            fix="Choose another name, such as 'orders.eu'",
        )
    if name in image.topics:
        raise InvalidRequestError(
            "TOPIC_EXISTS", f"topic {name!r}: exists already", fix="Use it, or choose another name"
        )
    twin = image.named_like(name)
    if twin is not None:
        raise InvalidRequestError(
            "INVALID_TOPIC_NAME",
            f"topic name {name!r}: collides with {twin!r}, since '.' and '_' are the same in metrics",
            fix="Choose a name that differs in more than '.' and '_'",
        )
    reason = why_illegal_partition_count(partitions)
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT", f"topic {name!r}: {reason}", fix="Ask for a legal number"
        )
    validate_room(image, partitions)
    validate_configs(configs or {})
    return CreateTopic(topic_id=topic_id, name=name, partitions=partitions, configs=dict(configs or {}))


def plan_delete_topic(image: Image, name: str) -> DeleteTopic:
    """Delete an existing topic."""
    return DeleteTopic(topic_id=image.topic(name).topic_id)


def plan_add_partitions(image: Image, name: str, total: int) -> AddPartitions | None:
    """Grow a topic to `total` partitions; None if it has that many already."""
    topic = image.topic(name)
    count = len(topic.partitions)
    reason = why_illegal_partition_count(total)
    if reason is None and total < count:
        reason = f"{total} partitions, it has {count} and cannot shrink"
    if reason is not None:
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT", f"topic {name!r}: {reason}", fix="Ask for more partitions"
        )
    if total == count:
        return None
    validate_room(image, total - count)
    return AddPartitions(topic_id=topic.topic_id, partitions=total)
