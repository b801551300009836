"""Budgets: what waits, who goes first, what is given back."""

import asyncio

import pytest

from sparklog_server.network.limits import ByteBudget, ConnectionQuota


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_frames_wait_for_room_in_their_order() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        first, second, third, fourth = object(), object(), object(), object()
        await budget.take(first, 100)
        order: list[int] = []

        async def take(holder: object, size: int, number: int) -> None:
            await budget.take(holder, size)
            order.append(number)

        tasks = [asyncio.create_task(take(second, 60, 2))]
        await settle()
        tasks += [asyncio.create_task(take(third, 60, 3)), asyncio.create_task(take(fourth, 10, 4))]
        await settle()
        assert (order, budget.used_bytes, budget.waiting) == ([2], 160, 2)  # one may overdraw
        budget.give_back(first, 100)
        await settle()
        # The overdraft is still the second's; 60 + 60 is too much, and the fourth does not overtake.
        assert order == [2]
        budget.give_back(second, 60)
        await settle()
        assert order == [2, 3, 4]
        assert budget.used_bytes == 70
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_unfinished_frames_that_hold_everything_do_not_block_each_other() -> None:
    """Each needs more to end; without the overdraft none would ever get it."""

    async def scenario() -> None:
        budget = ByteBudget(100)
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
        budget = ByteBudget(100, share_bytes=25)
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
        budget = ByteBudget(100)
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
        budget = ByteBudget(100)
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


@pytest.mark.parametrize("share", [100, 40])
def test_a_grant_that_its_waiter_never_sees_leaves_nobody_overdrawing(share: int) -> None:
    """Else those that hold everything would wait for one that is gone."""

    async def scenario() -> None:
        budget = ByteBudget(100, share)
        first, second, overdrawing, gone = object(), object(), object(), object()
        await budget.take(first, 40, "a")
        await budget.take(second, 60, "b")
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
