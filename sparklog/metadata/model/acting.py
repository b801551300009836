"""Whose commit it is: act_as_broker, which makes what follows it apply only while that broker may do so.

A broker accepts records for partitions that it leads, in the leader epochs of that moment, and publishes them
later. Meanwhile it may have been fenced, or a leadership may have moved to another and back:

1. A leads partition 0 in epoch 4, accepts r, and stalls;
2. the controller makes B the leader, epoch 5; the client sends r to B, which appends it;
3. the controller makes A the leader again, epoch 6; A wakes up, and would append r a second time.

So the commit says the epoch of 1, and does not apply in 6. It is checked here, when the actions are applied,
and not only when they are planned: whoever replays the log finds out if a planner was wrong.

Invariants: an extent in the scope of this action is in a partition that the broker leads, in the leader epoch
    in which it was accepted; every action in it is of a registration that stands and is not fenced.
Not here: writers that are no brokers, which need no role, and whose actions are in nobody's scope.
Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.broker_values import PartitionLeadership
from sparklog.metadata.model.columns import Column, column_of
from sparklog.metadata.model.draft import Acting, ImageDraft
from sparklog.metadata.model.extents import count_extents
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.registry import require_broker, validate_broker

A = TypeVar("A", bound=ActionBase)


class ActAsBroker(ActionBase, tag="act_as_broker", frozen=True, kw_only=True):
    """The next `actions` actions are a broker's.

    Fields:
        leader_epoch: of each extent that they append or stage, in their order: in which epoch it was
            accepted.
    """

    node_id: Int64
    broker_epoch: Int64
    actions: Int64 = 1
    leader_epoch: Column = ()


def act_as_broker(draft: ImageDraft, action: ActAsBroker) -> None:
    """The effect is on those that follow."""
    if not 1 <= action.actions <= draft.actions_left:
        raise ActionRefusedError(f"{action.actions} actions of a broker, found {draft.actions_left}")
    if draft.acting is not None:
        raise ActionRefusedError("a broker's actions among those of another, or its own")
    require_broker(draft, action.node_id, action.broker_epoch)
    epochs = action.leader_epoch
    draft.acting = Acting(
        node_id=action.node_id,
        until=draft.actions_left - action.actions,
        epochs=iter(epochs) if isinstance(epochs, tuple) else repeat(epochs),
        is_counted=isinstance(epochs, tuple),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedPart:
    """What a broker has accepted, and in which leader epoch."""

    topic_id: str
    partition: int
    leader_epoch: int


def may_append(image: Image, node_id: int, part: AcceptedPart) -> bool:
    """Does the broker lead the partition in the epoch in which it accepted the part? Not so if it is gone."""
    leadership = leadership_of(image, part.topic_id, part.partition)
    return leadership is not None and (leadership.leader, leadership.leader_epoch) == (
        node_id,
        part.leader_epoch,
    )


def leadership_of(image: Image, topic_id: str, partition: int) -> PartitionLeadership | None:
    """Who leads a partition; None when there is no such partition (any more)."""
    topic = image.topic_by_id.get(topic_id)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return None
    return topic.partitions[partition].leadership


def plan_act_as_broker(
    image: Image,
    actions: Sequence[A],
    *,
    node_id: int,
    broker_epoch: int,
    leader_epochs: Sequence[int] = (),
) -> list[A | ActAsBroker]:
    """The same actions, as a broker's; none for none.

    Args:
        leader_epochs: for each extent that they append or stage. Leave out those that `may_append` refuses,
            together with their extents, before: one of them makes the whole commit void.

    Raises:
        FencedError: BROKER_FENCED.
        InvalidRequestError: INVALID_ACTIONS, more or fewer epochs than extents.
    """
    validate_broker(image, node_id, broker_epoch)
    if not actions:
        return []
    extents = count_extents(actions)
    if extents != len(leader_epochs):
        raise invalid_plan(f"{len(leader_epochs)} leader epochs for {extents} extents")
    acting = ActAsBroker(
        node_id=node_id,
        broker_epoch=broker_epoch,
        actions=len(actions),
        leader_epoch=column_of(leader_epochs),
    )
    return [acting, *actions]
