"""Versions of the code with a fence of transactions switched off, as mutants.py has them of all else."""

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import msgspec

from sparklog.metadata import BeginProducer, EndTransaction
from sparklog.metadata.model import ending
from sparklog.metadata.model.actions import EFFECTS
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.transaction_values import Transactions
from sparklog.metadata.model.transactions import begin_producer
from tests.simulation.mutants import Mutant
from tests.simulation.setting import TRANSACTIONS_ON_DIRECTORY, TRANSACTIONS_ON_OBJECTS


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


TRANSACTION_MUTANTS = (
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
