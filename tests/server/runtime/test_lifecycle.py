"""The broker's states, how it fails, and how it is asked to stop."""

import asyncio

import pytest

from sparklog_server.runtime.lifecycle import BrokerState, Lifecycle


def test_states_follow_only_from_those_before_them() -> None:
    lifecycle = Lifecycle()
    lifecycle.change(BrokerState.STARTING)
    with pytest.raises(RuntimeError, match=r"from .*STARTING to .*RUNNING"):
        lifecycle.change(BrokerState.RUNNING)
    assert lifecycle.state is BrokerState.STARTING


@pytest.mark.parametrize("state", list(BrokerState))
def test_it_may_fail_at_any_time_and_nothing_leads_out_of_it(state: BrokerState) -> None:
    lifecycle = Lifecycle()
    lifecycle.state = state
    lifecycle.fail(OSError("the disk is gone"))
    assert lifecycle.has_failed
    for other in BrokerState:
        with pytest.raises(RuntimeError):
            lifecycle.change(other)


def test_the_first_failure_is_told_once() -> None:
    lifecycle = Lifecycle()
    told: list[BaseException | None] = []
    lifecycle.on_failed(lambda: told.append(lifecycle.failure))
    first = OSError("first")
    lifecycle.fail(first)
    lifecycle.fail(OSError("second"))
    assert told == [first]
    assert lifecycle.failure is first


def test_a_listener_that_fails_keeps_neither_the_others_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    lifecycle = Lifecycle()
    told: list[bool] = []

    def broken() -> None:
        raise KeyError("broken")

    lifecycle.on_failed(broken)
    lifecycle.on_failed(lambda: told.append(lifecycle.has_failed))
    lifecycle.fail(OSError("the disk is gone"))
    assert told == [True]
    assert lifecycle.is_stop_requested
    assert "broken" in caplog.text


def test_who_waits_for_the_end_is_told_of_a_failure_too() -> None:
    async def main() -> None:
        asked, failed, running = Lifecycle(), Lifecycle(), Lifecycle()
        asked.request_stop()
        failed.fail(OSError())
        async with asyncio.timeout(60):
            await asyncio.gather(asked.wait_for_stop(), failed.wait_for_stop())
        assert [one.is_stop_requested for one in (asked, failed, running)] == [True, True, False]

    asyncio.run(main())
