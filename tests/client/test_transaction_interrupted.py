"""Ctrl-C in a transaction of Python: all of it is there, or nothing, and the object serves for the next."""

import contextlib
from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog, transaction
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.storage import MemoryStore
from tests.client.transacting import begin, refused, rows, values
from tests.support.interrupts import interrupt_everywhere
from tests.support.roots import opened


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        yield log


def fail() -> None:
    raise LookupError


@pytest.mark.slow
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_wherever_it_comes(flushes: bool, fails: bool, log: SparkLog) -> None:
    log.create_topic("a", 1)
    txn = log.transaction("app")
    tried = 0

    def transact() -> None:
        nonlocal tried
        tried += 1
        with contextlib.suppress(LookupError), txn:
            txn.append("a", rows(f"{tried:04}-1"))
            if flushes:
                txn.flush()
            txn.append("a", rows(f"{tried:04}-2"))
            if fails:
                fail()

    for where in interrupt_everywhere(transact, transaction.__name__):
        if "__exit__" in where and "open" in repr(txn):  # before its first instruction
            with refused(InvalidRequestError, "TRANSACTION_STATE.*end it before"):
                begin(txn)
            txn.abort()
        begin(txn)
        done = [value for value in values(log, "a") if value.startswith(f"{tried:04}")]
        assert len(done) in ({0} if fails else {0, 2}), where
    assert tried > 20
    found = values(log, "a")
    assert len(found) == len(set(found))
    assert (f"{tried:04}-2" in found) is not fails


def test_the_same_object_goes_on(log: SparkLog) -> None:
    """An interrupt that takes the id, and is not told so, fences nobody."""
    log.create_topic("a", 1)
    for _ in interrupt_everywhere(lambda: begin(log.transaction("app")), transaction.__name__):
        pass
    txn = log.transaction("app")
    with txn:
        txn.append("a", rows("1"))
    assert values(log, "a") == ["1"]
