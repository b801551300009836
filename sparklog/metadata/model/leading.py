"""Who may lead partitions, and who does: assign_replicas, elect_leaders.

Data is on shared storage, so a leadership moves in one commit, whatever it leads; and thousands of them do,
in columns. What is in sync is no state: all replicas that are not fenced are.

Invariants: a leader is one of the partition's replicas, and not fenced; a leader epoch is one higher with
    each change of the leader, and never anything else; an assignment keeps the leader. Only the controller
    does either.
Not here: which broker is to lead (the controller knows), the end of a leadership by a fence
    (registry.py).
Sources: FORMAT.md#metadata-log; adr/0026; tests/models/cluster.py; Kafka's PartitionChangeRecord.
"""

from collections.abc import Mapping, Sequence

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.broker_values import NO_NODE, PartitionLeadership
from sparklog.metadata.model.columns import Column, column_of, expanded, named, partitions_of
from sparklog.metadata.model.controller import require_controller, validate_controller
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import Int64

MAX_REPLICAS = 100
MAX_NODE_ID = (1 << 31) - 1
NO_LIST = -1  # in the place of a list of brokers: nobody
TopicPartition = tuple[str, int]  # topic id, partition


class AssignReplicas(ActionBase, tag="assign_replicas", frozen=True, kw_only=True):
    """Partitions have these replicas from now on. In columns; the lists of brokers that occur stand once.

    Fields:
        lists: lists of node ids.
        topics, topic, partition: place in `topics`, and partition, of each.
        replicas, adding, removing: place in `lists`; of the latter two -1 means nobody.
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
    """Partitions have these leaders, or none (-1), from now on, each in the epoch after its last one."""

    controller_epoch: Int64
    topics: tuple[str, ...]
    topic: Column = 0
    partition: tuple[Int64, ...]
    leader: Column
    leader_epoch: Column


# --- effects -----------------------------------------------------------------------------------------


def assign_replicas(draft: ImageDraft, action: AssignReplicas) -> None:
    """The leaders, and their epochs, stay."""
    require_controller(draft, action.controller_epoch)
    lists = action.lists
    for one in lists:
        if not one or len(one) > MAX_REPLICAS or len(set(one)) != len(one):
            raise ActionRefusedError(f"a list of {len(one)} brokers: expected 1 to {MAX_REPLICAS}, each once")
        if min(one) < 0 or max(one) > MAX_NODE_ID:
            raise ActionRefusedError(f"brokers {one}, expected node ids from 0 to {MAX_NODE_ID}")
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
        raise ActionRefusedError(f"found a place outside {len(lists)} lists of brokers")
    return [() if place == NO_LIST else lists[place] for place in places]


def elect_leaders(draft: ImageDraft, action: ElectLeaders) -> None:
    """Whoever led them does so no more: in the new epochs it is another's turn."""
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
            raise ActionRefusedError(f"{where}: leader {leader} leads it already, or nobody does")
        if epoch != before.leader_epoch + 1:
            raise ActionRefusedError(f"{where}: leader epoch {epoch}, expected {before.leader_epoch + 1}")
        partition.lead(PartitionLeadership(before.replicas, leader, epoch, before.adding, before.removing))


# --- plans -------------------------------------------------------------------------------------------


def plan_assign_replicas(
    image: Image, assignments: Mapping[TopicPartition, PartitionLeadership], *, controller_epoch: int
) -> AssignReplicas | None:
    """Give partitions the replicas, adding and removing of these; None when they have them already.

    Raises:
        FencedError: CONTROLLER_FENCED.
        UnknownTopicError: the topic is gone.
        InvalidRequestError: INVALID_ACTIONS, nothing but the controller's own mistakes.
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


def _assignment(one: PartitionLeadership) -> tuple[tuple[int, ...], ...]:
    return one.replicas, one.adding, one.removing


def plan_elect_leaders(
    image: Image, leaders: Mapping[TopicPartition, int], *, controller_epoch: int
) -> ElectLeaders | None:
    """Make these the leaders (NO_NODE: nobody); None when they are.

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
    """What clients are told is in sync: the replicas that are not fenced, and who leads first of all."""
    found = [
        node_id
        for node_id in partition.replicas
        if node_id in image.brokers and not image.brokers[node_id].is_fenced
    ]
    return tuple(sorted(found, key=lambda node_id: node_id != partition.leader))


def partitions_led_by(image: Image, node_id: int) -> list[TopicPartition]:
    """All of a broker's."""
    return [
        (topic.topic_id, state.partition)
        for topic in image.topics.values()
        for state in topic.partitions
        if state.leadership.leader == node_id
    ]
