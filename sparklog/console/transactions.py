"""Transactional ids: what they have open, since when, and what is staged.

Not here: ending a transaction (`sparklog transactions abort`).
"""

import dataclasses
from typing import Final

from sparklog.client.cluster_view import STATE_NAMES, coordinators, running_ms
from sparklog.console.views import (
    FILTER,
    PAGE,
    Console,
    MissingError,
    Paging,
    Parameter,
    Query,
    Subject,
    View,
    matches,
    paged,
)
from sparklog.metadata import NO_NODE, Image, Transaction

MAX_PLACES: Final = 500  # partitions of a transaction that are listed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRow:
    """A transactional id.

    Fields:
        state: Kafka's word.
        coordinator: the broker to which its clients are sent; null: none runs.
        running_ms: how long its transaction is open; null: none is.
        is_late: it is past its time-out.
        changed_ms: when it last changed.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int | None
    timeout_ms: int
    started_ms: int | None
    running_ms: int | None
    is_late: bool
    changed_ms: int
    staged_extents: int
    staged_bytes: int
    partitions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionList:
    """The ids that match, those with open transactions first, the oldest before all."""

    paging: Paging
    transactions: tuple[TransactionRow, ...]
    open: int
    late: int
    staged_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StagedRow:
    """What a transaction has staged in a partition."""

    topic: str
    partition: int
    extents: int
    records: int
    size_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPage:
    """A transactional id, the groups whose offsets it will commit, and what it has staged.

    `staged` has MAX_PLACES partitions at most.
    """

    transaction: TransactionRow
    groups: tuple[str, ...]
    staged: tuple[StagedRow, ...]


def transaction_list(console: Console, query: Query) -> TransactionList:
    """Ids that match."""
    image, now_ms = console.image, console.now_ms
    coordinator = coordinators(image)
    found = [one for name, one in image.transactions.items() if matches(name, query.filter)]
    found.sort(key=lambda one: (not one.is_ongoing, one.started_ms, one.transactional_id))
    paging, shown = paged(found, query)
    return TransactionList(
        paging=paging,
        transactions=tuple(_row(one, coordinator(one.transactional_id), now_ms) for one in shown),
        open=sum(one.is_ongoing for one in found),
        late=sum(one.is_timed_out(now_ms) for one in found),
        staged_bytes=sum(one.staged_bytes for one in found),
    )


def transaction_page(console: Console, query: Query) -> TransactionPage:
    """One id."""
    image, name = console.image, query.text("id")
    found = image.transactions.get(name)
    if found is None:
        raise MissingError(f"transactional id {name!r}: it is not in use")
    return TransactionPage(
        transaction=_row(found, coordinators(image)(name), console.now_ms),
        groups=found.groups,
        staged=_staged(image, found),
    )


def _row(one: Transaction, coordinator: int, now_ms: int) -> TransactionRow:
    return TransactionRow(
        transactional_id=one.transactional_id,
        state=STATE_NAMES[one.phase],
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        coordinator=None if coordinator == NO_NODE else coordinator,
        timeout_ms=one.timeout_ms,
        started_ms=one.started_ms if one.is_ongoing else None,
        running_ms=running_ms(one, now_ms),
        is_late=one.is_timed_out(now_ms),
        changed_ms=one.changed_ms,
        staged_extents=one.staged_extents,
        staged_bytes=one.staged_bytes,
        partitions=len(one.partitions),
    )


def _staged(image: Image, one: Transaction) -> tuple[StagedRow, ...]:
    rows = []
    for (topic_id, partition), extents in list(one.staged.items())[:MAX_PLACES]:
        records = extents.columns_between(0, len(extents)).column("record_count").sum()
        rows.append(
            StagedRow(
                topic=image.topic_by_id[topic_id].name if topic_id in image.topic_by_id else topic_id,
                partition=partition,
                extents=len(extents),
                records=int(records),
                size_bytes=extents.stored_bytes,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.topic, row.partition)))


SUBJECT = Subject(
    title="Transactions",
    views=(
        View(
            path="/transactions",
            template="transactions.html",
            data=transaction_list,
            doc="Transactional ids, and what they have open.",
            parameters=(FILTER, PAGE),
        ),
        View(
            path="/transaction",
            template="transaction.html",
            data=transaction_page,
            doc="A transactional id: its producer, and what it has staged where.",
            parameters=(Parameter("id", "The transactional id."),),
        ),
    ),
)
