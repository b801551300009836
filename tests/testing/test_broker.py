"""The broker of sparklog.testing: starts, ends, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sparklog
from sparklog.testing import Broker
from tests.support.broker_process import until
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "root", {"log.cleaner.enable": "false"})
    yield broker
    broker.close()


def test_clients_are_served_on_the_root_with_the_settings(broker: Broker) -> None:
    with broker.open() as log:
        log.create_topic("orders", 3)
        assert (log.topics(), log.partition_count("orders")) == (["orders"], 3)
    client = WireClient(broker.host, broker.port)
    client.close()
    assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
    assert broker.stop() == 0


def test_one_that_hangs_at_its_start_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Broker):
        def program(self) -> list[str]:
            return ["-c", "import time; time.sleep(100)"]

    monkeypatch.setattr("sparklog.testing.broker.START_SECONDS", 0.5)
    with pytest.raises(RuntimeError, match="the broker ended: exit -9"):
        Hanging(tmp_path / "root")


def test_a_killed_one_comes_back_on_the_same_port(broker: Broker) -> None:
    port, process = broker.port, broker.process
    with broker.killed():
        assert not broker.is_running()
        assert process.returncode == -signal.SIGKILL
    assert (broker.port, broker.is_running()) == (port, True)
    assert broker.process.pid != process.pid


def test_one_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("no directory")
    with pytest.raises(RuntimeError, match=r"the broker ended: exit 1: .*root"):
        Broker(tmp_path / "root")


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = """
    import os, signal
    from sparklog.testing import Broker
    broker = Broker({root!r})
    print(broker.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    root = str(tmp_path / "root")
    words = [sys.executable, "-c", textwrap.dedent(code).format(root=root)]
    killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    until(lambda: not psutil.pid_exists(int(killed.stdout)), what="the broker ends")
    with sparklog.open(root, create=False) as log:
        assert log.topics() == []


def test_the_environment_reaches_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the broker ended: exit -9"):
        Broker(tmp_path / "root", environment={"SPARKLOG_FAIL": "broker.registered:1"})
    assert "SPARKLOG_FAIL" not in os.environ
