"""When the next assignment of a group is computed."""

import asyncio
from collections.abc import Callable

import pytest

from sparklog_server.groups.pacing import BUSY_SHARE, AssignmentPace, measured


@pytest.mark.parametrize(("took_ms", "next_ms"), [(0, 150), (5, 150), (6, 110)])
def test_an_interval_or_a_multiple_of_what_the_last_one_took(took_ms: int, next_ms: int) -> None:
    pace = AssignmentPace()
    assert pace.is_due(0)
    pace.end(100, interval_ms=50, took_ms=took_ms)
    next_ms = max(next_ms, 100 + BUSY_SHARE * took_ms)
    assert (pace.is_due(next_ms - 1), pace.is_due(next_ms)) == (False, True)


def test_what_is_computed_in_a_thread_is_measured() -> None:
    def compute() -> str:
        return "assignment"

    async def run(function: Callable[[], str]) -> str:
        return await asyncio.to_thread(function)

    result, took_ms = asyncio.run(measured(run, compute))
    assert result == "assignment"
    assert took_ms >= 0
