"""What an image says of brokers, controller and leaders, as clients see them.

Invariants: pure; of what an image says, nothing is left out, and nothing is added that clients do not see.
Not here: whether a broker lives: an image says which are fenced, and nothing of processes.
Concurrency: pure functions of an immutable image.
Sources: kafka-topics --describe, kafka-cluster list-endpoints; sparklog_server/cluster/leadership.py.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sparklog.clock import Clock
from sparklog.metadata import (
    NO_EPOCH,
    NO_NODE,
    BrokerListener,
    Image,
    PartitionState,
    Transaction,
    TransactionPhase,
    in_sync,
)
from sparklog.metadata.documents.properties import HEARTBEATS
from sparklog.storage import Store

if TYPE_CHECKING:
    from sparklog.client.patterns import CpuBudget

# --- transaction view --------------------------------------------------------------------------------
#
# Transactions as Kafka's tools ask for them: their states in Kafka's words, which are meant, who
# coordinates.
#
# Of Kafka's states there are four: what a coordinator there has decided, and is still telling partitions
# (PrepareCommit, PrepareAbort), is one commit here, so that it cannot be seen; nor an id that is being
# forgotten (Dead), or a producer that is being fenced (PrepareEpochFence). A filter may name them, and finds
# none.
#
# All that is known of transactions is in the metadata log, so any broker can do the work for any id, and one
# that is asked although another one is named does it as well. Naming one spreads the work, and makes the
# operations of a producer meet in one broker, whose image has what it did a moment ago.
# Invariants: pure; as of one image. All brokers name the same coordinator then; with another set of brokers
#     ids move, which costs a look at the log.
# Not here: changing anything, bytes (sparklog_server/api), patterns (patterns.py).
# Concurrency: pure functions; long lists in a storage thread.
# Sources: Kafka TransactionState, TransactionStateManager (listTransactionStates, partitionFor); KIP-664,
#     KIP-994, KIP-1152.


STATE_NAMES: Final[Mapping[TransactionPhase, str]] = MappingProxyType(
    {
        TransactionPhase.EMPTY: "Empty",
        TransactionPhase.ONGOING: "Ongoing",
        TransactionPhase.COMMITTED: "CompleteCommit",
        TransactionPhase.ABORTED: "CompleteAbort",
    }
)
_NEVER_SEEN = frozenset({"PrepareCommit", "PrepareAbort", "Dead", "PrepareEpochFence"})
KNOWN_STATES: Final = frozenset(STATE_NAMES.values()) | _NEVER_SEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which transactions are meant; what is empty, None or negative does not choose.

    Fields:
        running_ms: those that have been open for longer.
        pattern: of transactional ids (patterns.py).
    """

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    running_ms: int = -1
    pattern: str | None = None

    @property
    def unknown_states(self) -> list[str]:
        """Names that are no states, in the order in which they were given."""
        return [state for state in dict.fromkeys(self.states) if state not in KNOWN_STATES]


def chosen(
    transactions: Iterable[Transaction], wanted: Wanted, *, now_ms: int, budget: "CpuBudget | None" = None
) -> list[Transaction]:
    """Those that are meant, in the order of their ids.

    Args:
        budget: what a pattern may take, if another one's.

    Raises:
        InvalidRequestError: INVALID_PATTERN.
    """
    states, producer_ids = frozenset(wanted.states), frozenset(wanted.producer_ids)
    found = [
        one
        for one in transactions
        if (not states or STATE_NAMES[one.phase] in states)
        and (not producer_ids or one.producer_id in producer_ids)
        and (wanted.running_ms < 0 or (running_ms(one, now_ms) or 0) > wanted.running_ms)
    ]
    if wanted.pattern:
        from sparklog.client.patterns import matching  # noqa: PLC0415 - Arrow's functions, 30 ms at start-up

        matches = matching(wanted.pattern, [one.transactional_id for one in found], budget=budget)
        found = [one for one, matched in zip(found, matches, strict=True) if matched]
    return sorted(found, key=lambda one: one.transactional_id)


def running_ms(one: Transaction, now_ms: int) -> int | None:
    """How long it has been open; None: it is not."""
    return max(0, now_ms - one.started_ms) if one.is_ongoing else None


# --- who coordinates ---------------------------------------------------------------------------------


def coordinator_of(transactional_id: str, image: Image) -> int:
    """The broker to which clients are sent; NO_NODE: none lives."""
    return coordinators(image)(transactional_id)


def coordinators(image: Image) -> Callable[[str], int]:
    """Return the function that finds it for each of many ids: which brokers there are is found once."""
    return functools.partial(_one_of, _nodes(image))


def coordinated(image: Image, node_id: int) -> Iterator[Transaction]:
    """Those for which clients are sent to this broker."""
    nodes = _nodes(image)
    for transactional_id, one in image.transactions.items():
        if _one_of(nodes, transactional_id) == node_id:
            yield one


def _nodes(image: Image) -> list[int]:
    """Those that live and stay."""
    return sorted(
        node_id
        for node_id, broker in image.brokers.items()
        if not broker.is_fenced and not broker.in_controlled_shutdown
    )


def _one_of(nodes: Sequence[int], transactional_id: str) -> int:
    return nodes[zlib.crc32(transactional_id.encode()) % len(nodes)] if nodes else NO_NODE


# --- heartbeats -----------------------------------------------------------------------------------
#
# When a broker was last seen alive: how old its heartbeat is, by the storage's clock.
#
# For people only: an age may be wrong by as much as two clocks differ. Decisions count
# looks, and go by no clock (sparklog_server/cluster/liveness.py).
#
# Not here: what is in such an object.
# Concurrency: any thread.
# Sources: FORMAT.md#metadata-log.


def last_seen_ms(store: Store, clock: Clock) -> dict[int, int]:
    """How long ago, by node id; without those that never gave one."""
    now_ms = store.storage_now_ms(clock.now_ms())
    found = {}
    for file in store.list(HEARTBEATS):
        name = file.name.removeprefix(f"{HEARTBEATS}/")
        if name.isascii() and name.isdigit():
            found[int(name)] = max(0, now_ms - file.modified_ms)
    return found


# --- placement ---------------------------------------------------------------------------------------
#
# Which brokers are a new partition's replicas: in turn, over racks, so that leaders and load are spread.
#
# Without racks, the first replicas of the partitions follow each other round the brokers, and the others of
# each partition follow its first one at a distance that grows with every round: so what one broker leads is
# spread over all others when it stops. With racks the brokers are put in an order in which racks take turns,
# and no two replicas of a partition are in one rack before every rack has one.
#
# Invariants: pure; each list has as many different brokers as were asked for. Each broker is the first of as
#     many partitions as any other, or of one more.
# Not here: whether lists that clients name are legal, and leaders (sparklog_server).
# Concurrency: pure functions.
# Sources: Kafka AdminUtils.assignReplicasToBrokers (KIP-36).


def spread_replicas(
    racks: Mapping[int, str], partitions: int, factor: int, *, start: int, first_partition: int = 0
) -> list[tuple[int, ...]]:
    """A list of brokers for each partition.

    Args:
        racks: of the brokers that may be chosen; "": it has none. Racks count only if each has one.
        partitions, first_partition: how many, and the number of the first: those before it are there already.
        factor: how many replicas each has: 1 to the number of brokers.
        start: any number, to begin with another broker each time.
    """
    assert 1 <= factor <= len(racks)
    has_racks = all(racks.values())
    count = len(set(racks.values())) if has_racks else 1
    order = alternating(racks) if has_racks else sorted(racks)
    return [
        _replicas(order, racks if has_racks else dict.fromkeys(racks, ""), count, number, factor, start)
        for number in range(first_partition, first_partition + partitions)
    ]


def alternating(racks: Mapping[int, str]) -> list[int]:
    """The brokers in an order in which racks take turns, as long as they have any."""
    by_rack: dict[str, list[int]] = {}
    for node_id in sorted(racks):
        by_rack.setdefault(racks[node_id], []).append(node_id)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, rows))
    return [row[turn] for turn in range(longest) for row in rows if turn < len(row)]


def _replicas(
    order: list[int], racks: Mapping[int, str], rack_count: int, partition: int, factor: int, start: int
) -> tuple[int, ...]:
    brokers = len(order)
    first = (start + partition) % brokers
    shift = (start + partition // brokers) * rack_count
    chosen = [order[first]]
    taken = {racks[chosen[0]]}
    step = 0
    while len(chosen) < factor:
        place = (first + 1 + (shift + step) % (brokers - 1)) % brokers
        step += 1
        node_id = order[place]
        if node_id not in chosen and (racks[node_id] not in taken or len(taken) == rack_count):
            chosen.append(node_id)
            taken.add(racks[node_id])
    return tuple(chosen)


# --- cluster view ------------------------------------------------------------------------------------


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
    """The leader of a partition, and the brokers that may lead it.

    Fields:
        leader: NO_NODE: there is none.
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
        """True if clients of brokers cannot use it, though there are brokers."""
        return self.leader == NO_NODE

    @property
    def is_not_preferred(self) -> bool:
        """True if another than the first of its replicas leads it."""
        return self.leader != NO_NODE and self.replicas[:1] != (self.leader,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """The controller of the brokers; `node_id` is NO_NODE when there is none."""

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
    """Its leader."""
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
