"""Transactions in an image: one per transactional id, with its staged extents.

Invariants: a producer id belongs to one transactional id at most. Only an ONGOING transaction has partitions,
groups and staged extents. In a partition a transaction's staged extents count from 0 and have no gaps;
`staging`, `deadlines` and the totals are derived from the transactions, for fast lookups.
Bounds: every process that uses the root holds all of it in memory, and reads it when it opens the root. So
what clients can add is bounded by its weight: the bytes that it takes there.
Not here: how they change (transactions.py, staging.py), changing them (draft.py).
Concurrency: immutable.
Sources: FORMAT.md#metadata-log; adr/0028, adr/0030; Kafka TransactionMetadata.
"""

import enum
import zlib
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Generic, TypeVar, overload

import numpy as np

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, why_not_utf8
from sparklog.metadata.model.extent_list import ExtentList

# --- shared map --------------------------------------------------------------------------------------
#
# A map for large, rarely changing parts of images: a change copies the list of buckets and one bucket, not
# all entries.
# Invariants: a key's bucket depends on the key alone. The order of iteration depends on the keys and, within
#     a bucket, on the order of insertion: the same in all processes. A map is never changed.
# Not here: its content.
# Concurrency: a map is immutable; a draft belongs to one thread.


K = TypeVar("K", bound=str | int)
V = TypeVar("V")
D = TypeVar("D")
BUCKETS: Final = 256  # of 256 entries each if there are 65,536
_MASK: Final = BUCKETS - 1


def _bucket_of(key: str | int) -> int:
    """Return a key's bucket; not by `hash`, which differs between processes."""
    number = key if isinstance(key, int) else zlib.crc32(key.encode("utf-8", "surrogatepass"))
    return number & _MASK


class SharedMap(Mapping[K, V]):
    """A persistent dictionary: a changed copy shares the unchanged buckets."""

    __slots__ = ("_buckets", "_length")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        nothing: dict[K, V] = {}
        self._buckets: list[dict[K, V]] = [nothing] * BUCKETS
        for key, value in items:
            number = _bucket_of(key)
            if self._buckets[number] is nothing:
                self._buckets[number] = {}
            self._buckets[number][key] = value
        self._length = sum(map(len, self._buckets))

    @classmethod
    def _of(cls, buckets: list[dict[K, V]], length: int) -> "SharedMap[K, V]":
        found: SharedMap[K, V] = cls.__new__(cls)
        found._buckets, found._length = buckets, length
        return found

    def __getitem__(self, key: K) -> V:
        return self._buckets[_bucket_of(key)][key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        """As of a dictionary."""
        return self._buckets[_bucket_of(key)].get(key, default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int) and key in self._buckets[_bucket_of(key)]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._length

    def values(self) -> ValuesView[V]:
        """As fast as a dictionary's."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """As fast as a dictionary's."""
        return _Items(self)


class _Values(ValuesView[V]):
    _mapping: SharedMap[str | int, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping._buckets)


class _Items(ItemsView[K, V], Generic[K, V]):
    _mapping: SharedMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping._buckets)


class SharedMapDraft(Generic[K, V]):
    """A mutable map; unusable after `done`."""

    __slots__ = ("_before", "_buckets", "_length", "_own")

    def __init__(self, before: SharedMap[K, V]) -> None:
        self._before = before
        self._buckets = before._buckets
        self._length = len(before)
        self._own: set[int] = set()

    def get(self, key: K) -> V | None:
        """Return the value as changed so far."""
        return self._buckets[_bucket_of(key)].get(key)

    def __setitem__(self, key: K, value: V) -> None:
        bucket = self._own_bucket(key)
        self._length += key not in bucket
        bucket[key] = value

    def remove(self, key: K) -> None:
        """Raises KeyError if it is missing."""
        del self._own_bucket(key)[key]
        self._length -= 1

    def done(self) -> SharedMap[K, V]:
        """Return the map; the original if nothing was changed."""
        return SharedMap._of(self._buckets, self._length) if self._own else self._before

    def _own_bucket(self, key: K) -> dict[K, V]:
        number = _bucket_of(key)
        if number not in self._own:
            if not self._own:
                self._buckets = list(self._buckets)
            self._own.add(number)
            self._buckets[number] = dict(self._buckets[number])
        return self._buckets[number]


# --- transaction values ------------------------------------------------------------------------------


NO_NUMBER = -1
NOTHING_OPEN = 0  # instead of a transaction's number: they count from 1
NO_ID = -1  # no producer id
NO_PRODUCER_EPOCH = -1
# The last epoch of a producer id, as in Kafka, whose own markers need the one above.
LAST_PRODUCER_EPOCH = 32_766
MAX_TRANSACTIONAL_ID_LENGTH = 1_024
# Limits of plans: all of it is in the memory of every process that uses the root.
MAX_TRANSACTIONAL_IDS = 65_536
MAX_TRANSACTION_PARTITIONS = 16_384
MAX_TRANSACTION_GROUPS = 1_000
MAX_TRANSACTION_GROUP_CHARACTERS = 1 << 16
MAX_STAGED_EXTENTS = 1 << 17  # of one transaction
MAX_STAGED_BYTES = 1 << 38
MAX_ROOT_STAGED_BYTES = 1 << 42
MAX_ROOT_WEIGHT = 64 << 20  # of all open transactions, as counted by `Transaction.weight`
PARTITION_WEIGHT = 4  # per added partition
TOPIC_WEIGHT = 256  # per topic with partitions, and per group in addition to its name
STAGED_PARTITION_WEIGHT = 600  # per partition with staged extents
STAGED_EXTENT_WEIGHT = 96
# The most that one staged batch adds.
MOST_STAGED_WEIGHT = PARTITION_WEIGHT + TOPIC_WEIGHT + STAGED_PARTITION_WEIGHT + STAGED_EXTENT_WEIGHT
# Producers with staged extents in one partition; these are not evicted there (sequences.py).
MAX_STAGING_PRODUCERS = 1_024

TopicPartition = tuple[str, int]  # topic id, partition
NOBODY: frozenset[int] = frozenset()


class TransactionPhase(enum.StrEnum):
    """The phase of a transaction.

    EMPTY: the producer was initialised, and has begun nothing since.
    ONGOING: something was added to it, or staged.
    COMMITTED, ABORTED: the end of the last one; Kafka's CompleteCommit and CompleteAbort.
    """

    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTED = "committed"
    ABORTED = "aborted"


def weight_of_groups(groups: Iterable[str]) -> int:
    """Return the weight of groups, as counted by `Transaction.weight`."""
    return sum(TOPIC_WEIGHT + len(group.encode()) for group in groups)


class PartitionSet(AbstractSet[TopicPartition]):
    """Partitions of topics, in few bytes each: an open transaction may have thousands, and a root millions.

    Iterated in the order in which topics were added, and by partition number. Immutable.
    """

    __slots__ = ("_length", "by_topic")

    def __init__(self, places: Iterable[TopicPartition] = ()) -> None:
        self.by_topic: Mapping[str, bytes] = {}  # ascending numbers, of four bytes each
        self._length = 0
        numbers: dict[str, set[int]] = {}
        for topic_id, partition in places:
            numbers.setdefault(topic_id, set()).add(partition)
        self._take({topic_id: _packed(found) for topic_id, found in numbers.items()})

    @classmethod
    def of(cls, by_topic: Mapping[str, bytes]) -> "PartitionSet":
        """Return a set of `by_topic`, in which no entry is empty."""
        found = cls()
        found._take(by_topic)
        return found

    def _take(self, by_topic: Mapping[str, bytes]) -> None:
        self.by_topic = by_topic
        self._length = sum(map(len, by_topic.values())) // PARTITION_WEIGHT

    def __contains__(self, place: object) -> bool:
        if not isinstance(place, tuple) or (found := self.by_topic.get(place[0])) is None:
            return False
        numbers = memoryview(found).cast("i")
        index = bisect_left(numbers, place[1])
        return index < len(numbers) and numbers[index] == place[1]

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic_id, numbers in self.by_topic.items():
            for partition in memoryview(numbers).cast("i"):
                yield topic_id, partition

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSet) and self.by_topic == other.by_topic

    def __hash__(self) -> int:
        return hash(self._length)

    def __repr__(self) -> str:
        return f"PartitionSet({list(self)!r})"

    @property
    def weight(self) -> int:
        """As counted by `Transaction.weight`."""
        return PARTITION_WEIGHT * self._length + TOPIC_WEIGHT * len(self.by_topic)

    def having(self, added: Mapping[str, AbstractSet[int]]) -> "PartitionSet":
        """Return a set with these partitions added, by topic."""
        if not added:
            return self
        by_topic = dict(self.by_topic)
        for topic_id, numbers in added.items():
            before = memoryview(by_topic.get(topic_id, b"")).cast("i")
            by_topic[topic_id] = _packed({*before, *numbers})
        return PartitionSet.of(by_topic)

    def without(self, topic_id: str, partition: int) -> "PartitionSet":
        """Return a set without a partition that it has."""
        by_topic = dict(self.by_topic)
        left = set(memoryview(by_topic.pop(topic_id)).cast("i")) - {partition}
        if left:
            by_topic[topic_id] = _packed(left)
        return PartitionSet.of(by_topic)


def _packed(numbers: AbstractSet[int]) -> bytes:
    return np.array(sorted(numbers), np.int32).tobytes()


NO_PARTITIONS = PartitionSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The present or last transaction of a transactional id.

    Fields:
        producer_id, producer_epoch: the only producer that may add to it, stage and end it.
        previous_producer_id, previous_producer_epoch: the one before, if the same process knows its
            successor: by an end that raised the epoch, or an initialisation that named it. Then that request
            can be repeated. -1: there is none.
        number: how many transactions were opened under this id, which is the number of the last one.
        timeout_ms: of an ONGOING one, from `started_ms` on, by the clock of the process that opened it.
        changed_ms: the time of the last change of phase, or initialisation.
        changed_commit: the commit of that change: a lower one means a longer disuse, whatever the clocks.
        partitions: the added ones.
        staged: staged extents by partition, in the order of the first of each; none is empty.
        groups: those whose offsets it may commit.
        staged_extents, staged_bytes: over all partitions.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    changed_ms: int
    changed_commit: int = -1
    previous_producer_id: int = NO_ID
    previous_producer_epoch: int = NO_PRODUCER_EPOCH
    number: int = 0
    phase: TransactionPhase = TransactionPhase.EMPTY
    started_ms: int = -1
    partitions: PartitionSet = NO_PARTITIONS
    staged: Mapping[TopicPartition, ExtentList] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    staged_extents: int = 0
    staged_bytes: int = 0

    @property
    def is_ongoing(self) -> bool:
        """True if it can be ended."""
        return self.phase is TransactionPhase.ONGOING

    @property
    def deadline_ms(self) -> int | None:
        """When it times out; None if nothing is open."""
        return self.started_ms + self.timeout_ms if self.is_ongoing else None

    @property
    def weight(self) -> int:
        """About its bytes in the memory of each process that uses the root; 0 if it is not open."""
        staged = STAGED_PARTITION_WEIGHT * len(self.staged) + STAGED_EXTENT_WEIGHT * self.staged_extents
        return self.partitions.weight + weight_of_groups(self.groups) + staged

    def is_timed_out(self, now_ms: int) -> bool:
        """True if it has exceeded its timeout."""
        return self.is_ongoing and now_ms - self.started_ms >= self.timeout_ms

    def is_of(self, producer_id: int, producer_epoch: int) -> bool:
        """True if this is the producer that may change it."""
        return (self.producer_id, self.producer_epoch) == (producer_id, producer_epoch)

    def staged_in(self, topic_id: str, partition: int) -> ExtentList:
        """Return its staged extents in a partition, counting from 0; empty if there are none."""
        found = self.staged.get((topic_id, partition))
        return ExtentList(topic_id, partition) if found is None else found


@dataclass(frozen=True, slots=True, eq=False)
class Transactions(Mapping[str, Transaction]):
    """All transactions of a root, by transactional id.

    Fields:
        by_producer: producer id -> transactional id.
        deadlines: transactional id -> deadline_ms, of the open ones.
        staging: producers with staged extents, by partition; partitions without any are left out.
        staged_extents, staged_bytes, weight: totals.
    """

    by_id: SharedMap[str, Transaction] = field(default_factory=SharedMap)
    by_producer: SharedMap[int, str] = field(default_factory=SharedMap)
    deadlines: SharedMap[str, int] = field(default_factory=SharedMap)
    staging: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    staged_extents: int = 0
    staged_bytes: int = 0
    weight: int = 0

    def __getitem__(self, transactional_id: str) -> Transaction:
        return self.by_id[transactional_id]

    def __contains__(self, transactional_id: object) -> bool:
        return transactional_id in self.by_id

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_id)

    def __len__(self) -> int:
        return len(self.by_id)

    def values(self) -> ValuesView[Transaction]:
        """As fast as a dictionary's."""
        return self.by_id.values()

    def items(self) -> ItemsView[str, Transaction]:
        """As fast as a dictionary's."""
        return self.by_id.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transactions) and self.by_id == other.by_id

    def __hash__(self) -> int:
        return hash(len(self.by_id))

    def of_producer(self, producer_id: int) -> Transaction | None:
        """Return the transaction of a producer id; None if it does not (or no longer) belong to one."""
        transactional_id = self.by_producer.get(producer_id)
        return None if transactional_id is None else self.by_id[transactional_id]

    def open_number(self, producer_id: int, producer_epoch: int) -> int:
        """Return the number of the transaction that this producer has open; NOTHING_OPEN if it has none."""
        found = self.of_producer(producer_id)
        if found is None or not found.is_ongoing or not found.is_of(producer_id, producer_epoch):
            return NOTHING_OPEN
        return found.number

    def staging_in(self, topic_id: str, partition: int) -> frozenset[int]:
        """Return the producers whose open transactions have staged extents in a partition."""
        return self.staging.get((topic_id, partition), NOBODY)

    def is_staged_in(self, topic_id: str, partition: int) -> bool:
        """True if the end of any transaction could append to this partition."""
        return (topic_id, partition) in self.staging

    def staged_lists(self) -> Iterator[ExtentList]:
        """Yield all staged extents, in the order of transactions and of their partitions; none is empty."""
        if not self.staging:
            return
        for transaction in self.by_id.values():
            yield from transaction.staged.values()

    def refers_to(self, segment: str) -> bool:
        """True if a staged extent is in this segment. Cost: a scan."""
        return any(extents.refers_to(segment) for extents in self.staged_lists())


NO_TRANSACTIONS = Transactions()


def transactions_of(found: Iterable[Transaction]) -> Transactions:
    """Return the transactions, with everything derived from them."""
    by_id = SharedMap((transaction.transactional_id, transaction) for transaction in found)
    staging: dict[TopicPartition, frozenset[int]] = {}
    for transaction in by_id.values():
        itself = frozenset({transaction.producer_id})
        for place in transaction.staged:
            others = staging.get(place)
            staging[place] = itself if others is None else others | itself
    return Transactions(
        by_id=by_id,
        by_producer=SharedMap(
            (transaction.producer_id, transaction.transactional_id) for transaction in by_id.values()
        ),
        deadlines=SharedMap(
            (name, transaction.deadline_ms)
            for name, transaction in by_id.items()
            if transaction.deadline_ms is not None
        ),
        staging=staging,
        staged_extents=sum(transaction.staged_extents for transaction in by_id.values()),
        staged_bytes=sum(transaction.staged_bytes for transaction in by_id.values()),
        weight=sum(transaction.weight for transaction in by_id.values()),
    )


def why_illegal_transactional_id(transactional_id: str) -> str | None:
    """Return why the length, in characters, or the text is illegal, or None."""
    if 1 <= len(transactional_id) <= MAX_TRANSACTIONAL_ID_LENGTH:
        wrong = why_not_utf8(transactional_id)
        return None if wrong is None else f"transactional id {wrong}"
    return (
        f"a transactional id of {len(transactional_id)} characters, expected 1 to "
        f"{MAX_TRANSACTIONAL_ID_LENGTH}"
    )


def why_no_new_transactional_id(transactional_id: str) -> str | None:
    """As above, with a limit in UTF-8 bytes, since every process holds the id in memory.

    Only for new ids: existing ones stay usable.
    """
    size = len(transactional_id.encode())
    if size <= MAX_TRANSACTIONAL_ID_LENGTH:
        return None
    return f"a new transactional id of {size} bytes in UTF-8, expected at most {MAX_TRANSACTIONAL_ID_LENGTH}"


# --- transaction refusals ----------------------------------------------------------------------------
#
# Errors of plans of transactions; transactions.py has their meaning for Kafka's clients.
#
# Not here: errors of applying actions (the actions' modules).
# Concurrency: pure functions.


def unmapped(transactional_id: str, producer_id: int, known: Transaction | None) -> InvalidRequestError:
    """The error for a producer id that does not belong to the transactional id."""
    expected = "which is unknown" if known is None else f"whose producer id is {known.producer_id}"
    name = transactional_id[:MAX_TRANSACTIONAL_ID_LENGTH]  # an unknown one may be of any length
    return InvalidRequestError(
        "PRODUCER_UNMAPPED",
        f"transactional id {name!r}: found producer id {producer_id}, {expected}",
        fix="Initialise the producer again; a transactional id that is not used for "
        "transactional.id.expiration.ms is forgotten",
    )


def fenced(known: Transaction, producer_id: int, producer_epoch: int) -> FencedError:
    """The error for a producer that no longer owns the transactional id."""
    return FencedError(
        "PRODUCER_FENCED",
        f"transactional id {known.transactional_id!r}: found producer {producer_id} in epoch "
        f"{producer_epoch}, expected {known.producer_id} in epoch {known.producer_epoch}",
        fix="Close this producer: another with its transactional id was initialised, or its transaction took "
        "longer than its timeout and was aborted",
    )


def wrong_state(known: Transaction, found: str, fix: str) -> InvalidRequestError:
    """The error for an operation that the phase of a transaction does not allow."""
    return InvalidRequestError(
        "TRANSACTION_STATE",
        f"transactional id {known.transactional_id!r}, transaction {known.number} ({known.phase}): {found}",
        fix=fix,
    )


def too_large(known: Transaction, found: str) -> InvalidRequestError:
    """The error for a transaction without room."""
    return InvalidRequestError(
        "TRANSACTION_TOO_LARGE",
        f"transactional id {known.transactional_id!r}, transaction {known.number}: found {found} are allowed",
        fix="Abort it, and commit more often",
    )


def full(found: str) -> RetriableError:
    """The error for a root without room."""
    return RetriableError(
        "TRANSACTIONS_FULL",
        f"root: found {found} are allowed",
        fix="End open transactions (`sparklog transactions list`), or wait until unused ids are "
        "forgotten (transactional.id.expiration.ms); then try again",
    )
