"""Brokers: join_broker, fence_broker, begin_controlled_shutdown, unregister_broker.

A registration is a node id and a broker epoch, which is the number of the commit by which the broker joined.
Every action of a broker carries its epoch, and applies while that registration exists and is not fenced. A
fenced broker joins again, with another epoch.

Invariants:
    no two registrations have the same epoch; a node has at most one;
    from the commit on that fences it, a broker leads nothing and is not controller: its leaderships end with
    a new leader epoch without a leader, so that no registration acts in the leader epoch of another.
Not here: which broker is to be fenced (sparklog_server/cluster).
Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py; KIP-631.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TypeVar

import msgspec

from sparklog.errors import FencedError
from sparklog.metadata.model.action import (
    ActionBase,
    ActionRefusedError,
    Column,
    Int64,
    column_of,
    expanded,
    invalid_plan,
    is_id,
    named,
    partitions_of,
    refuse,
)
from sparklog.metadata.model.draft import Acting, ImageDraft
from sparklog.metadata.model.extents import count_extents
from sparklog.metadata.model.image import (
    NO_EPOCH,
    NO_NODE,
    BrokerListener,
    Controller,
    Image,
    PartitionLeadership,
    RegisteredBroker,
)

# --- controller --------------------------------------------------------------------------------------
#
# The controller: elect_controller, and what its actions have in common.
#
# Two brokers may both take themselves for the controller until one of them refreshes its image. Each action
# is planned against the newest image, and carries a controller epoch: it applies in that epoch only. So the
# first action of the older one after the other's election is refused, whatever the clocks say.
#
# Invariants: a controller epoch is one registration's, elected once; an action of an older epoch does not
#     apply; nor does one of a controller that is fenced.
# Not here: when a broker stands for election (sparklog_server/cluster).
# Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py.


class ElectController(ActionBase, tag="elect_controller", frozen=True, kw_only=True):
    """A broker becomes controller."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64


def elect_controller(draft: ImageDraft, action: ElectController) -> None:
    """Apply, unless another controller has been elected since."""
    expected = draft.controller.controller_epoch + 1
    if action.controller_epoch != expected:
        raise ActionRefusedError(f"controller epoch {action.controller_epoch}, expected {expected}")
    broker = draft.brokers.get(action.node_id)
    if broker is None or broker.broker_epoch != action.broker_epoch or broker.is_fenced:
        raise ActionRefusedError(
            f"broker {action.node_id} of epoch {action.broker_epoch} is fenced: {broker}"
        )
    draft.controller = Controller(action.node_id, action.broker_epoch, action.controller_epoch)


def require_controller(draft: ImageDraft, controller_epoch: int) -> None:
    """ActionRefusedError unless this is the epoch of the controller, and there is one."""
    now = draft.controller
    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:
        raise ActionRefusedError(f"controller epoch {controller_epoch} is over: {now}")


def plan_elect_controller(image: Image, node_id: int, broker_epoch: int) -> ElectController:
    """Replace the present controller. The new controller epoch is the action's."""
    return ElectController(
        node_id=node_id,
        broker_epoch=broker_epoch,
        controller_epoch=image.controller.controller_epoch + 1,
    )


def validate_controller(image: Image, controller_epoch: int) -> None:
    """Raise FencedError CONTROLLER_FENCED unless this is the epoch of the controller."""
    now = image.controller
    if controller_epoch != now.controller_epoch or now.node_id == NO_NODE:
        raise FencedError(
            "CONTROLLER_FENCED",
            f"cluster {image.cluster_id}: found controller epoch {now.controller_epoch} of broker "
            f"{now.node_id}, expected {controller_epoch}",
            fix="let the controller of the newer epoch decide; nothing was changed",
        )


# --- leading -----------------------------------------------------------------------------------------
#
# Assignments and leaders of partitions: assign_replicas, elect_leaders.
#
# Data is on shared storage, so one commit moves a leadership, however much data it leads, or thousands of
# them, in columns. The in-sync replicas are not stored: they are all replicas that are not fenced.
#
# Invariants: a leader is one of the partition's replicas, and not fenced; a leader epoch is one higher with
#     each change of the leader, and changes in no other way; an assignment keeps the leader. Only the
#     controller does either.
# Not here: which broker is to lead (the controller knows).
# Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py; Kafka's PartitionChangeRecord.


MAX_REPLICAS = 100
NO_LIST = -1  # instead of the index of a list of brokers: none
TopicPartition = tuple[str, int]  # topic id, partition


class AssignReplicas(ActionBase, tag="assign_replicas", frozen=True, kw_only=True):
    """Assign replicas to partitions, in columns, with each list of brokers once.

    Fields:
        lists: lists of node ids.
        topics, topic, partition: the index in `topics`, and the partition, of each.
        replicas, adding, removing: indexes in `lists`; of the latter two -1 means none.
    """

    controller_epoch: Int64
    lists: tuple[tuple[Int64, ...], ...]
    topics: tuple[str, ...]
    topic: Column = 0
    partition: tuple[Int64, ...]
    replicas: Column = 0
    adding: Column = NO_LIST
    removing: Column = NO_LIST


class ElectLeaders(ActionBase, tag="elect_leaders", frozen=True, kw_only=True):
    """Give partitions these leaders, or none (-1), each in the epoch after its last one."""

    controller_epoch: Int64
    topics: tuple[str, ...]
    topic: Column = 0
    partition: tuple[Int64, ...]
    leader: Column
    leader_epoch: Column


# --- effects -----------------------------------------------------------------------------------------


def assign_replicas(draft: ImageDraft, action: AssignReplicas) -> None:
    """Apply; the leaders and their epochs stay."""
    require_controller(draft, action.controller_epoch)
    lists = action.lists
    for brokers in lists:
        if not brokers or len(brokers) > MAX_REPLICAS or len(set(brokers)) != len(brokers):
            raise ActionRefusedError(
                f"a list of {len(brokers)} brokers: expected 1 to {MAX_REPLICAS}, each once"
            )
        if min(brokers) < 0 or max(brokers) > MAX_NODE_ID:
            raise ActionRefusedError(f"brokers {brokers}, expected node ids from 0 to {MAX_NODE_ID}")
    partitions = partitions_of(action.topics, action.topic, action.partition)
    count = len(partitions)
    replicas = _listed(lists, expanded(action.replicas, count, "replicas"), least=0)
    adding = _listed(lists, expanded(action.adding, count, "adding"))
    removing = _listed(lists, expanded(action.removing, count, "removing"))
    for (topic_id, number), now, comes, goes in zip(partitions, replicas, adding, removing, strict=True):
        partition = draft.partition(topic_id, number)
        before = partition.leadership
        where = f"partition {number} of topic {topic_id}"
        if not set(comes).issubset(now) or not set(goes).issubset(now) or not set(comes).isdisjoint(goes):
            raise ActionRefusedError(f"{where}: adding {comes} and removing {goes} of {now}")
        if before.leader != NO_NODE and before.leader not in now:
            raise ActionRefusedError(f"{where}: leader {before.leader}, expected one of the replicas {now}")
        partition.lead(PartitionLeadership(now, before.leader, before.leader_epoch, comes, goes))


def _listed(
    lists: Sequence[tuple[int, ...]], places: Sequence[int], *, least: int = NO_LIST
) -> list[tuple[int, ...]]:
    if min(places) < least or max(places) >= len(lists):
        raise ActionRefusedError(f"replica-list index out of range (0 to {len(lists) - 1})")
    return [() if place == NO_LIST else lists[place] for place in places]


def elect_leaders(draft: ImageDraft, action: ElectLeaders) -> None:
    """Apply; the former leaders lead no more."""
    require_controller(draft, action.controller_epoch)
    partitions = partitions_of(action.topics, action.topic, action.partition)
    leaders = expanded(action.leader, len(partitions), "leader")
    epochs = expanded(action.leader_epoch, len(partitions), "leader_epoch")
    for node_id in set(leaders) - {NO_NODE}:
        broker = draft.brokers.get(node_id)
        if broker is None or broker.is_fenced:
            raise ActionRefusedError(f"leader {node_id} is fenced: {broker}")
    for (topic_id, number), leader, epoch in zip(partitions, leaders, epochs, strict=True):
        partition = draft.partition(topic_id, number)
        before = partition.leadership
        where = f"partition {number} of topic {topic_id}"
        if leader != NO_NODE and leader not in before.replicas:
            raise ActionRefusedError(f"{where}: leader {leader}, expected one of {before.replicas}")
        if leader == before.leader:
            raise ActionRefusedError(f"{where}: found leader {leader} already, expected another")
        if epoch != before.leader_epoch + 1:
            raise ActionRefusedError(f"{where}: leader epoch {epoch}, expected {before.leader_epoch + 1}")
        partition.lead(PartitionLeadership(before.replicas, leader, epoch, before.adding, before.removing))


# --- plans -------------------------------------------------------------------------------------------


def plan_assign_replicas(
    image: Image, assignments: Mapping[TopicPartition, PartitionLeadership], *, controller_epoch: int
) -> AssignReplicas | None:
    """Assign the replicas, adding and removing of these; None when partitions have them already.

    Raises:
        FencedError: CONTROLLER_FENCED.
        UnknownTopicError: the topic is gone.
        InvalidRequestError: INVALID_ACTIONS, a mistake of the controller.
    """
    validate_controller(image, controller_epoch)
    changed = {
        one: new
        for one, new in assignments.items()
        if _assignment(image.partition_of(*one).leadership) != _assignment(new)
    }
    if not changed:
        return None
    if any(not one.replicas for one in changed.values()):
        raise invalid_plan("an assignment without replicas")
    places: dict[tuple[int, ...], int] = {}

    def place(brokers: tuple[int, ...]) -> int:
        return places.setdefault(brokers, len(places)) if brokers else NO_LIST

    values = changed.values()
    topics, topic, partition = named(list(changed))
    replicas = column_of([place(one.replicas) for one in values])
    adding = column_of([place(one.adding) for one in values])
    removing = column_of([place(one.removing) for one in values])
    return AssignReplicas(
        controller_epoch=controller_epoch,
        lists=tuple(places),
        topics=topics,
        topic=topic,
        partition=partition,
        replicas=replicas,
        adding=adding,
        removing=removing,
    )


def _assignment(leadership: PartitionLeadership) -> tuple[tuple[int, ...], ...]:
    return leadership.replicas, leadership.adding, leadership.removing


def plan_elect_leaders(
    image: Image, leaders: Mapping[TopicPartition, int], *, controller_epoch: int
) -> ElectLeaders | None:
    """Make these the leaders (NO_NODE: none); None when they are already.

    Raises:
        FencedError: CONTROLLER_FENCED.
        UnknownTopicError: the topic is gone.
    """
    validate_controller(image, controller_epoch)
    found = {one: image.partition_of(*one).leadership for one in leaders}
    changed = [one for one, leader in leaders.items() if found[one].leader != leader]
    if not changed:
        return None
    topics, topic, partition = named(changed)
    return ElectLeaders(
        controller_epoch=controller_epoch,
        topics=topics,
        topic=topic,
        partition=partition,
        leader=column_of([leaders[one] for one in changed]),
        leader_epoch=column_of([found[one].leader_epoch + 1 for one in changed]),
    )


def in_sync(partition: PartitionLeadership, image: Image) -> tuple[int, ...]:
    """Return the in-sync replicas: those that are not fenced, the leader first."""
    found = [
        node_id
        for node_id in partition.replicas
        if node_id in image.brokers and not image.brokers[node_id].is_fenced
    ]
    return tuple(sorted(found, key=lambda node_id: node_id != partition.leader))


def partitions_led_by(image: Image, node_id: int) -> list[TopicPartition]:
    """Return all partitions that a broker leads."""
    return [
        (topic.topic_id, state.partition)
        for topic in image.topics.values()
        for state in topic.partitions
        if state.leadership.leader == node_id
    ]


# --- registry ----------------------------------------------------------------------------------------


MAX_BROKERS = 1_000
MAX_NODE_ID = (1 << 31) - 1
MAX_LISTENERS = 100
MAX_HOST_LENGTH = 255  # of a host name in DNS
MAX_RACK_LENGTH = 255


class JoinBroker(ActionBase, tag="join_broker", frozen=True, kw_only=True):
    """A broker joins those that serve the root."""

    node_id: Int64
    broker_epoch: Int64
    incarnation_id: str
    listeners: tuple[BrokerListener, ...] = ()
    rack: str = ""


class FenceBroker(ActionBase, tag="fence_broker", frozen=True, kw_only=True):
    """End a registration: by the controller, or by the node itself, which stops or restarts."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64 = NO_EPOCH


class BeginControlledShutdown(ActionBase, tag="begin_controlled_shutdown", frozen=True, kw_only=True):
    """The broker is about to stop; the controller moves its leaderships."""

    node_id: Int64
    broker_epoch: Int64


class UnregisterBroker(ActionBase, tag="unregister_broker", frozen=True, kw_only=True):
    """Forget a fenced broker that does not come back."""

    node_id: Int64
    broker_epoch: Int64
    controller_epoch: Int64


# --- rules -------------------------------------------------------------------------------------------


def why_illegal_listeners(listeners: Sequence[BrokerListener]) -> str | None:
    """Return why these listeners are out of bounds, or None."""
    if len(listeners) > MAX_LISTENERS:
        return f"{len(listeners)} listeners, expected at most {MAX_LISTENERS}"
    for listener in listeners:
        if not 1 <= len(listener.host) <= MAX_HOST_LENGTH:
            return f"a host name of {len(listener.host)} characters, expected 1 to {MAX_HOST_LENGTH}"
        if not 1 <= listener.port < 1 << 16:
            return f"port {listener.port}, expected 1 to {(1 << 16) - 1}"
    return None


def _why_illegal(action: JoinBroker) -> str | None:
    if not 0 <= action.node_id <= MAX_NODE_ID:
        return f"node id {action.node_id}, expected 0 to {MAX_NODE_ID}"
    if not is_id(action.incarnation_id):
        return f"incarnation id {action.incarnation_id!r} is malformed"
    if len(action.rack) > MAX_RACK_LENGTH:
        return f"a rack of {len(action.rack)} characters, expected at most {MAX_RACK_LENGTH}"
    return why_illegal_listeners(action.listeners)


# --- effects -----------------------------------------------------------------------------------------


def join_broker(draft: ImageDraft, action: JoinBroker) -> None:
    """Register alongside the other brokers."""
    refuse(_why_illegal(action), "broker")
    known = draft.brokers.get(action.node_id)
    if known is not None and not known.is_fenced:
        raise ActionRefusedError(
            f"node id {action.node_id} is registered with epoch {known.broker_epoch}, and not fenced"
        )
    if action.broker_epoch != draft.commit:
        raise ActionRefusedError(f"broker epoch {action.broker_epoch}, expected {draft.commit}, the commit's")
    if known is None and len(draft.brokers) >= MAX_BROKERS:
        raise ActionRefusedError(f"more than {MAX_BROKERS:,} brokers")
    joined = RegisteredBroker(
        node_id=action.node_id,
        broker_epoch=action.broker_epoch,
        incarnation_id=action.incarnation_id,
        listeners=action.listeners,
        rack=action.rack,
    )
    draft.brokers[joined.node_id] = joined


def fence_broker(draft: ImageDraft, action: FenceBroker) -> None:
    """Apply; the broker leads nothing, and is not controller."""
    broker = require_broker(draft, action.node_id, action.broker_epoch)
    if action.controller_epoch != NO_EPOCH:
        require_controller(draft, action.controller_epoch)
    draft.brokers[broker.node_id] = msgspec.structs.replace(
        broker, is_fenced=True, in_controlled_shutdown=False
    )
    if draft.controller.node_id == broker.node_id:
        draft.controller = Controller(controller_epoch=draft.controller.controller_epoch)
    for partition in draft.led_by(broker.node_id):
        before = partition.leadership
        partition.lead(_leaderless(before))


def begin_controlled_shutdown(draft: ImageDraft, action: BeginControlledShutdown) -> None:
    """Apply; the controller elects other leaders afterwards."""
    broker = require_broker(draft, action.node_id, action.broker_epoch)
    draft.brokers[broker.node_id] = msgspec.structs.replace(broker, in_controlled_shutdown=True)


def unregister_broker(draft: ImageDraft, action: UnregisterBroker) -> None:
    """Apply; its id may still be in lists of replicas."""
    require_controller(draft, action.controller_epoch)
    broker = draft.brokers.get(action.node_id)
    if broker is None or broker.broker_epoch != action.broker_epoch or not broker.is_fenced:
        raise ActionRefusedError(
            f"broker {action.node_id} of epoch {action.broker_epoch} is not registered and fenced: {broker}"
        )
    del draft.brokers[action.node_id]


def require_broker(draft: ImageDraft, node_id: int, broker_epoch: int) -> RegisteredBroker:
    """Return the registration; ActionRefusedError unless it exists and is not fenced."""
    broker = draft.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        raise ActionRefusedError(f"broker {node_id} of epoch {broker_epoch} is fenced: {broker}")
    return broker


def _leaderless(before: PartitionLeadership) -> PartitionLeadership:
    return PartitionLeadership(
        before.replicas, NO_NODE, before.leader_epoch + 1, before.adding, before.removing
    )


# --- plans -------------------------------------------------------------------------------------------


def plan_join_broker(
    image: Image,
    node_id: int,
    *,
    incarnation_id: str,
    listeners: Sequence[BrokerListener] = (),
    rack: str = "",
) -> JoinBroker:
    """Register a broker. `incarnation_id` from new_id().

    Raises:
        FencedError: DUPLICATE_BROKER, another broker that is not fenced has the node id.
        InvalidRequestError: INVALID_ACTIONS, a malformed argument.
    """
    known = image.brokers.get(node_id)
    if known is not None and not known.is_fenced:
        where = ", ".join(f"{listener.host}:{listener.port}" for listener in known.listeners)
        where = where or "no address"
        raise FencedError(
            "DUPLICATE_BROKER",
            f"cluster {image.cluster_id}: found broker {node_id} registered with epoch "
            f"{known.broker_epoch}, at {where}, expected no running broker of this node id",
            fix="choose another broker.id; or wait until that broker, if it is dead, is fenced",
        )
    action = JoinBroker(
        node_id=node_id,
        broker_epoch=image.commit + 1,
        incarnation_id=incarnation_id,
        listeners=tuple(listeners),
        rack=rack,
    )
    reason = _why_illegal(action)
    if reason is not None:
        raise invalid_plan(reason)
    return action


def plan_fence_broker(
    image: Image, node_id: int, broker_epoch: int, *, controller_epoch: int = NO_EPOCH
) -> FenceBroker | None:
    """End a registration; None when it has ended already."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        return None
    return FenceBroker(node_id=node_id, broker_epoch=broker_epoch, controller_epoch=controller_epoch)


def plan_unregister_broker(
    image: Image, node_id: int, broker_epoch: int, *, controller_epoch: int
) -> UnregisterBroker | None:
    """Forget a broker that is fenced; None when that is done already.

    Raises:
        FencedError: CONTROLLER_FENCED.
        InvalidRequestError: INVALID_ACTIONS, it is not fenced.
    """
    validate_controller(image, controller_epoch)
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        return None
    if not broker.is_fenced:
        raise invalid_plan(f"broker {node_id} is not fenced")
    return UnregisterBroker(node_id=node_id, broker_epoch=broker_epoch, controller_epoch=controller_epoch)


def plan_begin_controlled_shutdown(
    image: Image, node_id: int, broker_epoch: int
) -> BeginControlledShutdown | None:
    """Begin a controlled shutdown; None when it has begun. FencedError BROKER_FENCED if fenced already."""
    if validate_broker(image, node_id, broker_epoch).in_controlled_shutdown:
        return None
    return BeginControlledShutdown(node_id=node_id, broker_epoch=broker_epoch)


def validate_broker(image: Image, node_id: int, broker_epoch: int) -> RegisteredBroker:
    """Return the registration; FencedError BROKER_FENCED unless it exists and is not fenced."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.is_fenced:
        now = "not registered" if broker is None else f"of epoch {broker.broker_epoch}"
        if broker is not None and broker.is_fenced:
            now += ", and fenced"
        raise FencedError(
            "BROKER_FENCED",
            f"cluster {image.cluster_id}: found broker {node_id} {now}, expected epoch {broker_epoch}",
            fix="register again; nothing more of what this registration accepted is published",
        )
    return broker


# --- acting ------------------------------------------------------------------------------------------
#
# act_as_broker: the actions that follow it apply only while that broker may act.
#
# A broker accepts records for partitions that it leads, in the leader epochs of that moment, and publishes
# them later. By then it may have been fenced, or a leadership may have moved to another broker and back:
#
# 1. A leads partition 0 in epoch 4, accepts r, and stalls;
# 2. the controller makes B the leader, epoch 5; the client sends r to B, which appends it;
# 3. the controller makes A the leader again, epoch 6; A wakes up, and would append r a second time.
#
# So the commit carries the epoch of step 1, and does not apply in epoch 6. This is checked when the actions
# are applied, and not only when they are planned: a replay of the log finds out if a planner was wrong.
#
# Invariants: an extent in the scope of this action is in a partition that the broker leads, in the leader
#     epoch in which it was accepted; every action in it is of a registration that stands and is not fenced.
# Not here: writers that are no brokers, which need no registration.
# Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py.


A = TypeVar("A", bound=ActionBase)


class ActAsBroker(ActionBase, tag="act_as_broker", frozen=True, kw_only=True):
    """The next `actions` actions are a broker's.

    Fields:
        leader_epoch: for each extent that they append or stage, in order, the epoch in which it was accepted.
    """

    node_id: Int64
    broker_epoch: Int64
    actions: Int64 = 1
    leader_epoch: Column = ()


def act_as_broker(draft: ImageDraft, action: ActAsBroker) -> None:
    """Set the broker for the actions that follow."""
    if not 1 <= action.actions <= draft.actions_left:
        raise ActionRefusedError(f"{action.actions} actions of a broker, found {draft.actions_left}")
    if draft.acting is not None:
        raise ActionRefusedError("act_as_broker ranges overlap")
    require_broker(draft, action.node_id, action.broker_epoch)
    epochs = action.leader_epoch
    draft.acting = Acting(
        node_id=action.node_id,
        until=draft.actions_left - action.actions,
        epochs=iter(epochs) if isinstance(epochs, tuple) else repeat(epochs),
        is_counted=isinstance(epochs, tuple),
    )


def may_append(image: Image, node_id: int, topic_id: str, partition: int, leader_epoch: int) -> bool:
    """True if the broker leads the partition in the epoch in which it accepted records for it."""
    leadership = leadership_of(image, topic_id, partition)
    return leadership is not None and (leadership.leader, leadership.leader_epoch) == (node_id, leader_epoch)


def leadership_of(image: Image, topic_id: str, partition: int) -> PartitionLeadership | None:
    """Return the leadership of a partition; None if the partition does not exist."""
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
    """Return the actions as a broker's; nothing for no actions.

    Args:
        leader_epochs: for each extent that they append or stage. Extents that `may_append` refuses must be
            left out: one of them makes the whole commit invalid.

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
