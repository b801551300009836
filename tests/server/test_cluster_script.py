"""`make cluster`: brokers to play with, which end with the script, and the command line on them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

import sparklog
from sparklog.cli.main import cli
from sparklog.client.cluster_view import describe_brokers
from tests.support.broker_process import until

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cluster.py"
FAST = ("broker.session.timeout.ms=4000", "broker.heartbeat.interval.ms=200")
REPLICAS = [(2, 3, 1), (3, 1, 2), (1, 2, 3)]


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

    def run(self, *words: str) -> Any:
        arguments = ("--root", self.log.url, "--output", "json", *words)
        result = CliRunner().invoke(cli, arguments, prog_name="sparklog")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def leaders(self) -> list[int]:
        return [state.leadership.leader for state in self.log.refresh(force=True).topic("orders").partitions]


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
    assert cluster.process.wait(60) == 0
    assert [pid for pid in cluster.pids if psutil.pid_exists(pid)] == []
    assert [one.state for one in describe_brokers(cluster.log.refresh())] == ["fenced"] * 3


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        words = [
            sys.executable,
            str(SCRIPT),
            "--root",
            str(tmp_path / "root"),
            "--logs",
            str(tmp_path / "logs"),
        ]
        words += ["--port", str(taken.getsockname()[1])]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "broker 1 ended with exit code 1: " in ended.stderr
    assert "Address already in use" in ended.stderr


def test_the_controller_does_what_the_command_line_asks(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("topics", "create", "--topic", "orders", "--partitions", "3", "--replication-factor", "2")
    until(lambda: min(cluster.leaders()) > 0, what="its partitions are led")
    assert {len(row["replicas"]) for row in cluster.run("partitions", "list", "-t", "orders")} == {2}
    moves = {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": number, "replicas": list(replicas)}
            for number, replicas in enumerate(REPLICAS)
        ],
    }
    (tmp_path / "moves.json").write_text(json.dumps(moves))
    begun = cluster.run("partitions", "reassign", "--file", str(tmp_path / "moves.json"))
    assert [row["error"] for row in begun["partitions"]] == [None] * 3
    assert cluster.run("partitions", "list", "--reassigning") == []
    assert [tuple(row["replicas"]) for row in cluster.run("partitions", "list", "-t", "orders")] == [
        *REPLICAS
    ]
    cluster.run("partitions", "elect", "--preferred", "--all")
    assert cluster.leaders() == [2, 3, 1]
    before = str(cluster.log.image.commit)

    os.kill(cluster.pids[1], signal.SIGKILL)
    until(lambda: 2 not in cluster.leaders(), what="others lead what it led")
    assert cluster.leaders()[0] in {1, 3}
    assert cluster.run("partitions", "list", "-t", "orders", "--at", before)[0]["leader"] == 2
    moved = cluster.run("partitions", "reassign", "--topic", "orders", "--replicas", "2,1")
    assert [row["error"] for row in moved["partitions"]] == [None] * 3
    assert len(cluster.run("partitions", "list", "--reassigning")) == 3  # broker 2 is not there
    cluster.run("partitions", "reassign", "--cancel", "--topic", "orders")
    assert cluster.run("partitions", "list", "--reassigning") == []
    assert cluster.run("brokers", "unregister", "2", "--yes") == {"unregistered": 2}
    assert [row["id"] for row in cluster.run("brokers", "list")] == [1, 3]
    cluster.process.send_signal(signal.SIGINT)
    cluster.read("stopped")
