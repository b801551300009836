"""`sparklog transactions`: transactional ids, what they have open, and how to end it.

Headings are those of kafka-transactions. All of it is in the root, so no broker is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, confirm, current, did_you_mean, yes_option
from sparklog.cli.output import Row, show, show_json, show_rows
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.metadata import Image, Transaction

COLUMNS = (
    "transactional_id:TransactionalId coordinator:Coordinator producer_id:ProducerId state:TransactionState"
)
DESCRIBED = (
    "coordinator:CoordinatorId transactional_id:TransactionalId producer_id:ProducerId "
    "producer_epoch:ProducerEpoch state:TransactionState timeout_ms:TransactionTimeoutMs "
    "started_ms:CurrentTransactionStartTimeMs duration_ms:TransactionDurationMs "
    "topic_partitions:TopicPartitions"
)
HANGING = (
    "topic:Topic partition:Partition producer_id:ProducerId producer_epoch:ProducerEpoch "
    "coordinator_epoch:CoordinatorEpoch start_offset:StartOffset last_timestamp_ms:LastTimestamp "
    "duration_minutes:Duration(min) transactional_id:TransactionalId"
)
_MINUTE_MS = 60_000


@click.group("transactions", cls=Group)
def transactions() -> None:
    """Transactional ids: list, describe, abort, forget, find-hanging."""


@transactions.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these: Ongoing, Empty, ...")
@click.option("--producer-id", "producer_ids", multiple=True, type=int, metavar="ID", help="Only these.")
@click.option(
    "--duration-filter",
    "running_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="Only what has been open for longer; negative: all.",
)
@click.option("--transactional-id-pattern", "pattern", metavar="RE2", help="Only ids that match, as a whole.")
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], running_ms: int, pattern: str | None
) -> None:
    """List transactional ids, and whether they have a transaction open."""
    from sparklog.client.cluster_view import KNOWN_STATES, STATE_NAMES, Wanted, chosen, coordinator_of

    wanted = Wanted(states=states, producer_ids=producer_ids, running_ms=running_ms, pattern=pattern)
    if wanted.unknown_states:
        known = ", ".join(sorted(KNOWN_STATES))
        raise click.UsageError(f"no state {wanted.unknown_states[0]!r}; there are {known}.")
    log = current().open_root()
    image = log.refresh(force=True)
    found: list[Row] = [
        {
            "transactional_id": one.transactional_id,
            "coordinator": _none_if_negative(coordinator_of(one.transactional_id, image)),
            "producer_id": one.producer_id,
            "state": STATE_NAMES[one.phase],
        }
        for one in chosen(image.transactions.values(), wanted, now_ms=log.clock.now_ms())
    ]
    show_rows(COLUMNS, found, empty="No transactional id is in use.")


@transactions.command("describe")
@click.option("--transactional-id", "transactional_id", required=True, metavar="ID")
def describe(transactional_id: str) -> None:
    """Show a transactional id: its producer, its state, and what is staged where."""
    log = current().open_root()
    image = log.refresh(force=True)
    row = _described(image, _require(image, transactional_id), log.clock.now_ms())
    if current().json:
        show_json(row)
    else:
        show_rows(DESCRIBED, [row])


@transactions.command("abort")
@click.option("--transactional-id", "transactional_id", metavar="ID", help="What this id has open.")
@click.option("--producer-id", "producer_id", type=int, metavar="ID", help="What this producer has open.")
@yes_option
def abort(transactional_id: str | None, producer_id: int | None, yes: bool) -> None:
    """Abort what is open, all of it, and fence the producer: it cannot commit the rest."""
    from sparklog.metadata import plan_abort_transactions

    if (transactional_id is None) == (producer_id is None):
        raise click.UsageError("give --transactional-id ID or --producer-id ID.")
    log = current().open_root()
    one = _require(log.refresh(force=True), transactional_id, producer_id)
    name = one.transactional_id
    if one.is_ongoing:
        confirm(f"Abort the transaction of {name!r}, and fence its producer?", yes=yes)
    now_ms = log.clock.now_ms()
    result = log.metadata.publish(
        # Not one that was begun since it was listed.
        lambda newest: (
            plan_abort_transactions(newest, [name], now_ms=now_ms) if _is_still(newest, one) else []
        )
    )
    aborted = bool(result.actions)
    done = f"The transaction of {name!r} is aborted, and its producer fenced."
    nothing = f"{name!r} has no transaction open: nothing to abort."
    show({"transactional_id": name, "aborted": aborted}, done if aborted else nothing)


@transactions.command("forget")
@click.option(
    "--transactional-id", "names", multiple=True, metavar="ID", help="This one; may be given more than once."
)
@click.option(
    "--unused-for",
    "unused_ms",
    type=click.IntRange(min=1),
    metavar="MS",
    help="All that were not used for so long, by the clock of this machine.",
)
@yes_option
def forget(names: tuple[str, ...], unused_ms: int | None, yes: bool) -> None:
    """Forget transactional ids that have nothing open: makes room for others where a root has too many.

    Brokers do so by themselves after transactional.id.expiration.ms. A producer whose id is forgotten has to
    be initialised again; nothing that was committed is lost.
    """
    from sparklog.metadata import ForgetTransactions, plan_forget_ids, plan_forget_transactions

    if bool(names) == (unused_ms is not None):
        raise click.UsageError("give --transactional-id ID or --unused-for MS.")
    log = current().open_root()
    image = log.refresh(force=True)
    for name in names:
        _require(image, name)
    which = ", ".join(map(repr, names)) if names else f"all ids that were not used for {unused_ms} ms"
    confirm(f"Forget {which}? Their producers have to be initialised again.", yes=yes)
    now_ms = log.clock.now_ms()

    def plan(newest: Image) -> list[ForgetTransactions]:
        if unused_ms is None:
            return [plan_forget_ids(newest, names)]
        found = plan_forget_transactions(newest, now_ms, unused_ms)
        return [] if found is None else [found]

    forgotten: list[str] = []
    while actions := log.metadata.publish(plan).actions:
        forgotten += [one for action in actions for one in getattr(action, "transactional_ids", ())]
        if names:
            break
    show({"transactional_ids": sorted(forgotten)}, f"{len(forgotten)} transactional ids are forgotten.")


@transactions.command("find-hanging")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Only what has been open for longer.",
)
@click.option("--topic", metavar="NAME", help="Only of this topic.")
def find_hanging(minutes: int, topic: str | None) -> None:
    """List what is open for too long, and so past the time-out that brokers should have acted on.

    It holds nobody up; what it has staged takes space.
    """
    log = current().open_root()
    image = log.refresh(force=True)
    now_ms = log.clock.now_ms()
    rows: list[Row] = [
        row
        for one in sorted(image.transactions.values(), key=lambda one: one.transactional_id)
        if one.is_timed_out(now_ms) and now_ms - one.started_ms > minutes * _MINUTE_MS
        for row in _hanging_rows(image, one, now_ms)
        if topic in (None, row["topic"])
    ]
    show_rows(HANGING, rows, empty="No transaction hangs.")


def _described(image: Image, one: Transaction, now_ms: int) -> Row:
    from sparklog.client.cluster_view import STATE_NAMES, coordinator_of, running_ms

    return {
        "coordinator": _none_if_negative(coordinator_of(one.transactional_id, image)),
        "transactional_id": one.transactional_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "state": STATE_NAMES[one.phase],
        "timeout_ms": one.timeout_ms,
        "started_ms": one.started_ms if one.is_ongoing else None,
        "duration_ms": running_ms(one, now_ms),
        "topic_partitions": [f"{name}-{partition}" for name, partition in _partitions(image, one)],
        "groups": list(one.groups),
        "staged_bytes": one.staged_bytes,
    }


def _hanging_rows(image: Image, one: Transaction, now_ms: int) -> list[Row]:
    """A row for each partition, or one without."""
    partitions: list[tuple[str | None, int | None]] = [*_partitions(image, one)]
    return [
        {
            "topic": name,
            "partition": partition,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "coordinator_epoch": None,
            "start_offset": None,
            "last_timestamp_ms": one.changed_ms,
            "duration_minutes": (now_ms - one.started_ms) // _MINUTE_MS,
            "transactional_id": one.transactional_id,
        }
        for name, partition in partitions or [(None, None)]
    ]


def _partitions(image: Image, one: Transaction) -> list[tuple[str, int]]:
    """By topic name; what was deleted meanwhile is left out."""
    topics = image.topic_by_id
    return [
        (topics[topic_id].name, partition) for topic_id, partition in one.partitions if topic_id in topics
    ]


def _is_still(image: Image, one: Transaction) -> bool:
    now = image.transactions.get(one.transactional_id)
    return now is not None and (now.producer_id, now.number) == (one.producer_id, one.number)


def _require(image: Image, transactional_id: str | None, producer_id: int | None = None) -> Transaction:
    """The transaction of an id, or of a producer; raise InvalidRequestError TRANSACTION_MISSING."""
    if transactional_id is not None:
        found = image.transactions.get(transactional_id)
        near = did_you_mean(transactional_id, sorted(image.transactions))
        problem = f"transactional id {transactional_id!r}: unknown{near}"
    else:
        found = image.transactions.of_producer(producer_id or 0)
        problem = f"producer id {producer_id}: not of a transactional producer"
    if found is None:
        raise InvalidRequestError(
            "TRANSACTION_MISSING", problem, fix="`sparklog transactions list` shows those that are known"
        )
    return found


def _none_if_negative(node_id: int) -> int | None:
    return None if node_id < 0 else node_id
