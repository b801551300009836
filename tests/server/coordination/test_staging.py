"""What transactions have staged in a partition that is coordinated here: known, whoever has staged it, until
what has come of it is applied.
"""

import asyncio

import pytest

from sparklog.errors import SparklogError, StorageError
from tests.server.coordination.staged_entries import (
    A,
    B,
    begun,
    staged,
    stages,
)
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys
from tests.support.transactional_producer import TransactionalProducer


def test_what_is_staged_is_told_until_it_is_committed_and_applied(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A, B)
        await toy.look()
        assert staged(toy) == {A: 1, B: 1}
        assert toy.amounts() == {}
        toy.root.reads = asyncio.Event()
        producer.end()
        await toy.look()
        assert staged(toy) == {A: 1, B: 1}, "what was committed is not read yet"
        toy.root.reads.set()
        await toy.settle()
        assert staged(toy) == {}
        assert toy.amounts() == {"a0": 1, "b0": 2}

    toys.run(scenario)


def test_what_is_aborted_is_gone(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        producer.end(commits=False)
        await toy.look()
        assert (staged(toy), toy.amounts()) == ({}, {})
        assert not toy.log_of(0).is_unsure

    toys.run(scenario)


def test_own_records_are_not_read(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        toy.root.reads = asyncio.Event()  # nothing can be
        for _ in range(3):
            await stages(toy, producer, A)
            await toy.settle()
        assert (staged(toy), toy.root.waiting) == ({A: 3}, 0)
        assert not toy.log_of(0).is_unsure
        toy.root.reads.set()

    toys.run(scenario)


def test_it_is_staged_before_it_is_durable(toys: Toys) -> None:
    """Whoever was allowed to stage it may be given up in the next moment."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        toy.publisher.hold = True
        staging = stages(toy, producer, A)
        await toy.settle()
        assert staged(toy) == {A: 1}
        toy.publisher.release()
        await staging
        assert staged(toy) == {A: 1}

    toys.run(scenario)


def test_what_shares_a_commit_is_staged_all(toys: Toys) -> None:
    """What one producer stages there at once is one extent."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        toy.publisher.hold = True
        both = [stages(toy, producer, A), stages(toy, producer, B)]
        await toy.settle()
        toy.publisher.release_together()
        await asyncio.gather(*both)
        assert toy.log_of(0).is_unsure or staged(toy) == {A: 1, B: 1}
        await toy.settle()
        assert (toy.log_of(0).is_unsure, staged(toy)) == (False, {A: 1, B: 1})
        producer.end()
        await toy.look()
        assert (staged(toy), toy.amounts()) == ({}, {"a0": 1, "b0": 2})

    toys.run(scenario)


def test_what_could_not_be_staged_is_not(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = TransactionalProducer(toy.log).begin()
        with pytest.raises(SparklogError, match="is not added"):
            await stages(toy, producer, A)
        assert staged(toy) == {}

    toys.run(scenario)


def test_what_is_staged_without_an_answer_is_found(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        toy.publisher.loses_answers = True
        toy.publisher.error = StorageError("STORAGE_FAILED", "the answer", fix="wait")
        with pytest.raises(StorageError, match="the answer"):
            await stages(toy, producer, A)
        await toy.look()
        assert staged(toy) == {A: 1}

    toys.run(scenario)


def test_the_order_of_transactions_is_that_of_their_ends(toys: Toys) -> None:
    """And an append between staging and the end is before it: the log says so to everybody."""

    async def scenario(toy: Toy) -> None:
        first, second = begun(toy.log, "first"), begun(toy.log, "second")
        await stages(toy, first, Entry("a0", 10))
        await stages(toy, second, Entry("a0", 20))
        await toy.append(Entry("a0", 30))
        second.end()
        await toy.look()
        assert toy.amounts() == {"a0": 20}
        first.end()
        await toy.look()
        assert toy.amounts() == {"a0": 10}
        assert staged(toy) == {}

    toys.run(scenario)


def test_the_next_transaction_of_a_producer_is_another_one(toys: Toys) -> None:
    """In the first protocol it has the same epoch; both its end and what follows are seen at once."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        toy.root.reads = asyncio.Event()
        producer.end()
        producer.add(0, topic=TOPIC)
        await stages(toy, producer, B)
        assert staged(toy) == {A: 1, B: 1}
        toy.root.reads.set()
        await toy.look()
        assert (staged(toy), toy.amounts()) == ({B: 1}, {"a0": 1})

    toys.run(scenario)
