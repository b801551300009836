"""Sending heartbeats, by itself."""

import asyncio
import threading

import pytest

from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import Heart
from tests.server.network.conftest import until
from tests.support.told import Told


def test_a_moment_without_threads_ends_no_signs_of_life(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """A broker would be fenced for it, and join again, and be as silent as before."""
    heart = Heart(MemoryStore(), 1, interval_ms=1, session_timeout_ms=10_000)
    start, failed = threading.Thread.start, list[str]()

    def none_left(thread: threading.Thread) -> None:
        if threading.current_thread().name == "heartbeat" and len(failed) < 5:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def run() -> None:
        heart.start(7)
        await until(lambda: heart.arrived > 0)
        monkeypatch.setattr(threading.Thread, "start", none_left)
        await until(lambda: len(failed) == 5)
        before = heart.arrived
        await until(lambda: heart.arrived > before + 5)
        heart.stop()

    asyncio.run(run())
    lines = {one for one in told("sparklog_server") if "could not be written" in one}
    assert lines == {"a heartbeat could not be written: can't start new thread"}
