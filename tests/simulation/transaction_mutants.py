"""Versions of the code with a fence of transactions switched off, as mutants.py has them of all else."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest import mock

import msgspec

from sparklog.metadata import NO_NUMBER, BeginProducer, EndTransaction, Image
from sparklog.metadata.model import transactions as ending
from sparklog.metadata.model.actions import EFFECTS
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.transaction_values import Transactions
from sparklog.metadata.model.transactions import begin_producer
from sparklog_server.publish import decisions
from sparklog_server.publish.decisions import adding
from sparklog_server.publish.parts import AppendPart, InTransaction
from tests.simulation.mutants import Mutant
from tests.simulation.setting import GROUPS_ON_DIRECTORY, TRANSACTIONS_ON_DIRECTORY, TRANSACTIONS_ON_OBJECTS


def _always_committed(draft: ImageDraft, action: EndTransaction) -> None:
    ending.end_transaction(draft, msgspec.structs.replace(action, committed=True))


def _begins_beside(draft: ImageDraft, action: BeginProducer) -> None:
    """What an older process has open stays open, for the next one to end."""
    known = draft.transactions.get(action.transactional_id)
    if known is None or not known.is_ongoing:
        begin_producer(draft, action)
        return
    draft.transactions.put(
        replace(known, producer_id=action.producer_id, producer_epoch=action.producer_epoch)
    )


def _nothing(_transactions: Transactions) -> Iterator[ExtentList]:
    return iter(())


def _unnumbered(
    image: Image, transactional_id: str, *producer: int, group: str | None = None
) -> InTransaction:
    """A batch of the first protocol is of whichever transaction takes it; offsets are as they should be."""
    number = NO_NUMBER if group is None else image.transactions.open_number(*producer)
    return InTransaction(transactional_id=transactional_id, group=group, number=number)


def _of_what_is_open(image: Image, parts: Sequence[AppendPart]) -> Sequence[AppendPart]:
    """Offsets of a group are of the transaction that is open when their turn comes."""
    return adding(image, [_of_now(image, part) for part in parts])


def _of_now(image: Image, part: AppendPart) -> AppendPart:
    said = part.transaction
    if said is None or said.group is None:
        return part
    number = image.transactions.open_number(part.producer_id, part.producer_epoch)
    return msgspec.structs.replace(part, transaction=replace(said, number=number))


TRANSACTION_MUTANTS = (
    Mutant(
        "records of a transaction that is over are staged in the next one",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(InTransaction, "of_first_protocol", _unnumbered),
        first=13,
    ),
    Mutant(
        "offsets of a transaction that is over are staged in the next one",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(decisions, "adding", _of_what_is_open),
        first=3000,  # one history in about 250 has it
    ),
    Mutant(
        "an abort publishes what was staged",
        TRANSACTIONS_ON_DIRECTORY,
        lambda: mock.patch.dict(EFFECTS, {EndTransaction: _always_committed}),
    ),
    Mutant(
        "who is initialised aborts nothing",
        TRANSACTIONS_ON_OBJECTS,
        lambda: mock.patch.dict(EFFECTS, {BeginProducer: _begins_beside}),
    ),
    Mutant(
        "what is staged is taken for dead",
        TRANSACTIONS_ON_DIRECTORY,
        lambda: mock.patch.object(Transactions, "staged_lists", _nothing),
        first=3,
    ),
)
