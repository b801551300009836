"""What failed often is tried again once."""

import asyncio

from sparklog.clock import ManualClock
from sparklog_server.coordination.internal_topic import RETRY_READ_MS, Retry
from sparklog_server.runtime.timing import Timer


def test_once_after_the_last_failure_and_not_after_a_cancel() -> None:
    asyncio.run(_scenario())


async def _scenario() -> None:
    clock, tried = ManualClock(), []
    timer = Timer(clock)
    retry = Retry(timer, lambda: tried.append(clock.monotonic_ms()))

    def passes(ms: int) -> int:
        clock.advance_ms(ms)
        timer.run_due()
        return len(tried)

    retry.cancel()
    for _ in range(3):
        retry.schedule()
        assert passes(RETRY_READ_MS - 1) == 0
    assert passes(1) == 1
    assert passes(10 * RETRY_READ_MS) == 1
    retry.schedule()
    retry.cancel()
    assert passes(RETRY_READ_MS) == 1
