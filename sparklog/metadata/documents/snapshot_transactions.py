"""Transactions in the state of a snapshot; what they have staged is rows of its extents, behind all others.

Invariants: what comes out is what went in; what breaks a rule of transaction_values.py is refused
    (CorruptLogError).
Not here: the rest of the state (snapshot.py), the extents' file (snapshot_extents.py).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from sparklog.metadata.documents.document import corrupt
from sparklog.metadata.model.extent_list import ExtentColumns, ExtentList, lists_of, why_disordered
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.transaction_values import (
    LAST_PRODUCER_EPOCH,
    NO_ID,
    NO_PARTITIONS,
    NO_PRODUCER_EPOCH,
    PartitionSet,
    TopicPartition,
    Transaction,
    TransactionPhase,
    Transactions,
    transactions_of,
    why_illegal_transactional_id,
)

CODE = "CORRUPT_METADATA_SNAPSHOT"
_NUMBER: Final = np.dtype("<i4")
_SIGN: Final = 0x80  # of a number, in its last byte


class StoredTransaction(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields of a Transaction.

    Fields:
        partitions: topic id, and its partitions, as ascending little-endian int32 in Base64.
        staged: topic id, partition, and how many rows are its.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64
    timeout_ms: Int64
    changed_ms: Int64
    changed_commit: Int64 = -1
    previous_producer_id: Int64 = NO_ID
    previous_producer_epoch: Int64 = NO_PRODUCER_EPOCH
    number: Int64 = 0
    phase: TransactionPhase = TransactionPhase.EMPTY
    started_ms: Int64 = -1
    partitions: tuple[tuple[str, bytes], ...] = ()
    staged: tuple[tuple[str, Int64, Int64], ...] = ()
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
            changed_commit=one.changed_commit,
            previous_producer_id=one.previous_producer_id,
            previous_producer_epoch=one.previous_producer_epoch,
            number=one.number,
            phase=one.phase,
            started_ms=one.started_ms,
            partitions=tuple(
                (topic_id, np.frombuffer(numbers, np.int32).astype(_NUMBER).tobytes())
                for topic_id, numbers in one.partitions.by_topic.items()
            ),
            staged=tuple((*place, len(extents)) for place, extents in one.staged.items()),
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
    counts = [count for one in stored for _, _, count in one.staged]
    staged = sum(counts)
    if min(counts, default=1) < 1 or staged > len(rows):
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
    same = {topic_id: topic_id for topic_id in topics}  # each text is kept once
    row = 0
    for one in stored:
        part = rows
        if one.staged:
            part = rows.slice(row, row + sum(count for _, _, count in one.staged))
            row += len(part)
        reason = _why_illegal(one)
        try:
            partitions = _partitions(one, same)
            staged = _staged(one, part, partitions, topics, same)
        except ValueError as error:
            reason = reason or str(error)
        if reason is not None:
            raise corrupt(CODE, where, f"found transactional id {one.transactional_id!r}: {reason}")
        found.append(_transaction(one, partitions, staged, part.stored_bytes if staged else 0))
    transactions = transactions_of(found)
    if len(transactions) != len(stored) or len(transactions.by_producer) != len(stored):
        raise corrupt(CODE, where, "found a transactional id, or its producer id, twice")
    return transactions


def _partitions(one: StoredTransaction, same: dict[str, str]) -> PartitionSet:
    by_topic: dict[str, bytes] = {}
    for topic_id, stored in one.partitions:
        if not stored or len(stored) % _NUMBER.itemsize or topic_id in by_topic:
            raise ValueError(f"{len(stored)} bytes of partitions of topic {topic_id!r}, or a topic twice")
        by_topic[same.setdefault(topic_id, topic_id)] = _validated(topic_id, stored)
    return PartitionSet.of(by_topic) if by_topic else NO_PARTITIONS


def _validated(topic_id: str, stored: bytes) -> bytes:
    if len(stored) == _NUMBER.itemsize and sys.byteorder == "little" and stored[-1] < _SIGN:
        return stored  # of topics there may be hundreds of thousands
    numbers = np.frombuffer(stored, _NUMBER)
    if numbers[0] < 0 or bool(np.any(numbers[1:] <= numbers[:-1])):
        raise ValueError(f"partitions of topic {topic_id!r} that do not ascend from 0")
    return numbers.astype(np.int32).tobytes()


def _staged(
    one: StoredTransaction,
    rows: ExtentColumns,
    partitions: PartitionSet,
    topics: Mapping[str, int],
    same: Mapping[str, str],
) -> dict[TopicPartition, ExtentList]:
    if not one.staged:
        return {}
    for topic_id, partition, _ in one.staged:
        if (topic_id, partition) not in partitions or partition >= topics.get(topic_id, 0):
            raise ValueError(f"it cannot have staged anything in {topic_id}-{partition}")
    counts = [count for _, _, count in one.staged]
    if why_disordered(rows, counts) is not None or not _is_whole(one, rows, counts):
        raise ValueError("it cannot have staged these extents")
    parts = (((same[topic_id], partition), count) for topic_id, partition, count in one.staged)
    staged = dict(lists_of(rows, parts))
    if len(staged) != len(one.staged):
        raise ValueError("a partition is there twice")
    return staged


def _why_illegal(one: StoredTransaction) -> str | None:
    reason = why_illegal_transactional_id(one.transactional_id)
    if reason is not None:
        return reason
    if one.producer_id < 0 or not 0 <= one.producer_epoch <= LAST_PRODUCER_EPOCH or one.number < 0:
        return "a number is out of range"
    if one.phase is not TransactionPhase.ONGOING and (one.partitions or one.staged or one.groups):
        return "it has something, and is not open"
    return None


def _is_whole(one: StoredTransaction, rows: ExtentColumns, counts: Sequence[int]) -> bool:
    """Do they count from 0 in each partition, without gaps, and are they of its producer?"""
    begins = np.concatenate(([0], rows.end_offset[:-1]))
    begins[np.cumsum([0, *counts[:-1]])] = 0
    return (
        bool(np.all(rows.base_offset == begins))
        and bool(np.all(rows.column("offset_delta") == rows.base_offset))
        and bool(np.all(rows.column("producer_id") == one.producer_id))
        and bool(np.all(rows.column("producer_epoch") == one.producer_epoch))
    )


def _transaction(
    one: StoredTransaction,
    partitions: PartitionSet,
    staged: Mapping[TopicPartition, ExtentList],
    staged_bytes: int,
) -> Transaction:
    return Transaction(
        transactional_id=one.transactional_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        timeout_ms=one.timeout_ms,
        changed_ms=one.changed_ms,
        changed_commit=one.changed_commit,
        previous_producer_id=one.previous_producer_id,
        previous_producer_epoch=one.previous_producer_epoch,
        number=one.number,
        phase=one.phase,
        started_ms=one.started_ms,
        partitions=partitions,
        staged=staged,
        groups=one.groups,
        staged_extents=sum(count for _, _, count in one.staged),
        staged_bytes=staged_bytes,
    )
