"""Who wants news of a root that is followed seldom waits for a look; nobody else has one made."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sparklog_server.root import live_root as module
from sparklog_server.root.live_root import LINGER_SECONDS, Attention

LONG = 3600.0


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_attention_is_paid_while_somebody_wants_news_and_a_moment_longer() -> None:
    now = 100.0
    attention = Attention(lambda: now)
    assert not attention.is_active

    async def scenario() -> None:
        nonlocal now
        await attention.begin()
        await attention.begin()
        attention.end()
        now += 10 * LINGER_SECONDS
        assert attention.is_active
        attention.end()
        now += LINGER_SECONDS / 2
        assert attention.is_active
        now += LINGER_SECONDS / 2
        assert not attention.is_active

    run(scenario)


def test_who_comes_during_a_nap_ends_it_and_waits_for_a_look() -> None:
    async def scenario() -> None:
        attention = Attention()
        idling = asyncio.create_task(attention.idle(LONG))
        await turns()
        wanting = [asyncio.create_task(attention.begin()) for _ in range(3)]
        await turns()
        assert idling.done(), "it is woken"
        late = asyncio.create_task(attention.begin())
        await turns()
        assert not any(one.done() for one in (*wanting, late))
        attention.refreshed()
        await asyncio.gather(*wanting, late)
        assert attention.is_active
        await attention.begin()  # while the log is followed often nobody waits

    run(scenario)


def test_a_nap_that_nobody_disturbs_ends_by_itself() -> None:
    async def scenario() -> None:
        attention = Attention()
        await attention.idle(0)
        attention.refreshed()
        await attention.begin()

    run(scenario)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage may be away: what may still be answered is for the role to say."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0)

    async def scenario() -> None:
        attention = Attention()
        idling = asyncio.create_task(attention.idle(LONG))
        await turns()
        await asyncio.gather(attention.begin(), attention.begin())
        await idling
        attention.refreshed()

    run(scenario)


def test_who_goes_away_while_waiting_disturbs_nobody_else() -> None:
    async def scenario() -> None:
        attention = Attention()
        idling = asyncio.create_task(attention.idle(LONG))
        await turns()
        gone, stays = (asyncio.create_task(attention.begin()) for _ in range(2))
        await turns()
        gone.cancel()
        await turns()
        attention.end()
        attention.refreshed()
        await asyncio.gather(stays, idling)

    run(scenario)
