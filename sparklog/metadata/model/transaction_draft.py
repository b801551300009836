"""Transactions while actions are being applied: what images share is copied once, when it first changes.

Invariants: as of the values; a commit without transactions copies nothing of them, one that stages copies
what its own transactions have, and a small share of the dictionaries of ids (shared_map.py).
Not here: what an action does (transactions.py, staging.py, ending.py).
Concurrency: a draft belongs to one thread; the values it takes and gives are immutable.
"""

from collections.abc import Iterable
from dataclasses import replace

from sparklog.metadata.model.extent import Extent
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.shared_map import SharedMapDraft
from sparklog.metadata.model.transaction_values import (
    NO_PARTITIONS,
    NOBODY,
    TopicPartition,
    Transaction,
    Transactions,
)


class OpenTransaction:
    """One that is ongoing, and what is being staged in it: to be changed in place."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._partitions = transaction.partitions
        self._added: dict[str, set[int]] = {}
        self._staged = dict(transaction.staged)
        self.itself = frozenset({transaction.producer_id})
        self._pending: dict[TopicPartition, list[Extent]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._extents, self._bytes = transaction.staged_extents, transaction.staged_bytes

    @property
    def producer_id(self) -> int:
        """As of the transaction."""
        return self._transaction.producer_id

    @property
    def producer_epoch(self) -> int:
        """As of the transaction."""
        return self._transaction.producer_epoch

    def has(self, place: TopicPartition) -> bool:
        """Was the partition added?"""
        return place[1] in self._added.get(place[0], ()) or place in self._partitions

    def add(self, place: TopicPartition) -> None:
        """A partition, if it is not there."""
        if not self.has(place):
            self._added.setdefault(place[0], set()).add(place[1])

    def end_of(self, place: TopicPartition) -> int:
        """Where the next extent of a partition that was added begins."""
        end = self._ends.get(place)
        if end is not None:
            return end
        staged = self._staged.get(place)
        return 0 if staged is None else staged.end_offset

    def stage(self, extent: Extent) -> None:
        """One more, at the end of its partition."""
        place = extent.topic_id, extent.partition
        self._pending.setdefault(place, []).append(extent)
        self._ends[place] = extent.end_offset
        self._extents += 1
        self._bytes += extent.size

    def flushed(self) -> Transaction:
        """The transaction, with all that was added and staged; not to be changed after it."""
        for place, extents in self._pending.items():
            before = self._staged.get(place)
            self._staged[place] = (ExtentList(*place) if before is None else before).appended(extents)
        return replace(
            self._transaction,
            partitions=self._partitions.having(self._added),
            staged=self._staged,
            staged_extents=self._extents,
            staged_bytes=self._bytes,
        )


class TransactionsDraft:
    """Everything that an effect may change about transactions."""

    def __init__(self, before: Transactions) -> None:
        self._before = before
        self._by_id = SharedMapDraft(before.by_id)
        self._by_producer = SharedMapDraft(before.by_producer)
        self._deadlines = SharedMapDraft(before.deadlines)
        self._staging: dict[TopicPartition, frozenset[int]] | None = None
        # In the place of the transactions of these ids, until they are asked for as a whole.
        self._open: dict[str, OpenTransaction] = {}
        self.staged_extents, self.staged_bytes = before.staged_extents, before.staged_bytes
        self._weight = before.weight

    def get(self, transactional_id: str) -> Transaction | None:
        """As of what has been applied so far."""
        opened = self._open.pop(transactional_id, None)
        if opened is not None:
            self.put(opened.flushed())
        return self._by_id.get(transactional_id)

    def of_producer(self, producer_id: int) -> Transaction | None:
        """The same, by the producer id."""
        transactional_id = self._by_producer.get(producer_id)
        return None if transactional_id is None else self.get(transactional_id)

    def open_of_producer(self, producer_id: int) -> OpenTransaction | None:
        """What a producer may stage in; None if it is no transactional producer's, or none is ongoing."""
        transactional_id = self._by_producer.get(producer_id)
        if transactional_id is None:
            return None
        found = self._open.get(transactional_id)
        if found is None:
            transaction = self.get(transactional_id)
            if transaction is not None and transaction.is_ongoing:
                found = self._open[transactional_id] = OpenTransaction(transaction)
        return found

    def staging_in(self, topic_id: str, partition: int) -> frozenset[int]:
        """The producers whose open transactions have something staged in a partition."""
        staging = self._before.staging if self._staging is None else self._staging
        return staging.get((topic_id, partition), NOBODY)

    def refers_to(self, segment: str) -> bool:
        """Is an extent staged in this segment?"""
        return self.transactions().refers_to(segment)

    def put(self, transaction: Transaction) -> None:
        """In the place of what its id has."""
        name = transaction.transactional_id
        self._open.pop(name, None)
        before = self._by_id.get(name)
        if before is None or before.producer_id != transaction.producer_id:
            if before is not None:
                self._by_producer.remove(before.producer_id)
            self._by_producer[transaction.producer_id] = name
        self._by_id[name] = transaction
        self._weight += transaction.weight - (0 if before is None else before.weight)
        deadline_ms, before_ms = transaction.deadline_ms, self._deadlines.get(name)
        if deadline_ms is not None and deadline_ms != before_ms:
            self._deadlines[name] = deadline_ms
        elif deadline_ms is None and before_ms is not None:
            self._deadlines.remove(name)

    def remove(self, transaction: Transaction) -> None:
        """One that has nothing staged is forgotten."""
        self._by_id.remove(transaction.transactional_id)
        self._by_producer.remove(transaction.producer_id)

    def add_partitions(self, transaction: Transaction, added: Iterable[TopicPartition]) -> Transaction:
        """One that is ongoing, with these as well; to be put."""
        opened = OpenTransaction(transaction)
        for place in added:
            opened.add(place)
        return opened.flushed()

    def stage(self, opened: OpenTransaction, extent: Extent) -> None:
        """One more extent, whose offsets count from 0."""
        opened.stage(extent)
        self.staged_extents += 1
        self.staged_bytes += extent.size
        place = extent.topic_id, extent.partition
        if opened.producer_id not in self.staging_in(*place):
            staging = self._own_staging()
            others = staging.get(place)
            staging[place] = opened.itself if others is None else others | opened.itself

    def clear(self, transaction: Transaction) -> Transaction:
        """Without partitions, groups, and all that it has staged; to be put."""
        for place in transaction.staged:
            self._leave(place, transaction.producer_id)
        self.staged_extents -= transaction.staged_extents
        self.staged_bytes -= transaction.staged_bytes
        return replace(
            transaction, partitions=NO_PARTITIONS, staged={}, groups=(), staged_extents=0, staged_bytes=0
        )

    def staged_in_topic(self, topic_id: str) -> list[ExtentList]:
        """All that is staged in a topic."""
        return [
            extents
            for transaction in self.transactions().by_id.values()
            for (topic, _), extents in transaction.staged.items()
            if topic == topic_id
        ]

    def drop_topic(self, topic_id: str, partitions: int) -> None:
        """What is staged in a topic that is deleted."""
        if self._staging is None and not self._before.staging:
            return
        for place in ((topic_id, partition) for partition in range(partitions)):
            for producer_id in self.staging_in(*place):
                transaction = self.of_producer(producer_id)
                assert transaction is not None, "staging says the same as the transactions"
                left = dict(transaction.staged)
                dropped = left.pop(place).columns()
                sizes = dropped.stored_bytes
                self.put(
                    replace(
                        transaction,
                        partitions=transaction.partitions.without(*place),
                        staged=left,
                        staged_extents=transaction.staged_extents - len(dropped),
                        staged_bytes=transaction.staged_bytes - sizes,
                    )
                )
                self.staged_extents -= len(dropped)
                self.staged_bytes -= sizes
                self._leave(place, producer_id)

    def _own_staging(self) -> dict[TopicPartition, frozenset[int]]:
        if self._staging is None:
            self._staging = dict(self._before.staging)
        return self._staging

    def _leave(self, place: TopicPartition, producer_id: int) -> None:
        staging = self._own_staging()
        left = staging[place] - {producer_id}
        if left:
            staging[place] = left
        else:
            del staging[place]

    def transactions(self) -> Transactions:
        """The values after everything applied so far; not to be changed after the last call."""
        for transactional_id in list(self._open):
            self.get(transactional_id)
        by_id = self._by_id.done()
        if by_id is self._before.by_id:
            return self._before
        return Transactions(
            by_id=by_id,
            by_producer=self._by_producer.done(),
            deadlines=self._deadlines.done(),
            staging=self._before.staging if self._staging is None else self._staging,
            staged_extents=self.staged_extents,
            staged_bytes=self.staged_bytes,
            weight=self._weight,
        )
