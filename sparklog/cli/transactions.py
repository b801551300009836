"""`sparklog transactions`: which transactional ids there are, what they have open, and an end to it.

Headings are those of kafka-transactions. All of it is in the root, so no broker is needed, and none is asked.
Not here: who may do what in a transaction (sparklog/metadata/model), aborting what has taken too long, which
brokers do by themselves.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import LazyGroup, common_options, current, did_you_mean, is_terminal
from sparklog.cli.output import Column, Row, show_json, show_rows, tell
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparklog.metadata import Image, Transaction

COLUMNS = (
    Column("transactional_id", "TransactionalId"),
    Column("coordinator", "Coordinator", number=True),
    Column("producer_id", "ProducerId", number=True),
    Column("state", "TransactionState"),
)
DESCRIBED = (
    Column("coordinator", "CoordinatorId", number=True),
    Column("transactional_id", "TransactionalId"),
    Column("producer_id", "ProducerId", number=True),
    Column("producer_epoch", "ProducerEpoch", number=True),
    Column("state", "TransactionState"),
    Column("timeout_ms", "TransactionTimeoutMs", number=True),
    Column("started_ms", "CurrentTransactionStartTimeMs", number=True, optional=True),
    Column("duration_ms", "TransactionDurationMs", number=True, optional=True),
    Column("topic_partitions", "TopicPartitions"),
)
HANGING = (
    Column("topic", "Topic"),
    Column("partition", "Partition", number=True),
    Column("producer_id", "ProducerId", number=True),
    Column("producer_epoch", "ProducerEpoch", number=True),
    Column("coordinator_epoch", "CoordinatorEpoch", number=True, optional=True),
    Column("start_offset", "StartOffset", number=True, optional=True),
    Column("last_timestamp_ms", "LastTimestamp", number=True),
    Column("duration_minutes", "Duration(min)", number=True),
    Column("transactional_id", "TransactionalId"),
)
_MINUTE_MS = 60_000


@click.group("transactions", cls=LazyGroup)
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
@common_options
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], running_ms: int, pattern: str | None
) -> None:
    """List transactional ids, and whether they have a transaction open."""
    from sparklog.client.cluster_view import KNOWN_STATES, STATE_NAMES, Wanted, chosen, coordinator_of

    wanted = Wanted(states=states, producer_ids=producer_ids, running_ms=running_ms, pattern=pattern)
    if wanted.unknown_states:
        known = ", ".join(sorted(KNOWN_STATES))
        raise click.UsageError(f"no state {wanted.unknown_states[0]!r}; there are {known}.")
    log = current().open_log()
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
    if found or current().json:
        show_rows(COLUMNS, found)
    else:
        tell("No transactional id is in use.")


@transactions.command("describe")
@click.option("--transactional-id", "transactional_id", required=True, metavar="ID")
@common_options
def describe(transactional_id: str) -> None:
    """Show a transactional id: its producer, its state, and what is staged where."""
    log = current().open_log()
    image = log.refresh(force=True)
    row = _described(image, _require(image, transactional_id), log.clock.now_ms())
    if current().json:
        show_json(row)
    else:
        show_rows(DESCRIBED, [row])


@transactions.command("abort")
@click.option("--transactional-id", "transactional_id", metavar="ID", help="What this id has open.")
@click.option("--producer-id", "producer_id", type=int, metavar="ID", help="What this producer has open.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@common_options
def abort(transactional_id: str | None, producer_id: int | None, yes: bool) -> None:
    """Abort what is open, all of it, and fence the producer: it cannot commit the rest."""
    from sparklog.metadata import plan_abort_transactions

    if (transactional_id is None) == (producer_id is None):
        raise click.UsageError("give --transactional-id ID or --producer-id ID.")
    log = current().open_log()
    image = log.refresh(force=True)
    if producer_id is None:
        assert transactional_id is not None
        one = _require(image, transactional_id)
    else:
        one = _require_producer(image, producer_id)
    name = one.transactional_id
    if not yes and one.is_ongoing and is_terminal(sys.stdin):
        click.confirm(f"Abort the transaction of {name!r}, and fence its producer?", abort=True, err=True)
    now_ms = log.clock.now_ms()
    result = log.metadata.publish(
        # Not one that was begun since it was looked at.
        lambda newest: (
            plan_abort_transactions(newest, [name], now_ms=now_ms) if _is_still(newest, one) else []
        )
    )
    if current().json:
        show_json({"transactional_id": name, "aborted": bool(result.actions)})
    elif result.actions:
        tell(f"The transaction of {name!r} is aborted, and its producer fenced.")
    else:
        tell(f"{name!r} has no transaction open: nothing to abort.")


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
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@common_options
def forget(names: tuple[str, ...], unused_ms: int | None, yes: bool) -> None:
    """Forget transactional ids that have nothing open: makes room for others where a root has too many.

    Brokers do so by themselves after transactional.id.expiration.ms. A producer whose id is forgotten has to
    be initialised again; nothing that was committed is lost.
    """
    from sparklog.metadata import ForgetTransactions, plan_forget_ids, plan_forget_transactions

    if bool(names) == (unused_ms is not None):
        raise click.UsageError("give --transactional-id ID or --unused-for MS.")
    log = current().open_log()
    image = log.refresh(force=True)
    for name in names:
        _require(image, name)
    if not yes and is_terminal(sys.stdin):
        which = ", ".join(map(repr, names)) if names else f"all ids that were not used for {unused_ms} ms"
        click.confirm(f"Forget {which}? Their producers have to be initialised again.", abort=True, err=True)
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
    if current().json:
        show_json({"transactional_ids": sorted(forgotten)})
    else:
        tell(f"{len(forgotten)} transactional ids are forgotten.")


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
@common_options
def find_hanging(minutes: int, topic: str | None) -> None:
    """List what is open for too long, and so past the time-out that brokers should have acted on.

    It holds nobody up; what it has staged takes space.
    """
    log = current().open_log()
    image = log.refresh(force=True)
    now_ms = log.clock.now_ms()
    rows: list[Row] = [
        row
        for one in sorted(image.transactions.values(), key=lambda one: one.transactional_id)
        if one.is_timed_out(now_ms) and now_ms - one.started_ms > minutes * _MINUTE_MS
        for row in _hanging_rows(image, one, now_ms)
        if topic in (None, row["topic"])
    ]
    if rows or current().json:
        show_rows(HANGING, rows)
    else:
        tell("No transaction hangs.")


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


def _require(image: Image, transactional_id: str) -> Transaction:
    found = image.transactions.get(transactional_id)
    if found is None:
        hint = did_you_mean(transactional_id, sorted(image.transactions))
        raise InvalidRequestError(
            "TRANSACTION_MISSING",
            f"transactional id {transactional_id!r}: unknown{hint}",
            fix="`sparklog transactions list` shows those that are known",
        )
    return found


def _require_producer(image: Image, producer_id: int) -> Transaction:
    found = image.transactions.of_producer(producer_id)
    if found is None:
        raise InvalidRequestError(
            "TRANSACTION_MISSING",
            f"producer id {producer_id}: it is no transactional producer's",
            fix="`sparklog transactions list` shows those that are",
        )
    return found


def _none_if_negative(node_id: int) -> int | None:
    return None if node_id < 0 else node_id
