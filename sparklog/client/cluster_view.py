"""What an image says of brokers, controller and leaders, as clients are told of them.

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
    PartitionState,
    in_sync,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker that is registered.

    Fields:
        leads: how many partitions.
    """

    node_id: int
    broker_epoch: int
    incarnation_id: str
    listeners: tuple[BrokerListener, ...]
    rack: str
    is_fenced: bool
    in_controlled_shutdown: bool
    is_controller: bool
    leads: int

    @property
    def state(self) -> str:
        """In a word."""
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
    """True if a broker is registered, or was one ever."""
    return bool(image.brokers) or image.controller.controller_epoch > 0


def describe_brokers(image: Image) -> list[BrokerView]:
    """All that are registered, by node id."""
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
            is_fenced=one.is_fenced,
            in_controlled_shutdown=one.in_controlled_shutdown,
            is_controller=image.controller.node_id == node_id,
            leads=leads[node_id],
        )
        for node_id, one in sorted(image.brokers.items())
    ]


def describe_controller(image: Image) -> ControllerView:
    """Who it is."""
    now = image.controller
    return ControllerView(
        node_id=now.node_id,
        broker_epoch=now.broker_epoch if now.node_id != NO_NODE else NO_EPOCH,
        controller_epoch=now.controller_epoch,
    )


def describe_partition(image: Image, topic: str, state: PartitionState) -> PartitionView:
    """Who leads it."""
    found = state.leadership
    return PartitionView(
        topic=topic,
        partition=state.partition,
        leader=found.leader,
        leader_epoch=found.leader_epoch,
        replicas=found.replicas,
        isr=in_sync(found, image),
        adding=found.adding,
        removing=found.removing,
    )


def describe_partitions(image: Image) -> Iterator[PartitionView]:
    """All there are, by topic and number."""
    for name in sorted(image.topics):
        for state in image.topics[name].partitions:
            yield describe_partition(image, name, state)
