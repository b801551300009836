"""Who asks for what a transaction has committed waits until it is applied, and not forever."""

import asyncio

from sparklog.errors import CorruptLogError
from sparklog_server.coordination.internal_topic import RETRY_READ_MS
from sparklog_server.coordination.staging import SETTLE_MS
from tests.server.coordination.staged_entries import A, B, begun, failing, staged_by_another, stages
from tests.server.coordination.toy import Entry, Toy, Toys


async def ended_and_unread(toy: Toy) -> None:
    """A transaction has staged A, and is committed; it cannot be read yet."""
    producer = begun(toy.log)
    await stages(toy, producer, A)
    toy.root.reads = asyncio.Event()
    producer.end()
    await toy.look()
    assert toy.amounts() == {}
    assert not toy.log_of(0).is_settled


def test_what_has_ended_is_waited_for(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        await ended_and_unread(toy)
        settled = [asyncio.ensure_future(toy.log_of(0).settled()) for _ in range(2)]
        gone = asyncio.ensure_future(toy.log_of(0).settled())
        await toy.settle()
        assert not any(one.done() for one in (*settled, gone))
        gone.cancel()
        assert toy.root.reads is not None
        toy.root.reads.set()
        await asyncio.gather(*settled)
        assert toy.amounts() == {"a0": 1}

    toys.run(scenario)


def test_what_is_open_is_not_waited_for(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        assert toy.log_of(0).is_settled
        await toy.log_of(0).settled()
        producer.end(commits=False)
        await toy.look()
        assert toy.log_of(0).is_settled

    toys.run(scenario)


def test_what_ends_later_is_not_waited_for(toys: Toys) -> None:
    """Else who asks would be held up by others' transactions, one after the other."""

    async def scenario(toy: Toy) -> None:
        first, second = begun(toy.log, "first"), begun(toy.log, "second")
        await stages(toy, first, A)
        await stages(toy, second, B)
        toy.root.reads = asyncio.Event()
        first.end()
        await toy.look()
        settled = asyncio.ensure_future(toy.log_of(0).settled())
        await toy.settle()
        second.end()
        await toy.look()
        of_both = asyncio.ensure_future(toy.log_of(0).settled())
        of_first, toy.root.reads = toy.root.reads, asyncio.Event()
        of_first.set()
        await toy.settle()
        assert (settled.done(), of_both.done()) == (True, False)
        assert toy.amounts() == {"a0": 1}
        toy.root.reads.set()
        await of_both
        assert toy.amounts() == {"a0": 1, "b0": 2}

    toys.run(scenario)


def test_what_ended_before_it_was_known_is_waited_for(toys: Toys) -> None:
    """Another broker has staged it, and it has ended before this one could read what."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        other = await staged_by_another(toys, producer)
        toy.root.reads = asyncio.Event()
        await toy.look()
        producer.end()
        await toy.look()
        settled = asyncio.ensure_future(toy.log_of(0).settled())
        await toy.settle()
        assert not settled.done()
        toy.root.reads.set()
        await settled
        assert toy.amounts() == {"a0": 1}
        other.shards.close()
        await other.close()

    toys.run(scenario)


def test_nobody_waits_for_ever(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        await ended_and_unread(toy)
        settled = asyncio.ensure_future(toy.log_of(0).settled())
        await toy.settle()
        await toy.advance(SETTLE_MS - 1)
        assert not settled.done()
        await toy.advance(1)
        assert settled.done()
        assert toy.amounts() == {}
        assert toy.root.reads is not None
        toy.root.reads.set()

    toys.run(scenario)


def test_nobody_waits_for_what_is_closed(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        await ended_and_unread(toy)
        settled = asyncio.ensure_future(toy.log_of(0).settled())
        await toy.settle()
        toy.shards.close()
        await toy.settle()
        assert settled.done()
        assert toy.root.reads is not None
        toy.root.reads.set()

    toys.run(scenario)


def test_nobody_waits_for_what_is_released(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        await ended_and_unread(toy)
        log = toy.log_of(0)
        settled = asyncio.ensure_future(log.settled())
        await toy.settle()
        toy.shards.release()
        await toy.settle()
        assert settled.done()
        assert log.is_settled
        assert toy.root.reads is not None
        toy.root.reads.set()

    toys.run(scenario)


def test_another_try_is_waited_for(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        producer.end()
        with failing(toy, "_work"):
            await toy.look()
            settled = asyncio.ensure_future(toy.log_of(0).settled())
            await toy.settle()
        await toy.advance(RETRY_READ_MS)
        assert settled.done()
        assert toy.amounts() == {"a0": 1}

    toys.run(scenario)


def test_nobody_waits_for_what_can_never_be_read(toys: Toys) -> None:
    """Whoever may write there could have everybody else wait."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        producer.end()
        with failing(toy, "_work", CorruptLogError("CORRUPT_BATCH", "garbage", fix="repair it")):
            settled = asyncio.ensure_future(toy.log_of(0).settled())
            await toy.look()
            assert settled.done()
            assert toy.log_of(0).is_settled
        await toy.append(Entry("a0", 3))
        assert toy.amounts() == {"a0": 3}

    toys.run(scenario)


def test_what_ends_while_others_read_is_read_as_well(toys: Toys) -> None:
    """Whoever has caught up sees to what came meanwhile: nothing else may happen for long."""

    async def scenario(toy: Toy) -> None:
        producer = begun(toy.log)
        await stages(toy, producer, A)
        toy.root.reads = asyncio.Event()
        toy.append_foreign(Entry("x0", 5))
        toy.log.refresh()  # not shown, so nobody follows it yet
        catching_up = asyncio.ensure_future(toy.log_of(0).catch_up())
        await toy.settle()
        producer.end()
        await toy.look()
        toy.root.reads.set()
        assert await catching_up
        await toy.settle()
        assert toy.amounts() == {"x0": 5, "a0": 1}
        assert toy.log_of(0).is_settled

    toys.run(scenario)
