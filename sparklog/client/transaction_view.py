"""Transactions as Kafka's tools ask for them: their states in Kafka's words, which are meant, who
coordinates.

Of Kafka's states there are four: what a coordinator there has decided, and is still telling partitions
(PrepareCommit, PrepareAbort), is one commit here, so that nobody can see it; nor an id that is being
forgotten (Dead), or a producer that is being fenced (PrepareEpochFence). A filter may name them, and finds
none.

All that is known of transactions is in the metadata log, so any broker can do the work for any id, and one
that is asked although another one is named does it as well. Naming one spreads the work, and makes the
operations of a producer meet in one broker, whose image has what it did a moment ago.
Invariants: pure; as of one image. All brokers name the same coordinator then; with another set of brokers ids
    move, which costs a look at the log.
Not here: changing anything, bytes (sparklog_server/api), patterns (patterns.py).
Concurrency: pure functions; long lists in a storage thread.
Sources: Kafka TransactionState, TransactionStateManager (listTransactionStates, partitionFor); KIP-664,
    KIP-994, KIP-1152.
"""

import functools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sparklog.client.patterns import CpuBudget, matching
from sparklog.metadata import NO_NODE, Image, Transaction, TransactionPhase

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
    transactions: Iterable[Transaction], wanted: Wanted, *, now_ms: int, budget: CpuBudget | None = None
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
    """What tells that of each of many ids: which brokers there are is found once."""
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
