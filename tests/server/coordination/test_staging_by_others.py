"""What others have staged in a coordinated partition is read; until it is, anything may be staged."""

import asyncio

import pytest

from sparklog.errors import StorageError
from sparklog.metadata import plan_advance_log_start
from sparklog_server.coordination.internal_topic import RETRY_READ_MS, LogStatus
from tests.server.coordination.staged_entries import (
    A,
    B,
    begun,
    elsewhere,
    failing,
    held,
    staged,
    staged_by_another,
    stages,
)
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys
from tests.support.transactional_producer import TransactionalProducer


def test_until_it_is_read_anything_may_be_staged(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        with elsewhere(toys) as log:
            other = await staged_by_another(toys, producer)
            toy.root.reads = asyncio.Event()
            await toy.look()
            assert toy.log_of(0).is_unsure
            assert staged(toy) == {}
            toy.root.reads.set()
            await toy.settle()
            assert not toy.log_of(0).is_unsure
            assert staged(toy) == {A: 1}
            producer.log = log
            producer.end()
            await toy.look()
            assert (staged(toy), toy.amounts()) == ({}, {"a0": 1})
            other.shards.close()
            await other.close()

    toys.run(scenario)


def test_who_begins_to_coordinate_knows_what_is_staged_before_it_answers(toys: Toys) -> None:
    async def before(toy: Toy) -> None:
        await toy.append(Entry("x0", 5))
        await stages(toy, begun(toy.log), A, B)

    async def after(toy: Toy) -> None:
        run, may_read = toy.root.run_apart, asyncio.Event()

        async def late(function: object, *args: object) -> object:
            if getattr(function, "__name__", "") == "replay_staged":
                await may_read.wait()
            return await run(function, *args)  # type: ignore[arg-type]

        toy.root.run_apart = late  # type: ignore[method-assign,assignment]
        toy.shards.open()
        await toy.settle()
        assert toy.log_of(0).status is LogStatus.LOADING, "what is in the log is read, and nothing else"
        may_read.set()
        await toy.settle()
        assert toy.log_of(0).status is LogStatus.READY
        assert staged(toy) == {A: 1, B: 1}
        assert toy.amounts() == {"x0": 5}

    toys.run(before)
    toys.run(after, opened=False)


def test_an_abort_is_over_where_nothing_is_left_of_the_log(toys: Toys) -> None:
    async def before(toy: Toy) -> None:
        await toy.append(Entry("x0", 5))
        topic_id = toy.log.image.topic(TOPIC).topic_id
        advanced = plan_advance_log_start(toy.log.image, topic_id, 0, 1)
        assert advanced is not None
        toy.log.metadata.publish(lambda _: [advanced])

    async def after(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        producer.end(commits=False)
        await toy.look()
        assert (staged(toy), toy.amounts()) == ({}, {})

    async def later(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        toy.shards.close()
        toy.shards.open()
        await toy.settle()
        producer.end(commits=False)
        await toy.look()
        assert (staged(toy), toy.amounts()) == ({}, {})

    toys.run(before)
    toys.run(after)
    toys.run(later)


def test_a_partition_in_which_everything_is_staged_is_loaded_as_well(toys: Toys) -> None:
    async def before(toy: Toy) -> None:
        await stages(toy, begun(toy.log), A)

    async def after(toy: Toy) -> None:
        assert staged(toy) == {A: 1}
        TransactionalProducer(toy.log).begin()  # which aborts it
        await toy.look()
        assert staged(toy) == {}

    toys.run(before)
    toys.run(after)


def test_what_ends_while_it_is_read_is_not_missed(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        toy.root.reads = asyncio.Event()
        await toy.look()
        producer.end()
        await toy.look()
        toy.root.reads.set()
        await toy.settle()
        assert (staged(toy), toy.amounts()) == ({}, {"a0": 1})
        assert not toy.log_of(0).is_unsure
        other.shards.close()
        await other.close()

    toys.run(scenario)


@pytest.mark.parametrize("commits", [True, False])
def test_what_ended_while_it_was_read_is_not_staged_any_more(toys: Toys, commits: bool) -> None:
    """All that came of it is applied: nobody would ever take it away again."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        with held(toy, "replay_staged") as may_go:
            await toy.look()
            assert toy.log_of(0).is_unsure
            producer.end(commits=commits)
            await toy.look()
            assert toy.amounts() == ({"a0": 1} if commits else {})
            may_go.set()
            await toy.settle()
        assert (toy.log_of(0).is_unsure, staged(toy)) == (False, {})
        other.shards.close()
        await other.close()

    toys.run(scenario)


def test_what_was_committed_before_it_was_known_is_unsure_until_it_is_applied(toys: Toys) -> None:
    """Who is told the state of before would take it for stable."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        with held(toy, "replay_staged") as may_go:
            await toy.look()
            toy.root.reads = asyncio.Event()
            producer.end()
            await toy.look()
            assert (toy.log_of(0).is_unsure, staged(toy), toy.amounts()) == (True, {}, {})
            may_go.set()
            await toy.settle()
        assert (toy.log_of(0).is_unsure, toy.amounts()) == (True, {})
        toy.root.reads.set()
        await toy.settle()
        assert (toy.log_of(0).is_unsure, staged(toy), toy.amounts()) == (False, {}, {"a0": 1})
        other.shards.close()
        await other.close()

    toys.run(scenario)


def test_who_begins_to_coordinate_applies_what_was_committed_meanwhile_before_it_answers(toys: Toys) -> None:
    async def before(toy: Toy) -> None:
        await toy.append(Entry("x0", 5))
        await stages(toy, begun(toy.log), A)

    async def after(toy: Toy) -> None:
        with held(toy, "replay_staged") as may_know:
            toy.shards.open()
            await toy.settle()
            producer = TransactionalProducer(toy.log)
            known = producer.known
            producer.producer_id, producer.epoch = known.producer_id, known.producer_epoch
            producer.end()
            toy.root.reads = asyncio.Event()
            may_know.set()
            await toy.settle()
        assert toy.log_of(0).status is LogStatus.LOADING
        toy.root.reads.set()
        await toy.settle()
        assert toy.log_of(0).status is LogStatus.READY
        assert (toy.amounts(), staged(toy)) == ({"x0": 5, "a0": 1}, {})

    toys.run(before)
    toys.run(after, opened=False)


def test_what_is_committed_while_the_log_is_read_is_read_as_well(toys: Toys) -> None:
    """Also if nothing is committed after that: who waits for it may be who would."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        toy.root.reads = asyncio.Event()
        toy.append_foreign(Entry("x0", 5))
        await toy.look()
        producer.end()
        await toy.look()
        toy.root.reads.set()
        await toy.settle()
        assert (staged(toy), toy.amounts()) == ({}, {"x0": 5, "a0": 1})

    toys.run(scenario)


def test_reading_that_fails_is_done_again_although_nothing_happens(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        with failing(toy, "replay_staged"):
            await toy.look()
            assert toy.log_of(0).is_unsure
        await toy.advance(RETRY_READ_MS)
        assert (toy.log_of(0).is_unsure, staged(toy)) == (False, {A: 1})
        producer.end()
        with failing(toy, "_work"):
            await toy.look()
            assert (staged(toy), toy.amounts()) == ({A: 1}, {})
        await toy.advance(RETRY_READ_MS)
        assert (staged(toy), toy.amounts()) == ({}, {"a0": 1})
        other.shards.close()
        await other.close()

    toys.run(scenario)


def test_reading_that_fails_is_done_again_with_the_next_image(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        run, failures = toy.root.run_apart, [StorageError("STORAGE_FAILED", "gone", fix="wait")]

        async def failing(function: object, *args: object) -> object:
            if getattr(function, "__name__", "") == "replay_staged" and failures:
                raise failures.pop()
            return await run(function, *args)  # type: ignore[arg-type]

        toy.root.run_apart = failing  # type: ignore[method-assign,assignment]
        await toy.look()
        assert toy.log_of(0).is_unsure
        await toy.append(Entry("x0", 5))
        await toy.settle()
        assert not toy.log_of(0).is_unsure
        assert staged(toy) == {A: 1}
        other.shards.close()
        await other.close()

    toys.run(scenario)
