"""Answers that are out of proportion: counted, refused beyond a limit, made with turns for others."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from sparklog_server.protocol import wire
from sparklog_server.protocol.wire import MAX_ANSWER_BYTES, HeldAnswer, in_slices
from sparklog_server.runtime.budget import Budget


def test_an_answer_has_a_limit() -> None:
    answer = HeldAnswer(Budget(1))
    assert answer.fits(MAX_ANSWER_BYTES - 10)
    assert not answer.fits(11)
    assert answer.fits(10)
    assert not answer.fits(1)


def test_large_answers_wait_for_each_other_and_small_ones_for_nobody() -> None:
    async def main() -> None:
        budget = Budget(1 << 20)
        held = [HeldAnswer(budget) for _ in range(4)]
        for one in held:
            assert one.fits(600_000)
        await held[0].reserve()
        await held[0].reserve()  # no more than once
        await held[1].reserve()  # one may overdraw
        assert budget.used_bytes == 1_200_000
        third = asyncio.ensure_future(held[2].reserve())
        await asyncio.sleep(0)
        assert not third.done()
        small = HeldAnswer(budget)
        assert small.fits(10_000)
        await small.reserve()
        held[0].release()
        held[0].release()
        held[1].release()
        await third
        held[3].release()  # it has reserved nothing
        assert budget.used_bytes == 600_000
        held[2].release()
        assert budget.used_bytes == 0

    asyncio.run(main())


def test_who_has_to_wait_gives_back_first_and_only_who_has_to() -> None:
    async def main() -> None:
        given: list[str] = []
        budget = Budget(1 << 20)
        held = [HeldAnswer(budget, "", lambda name=name: given.append(name)) for name in "abc"]  # type: ignore[misc]
        await held[0].hold(1 << 20)
        assert given == []
        await held[1].hold(1 << 20)  # one may overdraw
        third = asyncio.ensure_future(held[2].hold(100_000))
        await asyncio.sleep(0)
        assert "c" in given
        assert not third.done()
        for one in held:
            one.release()
        await third
        held[2].release()
        assert "a" not in given
        assert budget.used_bytes == 0

    asyncio.run(main())


def test_what_is_made_counts_as_it_is() -> None:
    async def main() -> None:
        budget = Budget(1 << 20)
        counted, not_counted = HeldAnswer(budget), HeldAnswer(budget)
        await counted.hold(100_000)
        await counted.hold_made(90_000)  # what it took while it was made
        assert budget.used_bytes == 100_000
        await counted.hold_made(3 << 20)
        assert budget.used_bytes == 3 << 20
        await HeldAnswer(budget).hold_made(60_000)  # small
        await not_counted.hold_made(100_000)  # one may overdraw
        assert budget.used_bytes == (3 << 20) + 100_000
        counted.release()
        not_counted.release()
        assert budget.used_bytes == 0

    asyncio.run(main())


def test_others_have_turns_while_many_pieces_are_made() -> None:
    turns: list[int] = []
    made: list[int] = []

    async def main() -> list[int]:
        async def other() -> None:
            while True:
                turns.append(len(made))
                await asyncio.sleep(0)

        def pieces() -> Any:
            for number in range(2_000):
                made.append(number)
                yield number

        beside = asyncio.create_task(other())
        found = await in_slices(pieces())
        beside.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beside
        return found

    assert asyncio.run(main()) == list(range(2_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(gaps) <= wire.SLICE


@pytest.mark.parametrize("size", [0, wire.SMALL_BYTES])
def test_small_answers_are_not_counted(size: int) -> None:
    budget = Budget(1)
    answer = HeldAnswer(budget)
    assert answer.fits(size)
    asyncio.run(answer.reserve())
    assert budget.used_bytes == 0
