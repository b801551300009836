"""The process of a round, as the event loop sees it."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from sparklog.client import round_process
from sparklog.client.round_process import RoundAnswer, RoundProcess, RoundRequest
from sparklog_server.maintenance import service
from sparklog_server.maintenance.service import end_round, has_ended_within

REQUEST = RoundRequest(root="file:///nowhere", cluster_id="C" * 22)
LONG = 200_000  # more than a pipe holds
SPEAKS = 'import sys; sys.stdin.readline(); print(\'{"error": "nothing to do"}\')'
SPEAKS_MUCH = f'import sys; sys.stdin.readline(); print(\'{{"error": "\' + "x" * {LONG} + \'"}}\')'
HANGS = "import signal; signal.pause()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[RoundProcess]:
    """The process of the words that the test is given."""
    monkeypatch.setattr(
        round_process, "command", lambda *, is_urgent: [*request.param] if not is_urgent else []
    )
    process = RoundProcess(REQUEST)
    yield process
    process.end(0)


def runs(*words: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("started", [words], indirect=True, ids=[words[0].rpartition("/")[2]])


@runs(sys.executable, "-c", SPEAKS)
def test_a_round_reports_what_came_of_it(started: RoundProcess) -> None:
    async def run() -> None:
        assert await has_ended_within(started, 30)
        await end_round(started)

    asyncio.run(run())
    assert started.answer() == RoundAnswer(error="nothing to do")


@runs(sys.executable, "-c", SPEAKS_MUCH)
def test_an_answer_may_be_longer_than_a_pipe(started: RoundProcess) -> None:
    assert asyncio.run(has_ended_within(started, 30))
    assert started.answer() == RoundAnswer(error="x" * LONG)


@runs("cat")
def test_a_round_that_is_cancelled_ends(started: RoundProcess) -> None:
    """`cat` ends with its input."""

    async def run() -> None:
        assert not await has_ended_within(started, 0.01)
        started.cancel()
        assert await has_ended_within(started, 30)

    asyncio.run(run())


@runs(sys.executable, "-c", HANGS)
def test_a_round_that_does_not_end_is_killed(started: RoundProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "END_SECONDS", 0.01)

    async def run() -> None:
        await end_round(started)
        assert await has_ended_within(started, 30)

    asyncio.run(run())
    answer = started.answer()
    assert answer is not None
    assert answer.error.startswith("the process ended with exit code -9")


@runs("cat")
def test_a_process_that_cannot_even_be_killed_blocks_nothing(
    started: RoundProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in a storage that hangs, where signals do not reach it."""
    monkeypatch.setattr(service, "END_SECONDS", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(RoundProcess, "answer", lambda _: None)
        asyncio.run(end_round(started))
    assert started.end(30) is not None


@runs("cat")
def test_a_stop_is_not_lost(started: RoundProcess) -> None:
    async def run() -> bool:
        waiting = asyncio.create_task(has_ended_within(started, 30))
        await asyncio.sleep(0)  # it waits
        started.cancel()
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(run())
