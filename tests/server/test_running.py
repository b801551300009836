"""A broker as a process, from inside: how a start ends that does not come to its end."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog_server import running
from sparklog_server.settings.config import ServerConfig
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

WAITING = "waiting for that process"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_told_to_stop_while_it_starts_has_not_failed(
    start_broker: Callable[..., RunningBroker], told: Told, number: signal.Signals
) -> None:
    """Another process has its node id: that is waited for, for a minute."""
    configs = {"log.dirs": start_broker().root, "listeners": "PLAINTEXT://127.0.0.1:0"}

    async def main() -> int:
        serving = asyncio.create_task(running.serve(ServerConfig.parse(configs)))
        async with asyncio.timeout(60):
            while not any(WAITING in one for one in told("sparklog_server")):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), number)
            return await serving

    assert asyncio.run(main()) == 0
    assert not any("cannot start" in one for one in told("sparklog_server"))


def test_a_fault_of_ours_ends_the_process_at_once_and_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit by exception would wait for threads that may hang in the storage."""

    async def broken(_config: ServerConfig) -> int:
        raise KeyError("broken")

    monkeypatch.setattr(running, "serve", broken)
    monkeypatch.setattr(running, "keep_freed_memory", lambda: None)  # the other tests' process
    config = ServerConfig.parse({"sparklog.logs.dir": str(tmp_path / "logs")})
    assert running.run(config) == running.EXIT_FAILED
    assert "KeyError: 'broken'" in (tmp_path / "logs" / "server.log").read_text()
