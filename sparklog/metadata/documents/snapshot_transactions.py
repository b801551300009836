"""Transactions in the state of a snapshot; what they have staged is rows of its extents, behind all others.

Invariants: what comes out is what went in; what breaks a rule of transaction_values.py is refused
    (CorruptLogError).
Not here: the rest of the state (snapshot.py), the extents' file (snapshot_extents.py).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sparklog.metadata.documents.document import corrupt
from sparklog.metadata.model.extent_list import ExtentColumns, ExtentList
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.transaction_values import (
    LAST_PRODUCER_EPOCH,
    NO_ID,
    NO_PRODUCER_EPOCH,
    TopicPartition,
    Transaction,
    TransactionPhase,
    Transactions,
    transactions_of,
    why_illegal_transactional_id,
)

CODE = "CORRUPT_METADATA_SNAPSHOT"


class StoredTransaction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields of a Transaction; of each partition its topic id, number, and how many rows are its."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    timeout_ms: Int64
    changed_ms: Int64
    previous_producer_id: Int64 = NO_ID
    previous_producer_epoch: Int64 = NO_PRODUCER_EPOCH
    number: Int64 = 0
    phase: TransactionPhase = TransactionPhase.EMPTY
    started_ms: Int64 = -1
    partitions: tuple[tuple[str, Int64, Int64], ...] = ()
    groups: tuple[str, ...] = ()


def stored_transactions(transactions: Transactions) -> tuple[StoredTransaction, ...]:
    """All of them."""
    return tuple(
        StoredTransaction(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            timeout_ms=one.timeout_ms,
            changed_ms=one.changed_ms,
            previous_producer_id=one.previous_producer_id,
            previous_producer_epoch=one.previous_producer_epoch,
            number=one.number,
            phase=one.phase,
            started_ms=one.started_ms,
            partitions=tuple((*place, len(extents)) for place, extents in one.partitions.items()),
            groups=one.groups,
        )
        for one in transactions.values()
    )


def staged_blocks(transactions: Transactions) -> list[ExtentColumns]:
    """Their rows, in the order of `stored_transactions`."""
    return [extents.columns() for extents in transactions.staged_lists()]


def split_rows(
    rows: ExtentColumns, stored: Sequence[StoredTransaction], where: str
) -> tuple[ExtentColumns, ExtentColumns]:
    """The rows of partitions, and those that are staged."""
    counts = [count for one in stored for _, _, count in one.partitions]
    staged = sum(counts)
    if min(counts, default=0) < 0 or staged > len(rows):
        raise corrupt(CODE, where, f"found {len(rows)} extents, expected {staged} staged ones among them")
    return rows.slice(0, len(rows) - staged), rows.slice(len(rows) - staged, len(rows))


def transactions_from(
    stored: Sequence[StoredTransaction], rows: ExtentColumns, topics: Mapping[str, int], where: str
) -> Transactions:
    """The transactions.

    Args:
        rows: what is staged, as many as the transactions say.
        topics: topic id -> number of partitions.
    """
    found = []
    row = 0
    for one in stored:
        partitions: dict[TopicPartition, ExtentList] = {}
        for topic_id, partition, count in one.partitions:
            part = rows.slice(row, row + count)
            row += count
            if count and not (0 <= partition < topics.get(topic_id, 0) and _is_whole(one, part)):
                raise corrupt(
                    CODE, where, f"{one.transactional_id!r} cannot have staged this in {topic_id}-{partition}"
                )
            partitions[topic_id, partition] = ExtentList(topic_id, partition, (part,) if count else ())
        if _why_illegal(one) is not None or len(partitions) != len(one.partitions):
            raise corrupt(CODE, where, f"found {one}: {_why_illegal(one)}")
        found.append(_transaction(one, partitions))
    transactions = transactions_of(found)
    if len(transactions) != len(stored) or len(transactions.by_producer) != len(stored):
        raise corrupt(CODE, where, "found a transactional id, or its producer id, twice")
    return transactions


def _why_illegal(one: StoredTransaction) -> str | None:
    reason = why_illegal_transactional_id(one.transactional_id)
    if reason is not None:
        return reason
    if one.producer_id < 0 or not 0 <= one.producer_epoch <= LAST_PRODUCER_EPOCH or one.number < 0:
        return "a number is out of range"
    if one.phase is not TransactionPhase.ONGOING and (one.partitions or one.groups):
        return "it has something, and is not open"
    return None


def _is_whole(one: StoredTransaction, part: ExtentColumns) -> bool:
    """Do they count from 0, without gaps, and are they of its producer?"""
    return (
        int(part.base_offset[0]) == 0
        and bool(np.all(part.base_offset[1:] == part.end_offset[:-1]))
        and bool(np.all(part.end_offset > part.base_offset))
        and bool(np.all(part.column("offset_delta") == part.base_offset))
        and bool(np.all(part.column("producer_id") == one.producer_id))
        and bool(np.all(part.column("producer_epoch") == one.producer_epoch))
    )


def _transaction(one: StoredTransaction, partitions: dict[TopicPartition, ExtentList]) -> Transaction:
    return Transaction(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        timeout_ms=one.timeout_ms,
        changed_ms=one.changed_ms,
        previous_producer_id=one.previous_producer_id,
        previous_producer_epoch=one.previous_producer_epoch,
        number=one.number,
        phase=one.phase,
        started_ms=one.started_ms,
        partitions=partitions,
        groups=one.groups,
        staged_extents=sum(map(len, partitions.values())),
        staged_bytes=sum(extents.columns().stored_bytes for extents in partitions.values()),
    )
