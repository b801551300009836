"""`make cluster`: brokers to play with, which end with the script."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sparklog
from sparklog.client.cluster_view import describe_brokers
from tests.support.broker_process import until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cluster.py"
FAST = ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=200")


class Cluster:
    """The script, what it told, and commands on its root."""

    def __init__(self, process: "subprocess.Popen[str]", root: Path) -> None:
        self.process = process
        self.told = self.read("Ctrl-C stops all brokers.")
        self.pids = [int(pid) for line in self.told for pid in re.findall(r"process (\d+)", line)]
        self.log = sparklog.open(root)

    def read(self, last: str) -> list[str]:
        """Lines up to one that begins so."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith(last):
            line = self.process.stdout.readline()
            assert line, f"it ended: {lines}"
            lines.append(line.rstrip())
        return lines


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    words = [sys.executable, str(SCRIPT), "--root", str(tmp_path / "root"), "--port", "0"]
    words += [word for one in FAST for word in ("--override", one)]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    with process:
        try:
            yield Cluster(process, tmp_path / "root")
        finally:
            if process.poll() is None:
                brokers = psutil.Process(process.pid).children()
                process.kill()
                for broker in brokers:
                    broker.kill()


def test_three_brokers_serve_a_root_until_they_are_told_to_stop(cluster: Cluster) -> None:
    found = describe_brokers(cluster.log.refresh())
    assert [(one.node_id, one.state) for one in found] == [(1, "running"), (2, "running"), (3, "running")]
    assert cluster.told[0] == f"bootstrap servers  {','.join(str(one.address) for one in found)}"
    os.kill(cluster.pids[1], signal.SIGKILL)
    killed, how = cluster.read("  ")
    assert killed == "broker 2 was killed by signal 9; to start it again:"
    assert "--override node.id=2" in how
    until(lambda: cluster.log.refresh().brokers[2].is_fenced, what="the controller fences it")
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.read("stopped") == ["stopped"]
    assert cluster.process.wait(30) == 0
    assert [pid for pid in cluster.pids if psutil.pid_exists(pid)] == []
    assert [one.state for one in describe_brokers(cluster.log.refresh())] == ["fenced"] * 3
