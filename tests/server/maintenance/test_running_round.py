"""The process of a round, as the event loop sees it."""

import asyncio
import sys
import threading
import time

import pytest

from sparklog.client import rounds
from sparklog.client.rounds import RoundAnswer, RoundProcess, RoundRequest
from sparklog_server.maintenance import service
from sparklog_server.maintenance.service import RunningRound

REQUEST = RoundRequest(root="file:///nowhere", cluster_id="C" * 22)
SPEAKS = 'import sys; sys.stdin.readline(); print(\'{"error": "nothing to do"}\')'
HANGS = "import signal; signal.pause()"


def command_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(rounds, "command", lambda *, is_urgent: [*words] if not is_urgent else [])


def test_a_round_says_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    command_of(monkeypatch, sys.executable, "-c", SPEAKS)

    async def run() -> RoundAnswer:
        running = RunningRound(REQUEST, is_urgent=False)
        assert await running.has_ended_within(30)
        await running.end()
        return running.answer()

    assert asyncio.run(run()) == RoundAnswer(error="nothing to do")


def test_that_there_can_be_no_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    command_of(monkeypatch, "/nowhere/python")

    async def run() -> None:
        running = RunningRound(REQUEST, is_urgent=False)
        assert await running.has_ended_within(30)
        running.answer()

    with pytest.raises(FileNotFoundError):
        asyncio.run(run())


def test_a_moment_without_threads_is_a_moment_without_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is raised would end maintenance for good."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none_left)
            RunningRound(REQUEST, is_urgent=False)

    with pytest.raises(OSError, match="cannot begin: can't start new thread"):
        asyncio.run(run())


def test_a_round_that_is_broken_off_before_it_has_begun_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no process yet to be told."""
    command_of(monkeypatch, "cat")  # until its input ends
    may_begin = threading.Event()
    begin = RoundProcess.__init__

    def late(one: RoundProcess, request: RoundRequest, *, is_urgent: bool) -> None:
        may_begin.wait(30)
        begin(one, request, is_urgent=is_urgent)

    monkeypatch.setattr(RoundProcess, "__init__", late)

    async def run() -> None:
        running = RunningRound(REQUEST, is_urgent=False)
        running.break_off()
        may_begin.set()
        assert await running.has_ended_within(30)

    asyncio.run(run())


def test_a_round_that_does_not_break_off_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "END_SECONDS", 0.01)
    command_of(monkeypatch, sys.executable, "-c", HANGS)

    async def run() -> RoundAnswer:
        running = RunningRound(REQUEST, is_urgent=False)
        await running.end()
        assert await running.has_ended_within(30)
        return running.answer()

    assert asyncio.run(run()).error.startswith("the process ended with exit code -9")


def test_a_process_that_cannot_even_be_killed_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in a storage that hangs, where signals do not reach it."""
    monkeypatch.setattr(service, "END_SECONDS", 0.01)
    command_of(monkeypatch, "cat")
    gone = threading.Event()
    wait = RoundProcess.wait

    def hang(one: RoundProcess) -> RoundAnswer:
        gone.wait(30)
        return wait(one)

    monkeypatch.setattr(RoundProcess, "wait", hang)

    async def run() -> str:
        running = RunningRound(REQUEST, is_urgent=False)
        await running.end()
        error = running.answer().error
        gone.set()
        assert await running.has_ended_within(30)
        return error

    began = time.monotonic()
    assert asyncio.run(run()) == "the process does not end"
    assert time.monotonic() - began < 20


def test_a_stop_that_comes_as_the_process_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits has not had its turn yet. Not to see that cancellation would be to work on for ever."""
    command_of(monkeypatch, sys.executable, "-c", SPEAKS)

    async def run() -> bool:
        running = RunningRound(REQUEST, is_urgent=False)
        waiting = asyncio.create_task(running.has_ended_within(30))
        ended = asyncio.Event()
        await asyncio.sleep(0)  # it waits
        running.ended.add_done_callback(lambda _: waiting.cancel())
        running.ended.add_done_callback(lambda _: ended.set())
        await ended.wait()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(run())
