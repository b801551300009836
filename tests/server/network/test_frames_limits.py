"""Budgets: what waits, who goes first, what is given back."""

import asyncio

import pytest

from sparklog_server.network.frames import ConnectionQuota
from sparklog_server.runtime.budget import Budget


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_frames_wait_for_room_and_the_smallest_goes_first() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        first, second, third, fourth = object(), object(), object(), object()
        await budget.take(first, 100)
        order: list[int] = []

        async def take(holder: object, size: int, number: int) -> None:
            await budget.take(holder, size)
            order.append(number)

        tasks = [asyncio.create_task(take(second, 60, 2))]
        await settle()
        tasks += [asyncio.create_task(take(third, 70, 3)), asyncio.create_task(take(fourth, 60, 4))]
        await settle()
        assert (order, budget.used_bytes, budget.waiting) == ([2], 160, 2)  # one may overdraw
        budget.give_back(first, 100)
        await settle()
        assert order == [2, 4]  # what is overdrawn does not count in the limit; 60 + 70 is too much for it
        budget.give_back(second, 60)
        await settle()
        assert order == [2, 4, 3]
        assert budget.used_bytes == 130
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_the_overdraft_goes_to_the_smallest_and_the_oldest_in_turns() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        await budget.take(object(), 100)
        current, order = object(), list[int]()
        await budget.take(current, 1000)

        async def take(size: int) -> None:
            holder = object()
            await budget.take(holder, size)
            order.append(size)
            budget.give_back(holder, size)

        tasks = [asyncio.create_task(take(size)) for size in (900, 800, 700, 600)]
        await settle()
        budget.give_back(current, 1000)
        await asyncio.gather(*tasks)
        assert order == [900, 600, 800, 700]

    asyncio.run(scenario())


@pytest.mark.parametrize("stalled", [1, 2, 5, 10])
def test_stalled_large_frames_of_several_addresses_leave_room_for_small_ones(stalled: int) -> None:
    """Each address takes what it gets, step by step as frames grow; five kept others waiting for 22 s."""

    async def scenario() -> None:
        budget = Budget(1_000_000)
        growing = [[object() for _ in range(3)] for _ in range(stalled)]
        tasks = []

        async def grow(holder: object, owner: str) -> None:
            for _ in range(1000):
                await budget.take(holder, 1000, owner)

        for number, holders in enumerate(growing):
            tasks += [asyncio.create_task(grow(holder, f"10.0.0.{number}")) for holder in holders]
        for _ in range(2000):
            await asyncio.sleep(0)
        assert budget.waiting == 3 * stalled - 1  # the last one overdraws
        for number in range(20):
            assert budget.try_take(1000, f"10.0.1.{number}")
        assert budget.used_bytes <= 2_000_000
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_an_address_alone_has_a_quarter_and_less_beside_others() -> None:
    budget = Budget(1000)
    assert not budget.try_take(251, "a")
    assert budget.try_take(250, "a")
    assert not budget.try_take(188, "b")
    assert budget.try_take(187, "b")
    assert not budget.try_take(1, "a")


def test_unfinished_frames_that_hold_everything_do_not_block_each_other() -> None:
    """Each needs more to end; without the overdraft none would ever get it."""

    async def scenario() -> None:
        budget = Budget(100)
        holders = [object() for _ in range(4)]

        async def frame(holder: object) -> None:
            await budget.take(holder, 25)
            await asyncio.sleep(0)
            await budget.take(holder, 50)
            await asyncio.sleep(0)
            budget.give_back(holder, 75)

        await asyncio.wait_for(asyncio.gather(*map(frame, holders)), 60)
        assert budget.used_bytes == 0

    asyncio.run(scenario())


def test_an_address_with_stalled_frames_keeps_nobody_else_out() -> None:
    """Five connections kept all frames above 8 KB out for 38 s."""

    async def scenario() -> None:
        budget = Budget(100)
        stalled = [object() for _ in range(5)]
        await budget.take(stalled[0], 20, "bad")
        await budget.take(stalled[1], 60, "bad")  # one frame of an address may go beyond its share
        waiting = [asyncio.create_task(budget.take(one, 10, "bad")) for one in stalled[2:]]
        await settle()
        assert (budget.used_bytes, budget.waiting) == (80, 3)
        other = object()
        await asyncio.wait_for(budget.take(other, 15, "good"), 60)  # not behind those that wait
        assert budget.used_bytes == 95
        budget.give_back(other, 15, "good")
        budget.give_back(stalled[1], 60, "bad")
        await settle()
        # One within nothing but the right to go beyond, then the next has to wait for it.
        assert [task.done() for task in waiting] == [True, False, False]
        for holder, task in zip(stalled[2:], waiting, strict=True):
            await task
            budget.give_back(holder, 10, "bad")
            await settle()
        budget.give_back(stalled[0], 20, "bad")
        assert (budget.used_bytes, budget.waiting) == (0, 0)
        assert budget.owners == set()

    asyncio.run(scenario())


def test_who_stops_waiting_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        first, second, third = object(), object(), object()
        await budget.take(first, 100)
        await budget.take(second, 1)  # overdrawn
        waiting = asyncio.create_task(budget.take(third, 50))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        budget.give_back(first, 100)
        budget.give_back(second, 1)
        assert (budget.used_bytes, budget.waiting) == (0, 0)
        assert budget.try_take(100)

    asyncio.run(scenario())


def test_a_grant_that_its_waiter_never_sees_is_given_back() -> None:
    async def scenario() -> None:
        budget = Budget(100)
        first, second, third = object(), object(), object()
        await budget.take(first, 100)
        await budget.take(second, 1)
        waiting = asyncio.create_task(budget.take(third, 50))
        await settle()
        budget.give_back(first, 100)  # grants, and before the task runs:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        budget.give_back(second, 1)
        assert budget.used_bytes == 0

    asyncio.run(scenario())


def test_a_grant_that_its_waiter_never_sees_leaves_nobody_overdrawing() -> None:
    """Else those that hold everything would wait for one that is gone."""

    async def scenario() -> None:
        budget = Budget(100)
        first, second, overdrawing, gone = object(), object(), object(), object()
        await budget.take(first, 25, "a")
        await budget.take(second, 18, "b")
        await budget.take(overdrawing, 50, "c")
        waiting = asyncio.create_task(budget.take(gone, 70, "c"))
        await settle()
        assert budget.waiting == 1
        budget.give_back(overdrawing, 50, "c")  # grants, and before the task runs:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert budget.owners == {"a", "b"}
        more = asyncio.create_task(budget.take(first, 10, "a"))
        await settle()
        assert more.done()
        await more

    asyncio.run(scenario())


def test_connections_are_counted_per_address_and_in_all() -> None:
    async def scenario() -> None:
        quota = ConnectionQuota(3, 2, {"10.0.0.9": 0, "10.0.0.8": 3})
        assert [quota.try_add("10.0.0.1") for _ in range(3)] == [True, True, False]
        assert not quota.try_add("10.0.0.9")
        assert quota.try_add("10.0.0.8")
        # One more is for this machine alone.
        assert [quota.has_room_for(one) for one in ("10.0.0.8", "127.0.0.1", "::1")] == [False, True, True]
        assert quota.try_add("127.0.0.1")
        waiting = asyncio.create_task(quota.wait_for_room())
        await settle()
        assert not waiting.done()
        quota.remove("10.0.0.1")
        await asyncio.wait_for(waiting, 60)
        assert quota.count == 3
        assert not quota.has_room_for("10.0.0.1")
        quota.remove("127.0.0.1")
        assert quota.has_room_for("10.0.0.1")
        assert quota.try_add("10.0.0.1")
        assert quota.count == 3

    asyncio.run(scenario())


def test_other_limits_count_at_once_and_for_who_waits() -> None:
    async def scenario() -> None:
        quota = ConnectionQuota(1, 1, {})
        assert quota.try_add("127.0.0.1")
        assert quota.try_add("10.0.0.1")
        waiting = asyncio.create_task(quota.wait_for_room())
        await settle()
        quota.change(1, 1, {})
        await settle()
        assert not waiting.done()
        quota.change(2, 2, {"10.0.0.2": 0})
        await asyncio.wait_for(waiting, 30)
        assert quota.try_add("10.0.0.1")
        assert not quota.try_add("10.0.0.2")
        quota.change(1, 1, {})
        assert quota.count == 3, "those that are too many go on"
        waiting = asyncio.create_task(quota.wait_for_room())
        quota.remove("10.0.0.1")
        await settle()
        assert not waiting.done()
        quota.remove("10.0.0.1")
        await asyncio.wait_for(waiting, 30)

    asyncio.run(scenario())
