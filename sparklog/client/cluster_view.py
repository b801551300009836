"""What an image says of brokers, controller and leaders, as clients are told of them.

A root is served by nobody, by one broker alone, or by several together. Who asks for a table wants one answer
for all three: a broker that is alone leads everything, in epoch 0, and is controller.

Invariants: pure; of what an image says, nothing is left out, and nothing is added that clients are not told.
Not here: whether a broker lives: an image knows who is fenced, and nothing of processes.
Concurrency: pure functions of an immutable image.
Sources: kafka-topics --describe, kafka-cluster list-endpoints; sparklog_server/cluster/leadership.py.
"""

import dataclasses
from collections.abc import Iterator

from sparklog.metadata import (
    NO_EPOCH,
    NO_NODE,
    BrokerListener,
    Image,
    PartitionLeadership,
    PartitionState,
    in_sync,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker that is registered.

    Fields:
        metadata_version: the newest of metadata documents that it reads; None: it is alone.
        is_controller: a broker that is alone is.
        leads: how many partitions.
    """

    node_id: int
    broker_epoch: int
    incarnation_id: str
    listeners: tuple[BrokerListener, ...]
    rack: str
    metadata_version: int | None
    is_fenced: bool
    in_controlled_shutdown: bool
    is_controller: bool
    leads: int

    @property
    def state(self) -> str:
        """In a word; of one that is alone it is not known whether it runs."""
        if self.metadata_version is None:
            return "alone"
        if self.is_fenced:
            return "fenced"
        return "stopping" if self.in_controlled_shutdown else "running"

    @property
    def address(self) -> str | None:
        """host:port of its first listener, if it has one."""
        if not self.listeners:
            return None
        first = self.listeners[0]
        return f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Who leads a partition, and who may.

    Fields:
        leader: NO_NODE: nobody.
        isr: those of the replicas that could lead it now.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        """Is one of its replicas not there? As Kafka has it, those that a reassignment adds do not count."""
        return len([one for one in self.isr if one not in self.adding]) < len(self.replicas) - len(
            self.adding
        )

    @property
    def is_unavailable(self) -> bool:
        """Can clients of brokers do nothing with it, though there are brokers?"""
        return self.leader == NO_NODE

    @property
    def is_not_preferred(self) -> bool:
        """Does another than the first of its replicas lead it?"""
        return self.leader != NO_NODE and self.replicas[:1] != (self.leader,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """Who controls the brokers; `node_id` is NO_NODE when nobody does."""

    node_id: int
    broker_epoch: int
    controller_epoch: int


def is_served(image: Image) -> bool:
    """Is a broker registered, or was one ever of several?"""
    return image.broker is not None or bool(image.brokers) or image.controller.controller_epoch > 0


def describe_brokers(image: Image) -> list[BrokerView]:
    """All that are registered, by node id."""
    if image.broker is not None:
        alone = image.broker
        return [
            BrokerView(
                node_id=alone.node_id,
                broker_epoch=alone.broker_epoch,
                incarnation_id=alone.incarnation_id,
                listeners=alone.listeners,
                rack="",
                metadata_version=None,
                is_fenced=False,
                in_controlled_shutdown=False,
                is_controller=True,
                leads=image.partition_count,
            )
        ]
    leads = dict.fromkeys(image.brokers, 0)
    for topic in image.topics.values():
        for state in topic.partitions:
            if state.leadership.leader in leads:
                leads[state.leadership.leader] += 1
    return [
        BrokerView(
            node_id=node_id,
            broker_epoch=one.broker_epoch,
            incarnation_id=one.incarnation_id,
            listeners=one.listeners,
            rack=one.rack,
            metadata_version=one.metadata_version,
            is_fenced=one.is_fenced,
            in_controlled_shutdown=one.in_controlled_shutdown,
            is_controller=image.controller.node_id == node_id,
            leads=leads[node_id],
        )
        for node_id, one in sorted(image.brokers.items())
    ]


def describe_controller(image: Image) -> ControllerView:
    """Who it is."""
    if image.broker is not None:
        return ControllerView(
            node_id=image.broker.node_id, broker_epoch=image.broker.broker_epoch, controller_epoch=0
        )
    now = image.controller
    return ControllerView(
        node_id=now.node_id,
        broker_epoch=now.broker_epoch if now.node_id != NO_NODE else NO_EPOCH,
        controller_epoch=now.controller_epoch,
    )


def leadership_of_partition(image: Image, state: PartitionState) -> PartitionLeadership:
    """As clients are told: a broker that is alone leads everything, and is its only replica."""
    if image.broker is not None:
        return PartitionLeadership((image.broker.node_id,), image.broker.node_id, 0)
    return state.leadership


def in_sync_replicas(image: Image, leadership: PartitionLeadership) -> tuple[int, ...]:
    """Those that could lead it now, who does so first."""
    return leadership.replicas if image.broker is not None else in_sync(leadership, image)


def describe_partition(image: Image, topic: str, state: PartitionState) -> PartitionView:
    """Who leads it."""
    found = leadership_of_partition(image, state)
    return PartitionView(
        topic=topic,
        partition=state.partition,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        replicas=found.replicas,
        isr=in_sync_replicas(image, found),
        adding=found.adding,
        removing=found.removing,
    )


def describe_partitions(image: Image) -> Iterator[PartitionView]:
    """All there are, by topic and number."""
    for name in sorted(image.topics):
        for state in image.topics[name].partitions:
            yield describe_partition(image, name, state)
