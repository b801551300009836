"""Transactions while actions are being applied: what images share is copied once, when it first changes.

Invariants: as of the values; a commit without transactions copies nothing of them, one that stages copies the
dictionary of ids and what its own transactions have.
Not here: what an action does (transactions.py, staging.py, ending.py).
Concurrency: a draft belongs to one thread; the values it takes and gives are immutable.
"""

from collections.abc import Iterable
from dataclasses import replace

from sparklog.metadata.model.extent import Extent
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.transaction_values import TopicPartition, Transaction, Transactions


class TransactionsDraft:
    """Everything that an effect may change about transactions."""

    def __init__(self, before: Transactions) -> None:
        self._before = before
        self._by_id: dict[str, Transaction] | None = None
        self._by_producer: dict[int, str] | None = None
        self._staging: dict[TopicPartition, frozenset[int]] | None = None
        # Of those that are in it their partitions are ours, to be changed in place.
        self._partitions: dict[str, dict[TopicPartition, ExtentList]] = {}
        self.staged_extents, self.staged_bytes = before.staged_extents, before.staged_bytes

    def __len__(self) -> int:
        return len(self._before.by_id if self._by_id is None else self._by_id)

    def get(self, transactional_id: str) -> Transaction | None:
        """As of what has been applied so far."""
        return (self._before.by_id if self._by_id is None else self._by_id).get(transactional_id)

    def of_producer(self, producer_id: int) -> Transaction | None:
        """The same, by the producer id."""
        by_producer = self._before.by_producer if self._by_producer is None else self._by_producer
        transactional_id = by_producer.get(producer_id)
        return None if transactional_id is None else self.get(transactional_id)

    def staging_in(self, topic_id: str, partition: int) -> frozenset[int]:
        """The producers whose open transactions have something staged in a partition."""
        staging = self._before.staging if self._staging is None else self._staging
        return staging.get((topic_id, partition), frozenset())

    def refers_to(self, segment: str) -> bool:
        """Is an extent staged in this segment?"""
        return self.transactions().refers_to(segment)

    def put(self, transaction: Transaction) -> None:
        """In the place of what its id has; the partitions of one that goes on are its own."""
        if self._by_id is None:
            self._by_id = dict(self._before.by_id)
        before = self._by_id.get(transaction.transactional_id)
        if before is None or before.producer_id != transaction.producer_id:
            if self._by_producer is None:
                self._by_producer = dict(self._before.by_producer)
            if before is not None:
                del self._by_producer[before.producer_id]
            self._by_producer[transaction.producer_id] = transaction.transactional_id
        self._by_id[transaction.transactional_id] = transaction

    def remove(self, transaction: Transaction) -> None:
        """One that has nothing staged is forgotten."""
        if self._by_id is None:
            self._by_id = dict(self._before.by_id)
        if self._by_producer is None:
            self._by_producer = dict(self._before.by_producer)
        del self._by_id[transaction.transactional_id], self._by_producer[transaction.producer_id]
        self._partitions.pop(transaction.transactional_id, None)

    def add_partitions(self, transaction: Transaction, added: Iterable[TopicPartition]) -> Transaction:
        """With these as well."""
        partitions = self._own(transaction)
        for place in added:
            if place not in partitions:
                partitions[place] = ExtentList(*place)
        transaction = replace(transaction, partitions=partitions)
        self.put(transaction)
        return transaction

    def stage(self, transaction: Transaction, extent: Extent) -> None:
        """One more extent, whose offsets count from 0."""
        partitions = self._own(transaction)
        place = extent.topic_id, extent.partition
        partitions[place] = partitions[place].appended([extent])
        self.put(
            replace(
                transaction,
                partitions=partitions,
                staged_extents=transaction.staged_extents + 1,
                staged_bytes=transaction.staged_bytes + extent.size,
            )
        )
        self.staged_extents += 1
        self.staged_bytes += extent.size
        if transaction.producer_id not in self.staging_in(*place):
            staging = self._own_staging()
            staging[place] = staging.get(place, frozenset()) | {transaction.producer_id}

    def clear(self, transaction: Transaction) -> Transaction:
        """Without partitions, groups, and all that it has staged; to be put."""
        self._partitions.pop(transaction.transactional_id, None)
        for place, extents in transaction.partitions.items():
            if len(extents):
                self._leave(place, transaction.producer_id)
        self.staged_extents -= transaction.staged_extents
        self.staged_bytes -= transaction.staged_bytes
        return replace(transaction, partitions={}, groups=(), staged_extents=0, staged_bytes=0)

    def drop_topic(self, topic_id: str, partitions: int) -> None:
        """What is staged in a topic that is deleted."""
        if self._staging is None and not self._before.staging:
            return
        for place in ((topic_id, partition) for partition in range(partitions)):
            for producer_id in self.staging_in(*place):
                transaction = self.of_producer(producer_id)
                assert transaction is not None, "staging says the same as the transactions"
                own = self._own(transaction)
                dropped = own.pop(place).columns()
                sizes = int(dropped.column("size").sum())
                self.put(
                    replace(
                        transaction,
                        partitions=own,
                        staged_extents=transaction.staged_extents - len(dropped),
                        staged_bytes=transaction.staged_bytes - sizes,
                    )
                )
                self.staged_extents -= len(dropped)
                self.staged_bytes -= sizes
                self._leave(place, producer_id)

    def _own(self, transaction: Transaction) -> dict[TopicPartition, ExtentList]:
        own = self._partitions.get(transaction.transactional_id)
        if own is None:
            own = self._partitions[transaction.transactional_id] = dict(transaction.partitions)
        return own

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
        if self._by_id is None:
            return self._before
        return Transactions(
            by_id=self._by_id,
            by_producer=self._before.by_producer if self._by_producer is None else self._by_producer,
            staging=self._before.staging if self._staging is None else self._staging,
            staged_extents=self.staged_extents,
            staged_bytes=self.staged_bytes,
        )
