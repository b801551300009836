"""Several brokers that act by old images, in any order: leaders, controllers and epochs stay apart.

Each believer computes its actions from an image of any age, and they are tried against the newest one as
they are: as a planner would that is wrong about everything. An auditor, who knows nothing of plans and
effects but what images say before and after, holds the invariant: at most one broker leads a partition in an
epoch, at most one is controller in an epoch, epochs only grow, and who is fenced, or acts on an older one,
changes nothing.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import FencedError, SparklogError
from sparklog.metadata import (
    NO_NODE,
    ActAsBroker,
    Action,
    AppendExtents,
    Controller,
    DraftExtent,
    ElectController,
    Image,
    PartitionLeadership,
    SetConfigs,
    apply_actions,
    may_append,
    new_id,
    plan_append,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
    plan_unregister_broker,
)
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.cluster_roots import TOPIC, cluster

NODES, PARTITIONS = (1, 2, 3), 3
# Fences are rare, or nothing would be led for long.
OPERATIONS = (
    *["look"] * 5, *["accept"] * 6, *["publish"] * 3, *["publish stale"] * 3, *["join"] * 3, *["elect"] * 6,
    "elect controller", "elect nobody", "assign", "fence", "fence own", "shut down", "unregister",
    "change topic",
)  # fmt: skip
Step = tuple[str, int, int, int]  # what, who, and two numbers to choose by


class Accepted(NamedTuple):
    """What a broker has accepted, and in which leader epoch."""

    topic_id: str
    partition: int
    leader_epoch: int


@dataclass
class Believer:
    """A broker with what it has seen last, and what it holds for true."""

    node: int
    image: Image
    broker_epoch: int
    control: int = 0
    parts: list[Accepted] = field(default_factory=list)


@dataclass
class Auditor:
    """What has happened so far."""

    image: Image
    leaders: dict[tuple[int, int], int] = field(default_factory=dict)  # partition, epoch: registration
    controllers: dict[int, int] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=lambda: [0] * PARTITIONS)  # of the newest records
    refused: int = 0

    def apply(self, actions: list[Action], *, by: Believer, accepted: list[Accepted] | None = None) -> bool:
        """Try them as the next commit; was it one?"""
        before = self.image
        try:
            after = apply_actions(before, actions, commit=before.commit + 1, commit_uuid=new_id())
        except ActionRefusedError:
            self.refused += 1
            return False
        self._check_controller(before, after, actions)
        self._check_leaders(before, after)
        if any(isinstance(action, ActAsBroker) for action in actions):
            registration = before.brokers[by.node]
            assert registration.broker_epoch == by.broker_epoch
            assert not registration.is_fenced
        for part in accepted or ():
            now = before.topic("orders").partitions[part.partition].leadership
            assert (now.leader, now.leader_epoch) == (by.node, part.leader_epoch)
            assert self.leaders[part.partition, part.leader_epoch] == by.broker_epoch
            assert part.leader_epoch >= self.epochs[part.partition]
            self.epochs[part.partition] = part.leader_epoch
        self.image = after
        return True

    def _check_controller(self, before: Image, after: Image, actions: list[Action]) -> None:
        old, new = before.controller, after.controller
        assert new.controller_epoch - old.controller_epoch == sum(
            isinstance(action, ElectController) for action in actions
        )
        if new.node_id != NO_NODE:
            holder = after.brokers[new.node_id]
            assert not holder.is_fenced
            assert holder.broker_epoch == new.broker_epoch
            assert self.controllers.setdefault(new.controller_epoch, new.broker_epoch) == new.broker_epoch
        for action in actions:
            named = getattr(action, "controller_epoch", -1)
            if named != -1 and not isinstance(action, ElectController):
                assert named == old.controller_epoch
                assert old.node_id != NO_NODE

    def _check_leaders(self, before: Image, after: Image) -> None:
        pairs = zip(before.topic("orders").partitions, after.topic("orders").partitions, strict=True)
        for number, (was, now) in enumerate(pairs):
            old, new = was.leadership, now.leadership
            assert new.leader_epoch - old.leader_epoch == int(old.leader != new.leader)
            if new.leader == NO_NODE:
                continue
            broker = after.brokers[new.leader]
            assert not broker.is_fenced
            assert new.leader in new.replicas
            known = self.leaders.setdefault((number, new.leader_epoch), broker.broker_epoch)
            assert known == broker.broker_epoch


def drafts(parts: list[Accepted]) -> list[DraftExtent]:
    return [
        DraftExtent(
            topic_id=TOPIC,
            partition=part.partition,
            segment="segments/w/0.log",
            position=0,
            size=100,
            record_count=1,
            max_timestamp_ms=1,
        )
        for part in parts
    ]


def take(auditor: Auditor, me: Believer, what: str, one: int, two: int) -> None:
    """One step of a believer, by what it has seen."""
    seen, partition, other = me.image, one % PARTITIONS, NODES[two % len(NODES)]
    match what:
        case "look":
            me.image = auditor.image
        case "accept":
            now = seen.topic("orders").partitions[partition].leadership
            if now.leader == me.node:
                part = Accepted(TOPIC, partition, now.leader_epoch)
                me.parts.append(part)
        case "publish":  # as it should: what is lost goes out, by the newest image
            kept = [part for part in me.parts if may_append(auditor.image, me.node, *part)]
            me.parts = []
            if kept:  # whoever leads is registered: nothing is left that could be refused
                registered = auditor.image.brokers[me.node].broker_epoch == me.broker_epoch
                done = auditor.apply(acting(auditor.image, me, kept), by=me, accepted=kept)
                assert done is registered
        case "publish stale":
            if me.parts:
                auditor.apply(acting(auditor.image, me, me.parts), by=me, accepted=me.parts)
        case "change topic":
            acts = ActAsBroker(node_id=me.node, broker_epoch=me.broker_epoch)
            auditor.apply([acts, SetConfigs(configs={"a": str(one)})], by=me)
        case "join":
            join(auditor, me)
        case "elect controller":
            action = plan_elect_controller(seen, me.node, me.broker_epoch)
            if auditor.apply([action], by=me):
                me.control, me.image = action.controller_epoch, auditor.image
        case _:
            planned = planned_by_controller(seen, me, what, partition, other)
            if planned is not None:
                auditor.apply([planned], by=me)


def acting(image: Image, me: Believer, parts: list[Accepted]) -> list[Action]:
    extents: AppendExtents = plan_append(image, drafts(parts))
    epochs = tuple(part.leader_epoch for part in parts)
    return [ActAsBroker(node_id=me.node, broker_epoch=me.broker_epoch, leader_epoch=epochs), extents]


def join(auditor: Auditor, me: Believer) -> None:
    image = auditor.image
    try:
        action = plan_join_broker(image, me.node, incarnation_id=new_id())
    except FencedError:
        return
    assert auditor.apply([action], by=me)
    me.broker_epoch, me.control, me.image = action.broker_epoch, 0, auditor.image


def planned_by_controller(image: Image, me: Believer, what: str, partition: int, other: int) -> Action | None:
    """By an image of any age, in which it takes itself for the controller that it was elected as."""
    key, epoch = (TOPIC, partition), me.control
    found = image.brokers.get(other)
    broker_epoch = -1 if found is None else found.broker_epoch
    try:
        match what:
            case "elect":
                return plan_elect_leaders(image, {key: other}, controller_epoch=epoch)
            case "elect nobody":
                return plan_elect_leaders(image, {key: NO_NODE}, controller_epoch=epoch)
            case "assign":
                replicas = tuple(node for node in NODES if node != other) if other != me.node else NODES
                return plan_assign_replicas(
                    image, {key: PartitionLeadership(replicas)}, controller_epoch=epoch
                )
            case "fence":
                return plan_fence_broker(image, other, broker_epoch, controller_epoch=epoch)
            case "fence own":
                return plan_fence_broker(image, me.node, me.broker_epoch)
            case "shut down":
                return plan_begin_controlled_shutdown(image, me.node, me.broker_epoch)
            case "unregister":
                return plan_unregister_broker(image, other, broker_epoch, controller_epoch=epoch)
    except SparklogError:
        return None
    raise AssertionError(what)


steps = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)),
    max_size=120,
)


@settings(max_examples=300)
@given(steps)
def test_believers_of_any_age(schedule: list[Step]) -> None:
    image = cluster(NODES, PARTITIONS)
    believers = [Believer(node, image, image.brokers[node].broker_epoch) for node in NODES]
    believers[0].control = 1
    auditor = Auditor(image)
    assert auditor.image.controller == Controller(1, believers[0].broker_epoch, 1)
    auditor.controllers[1] = believers[0].broker_epoch
    for what, who, one, two in schedule:
        take(auditor, believers[who], what, one, two)
