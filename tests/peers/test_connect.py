"""A Connect worker whose source connectors write exactly once, killed again and again."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from tests.compat.embedded import stored_records
from tests.peers.killed import Killed
from tests.support.broker_process import serving
from tests.support.ports import lasting_port

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
LIVES = 11  # all but the last one are killed
LINES = 2_000  # written into the file for each life
TOPIC, CONNECTOR = "lines", "from-a-file"
PATIENCE_SECONDS = 180
SETTINGS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
JSON = {"Content-Type": "application/json"}


def worker_settings(bootstrap: str, port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "workers",
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "exactly.once.source.support": "enabled",
        "config.storage.topic": "connect-configs",
        "offset.storage.topic": "connect-offsets",
        "status.storage.topic": "connect-status",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "offset.storage.partitions": "2",
        "status.storage.partitions": "1",
        "scheduled.rebalance.max.delay.ms": "0",
        "session.timeout.ms": "3000",
        "heartbeat.interval.ms": "500",
    }


def ask(port: int, path: str, body: object = None) -> Any:
    """PUT where there is a body; None: the worker does not answer so far."""
    data = None if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "PUT"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers=JSON, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@contextmanager
def source_file(path: Path) -> Iterator["Source"]:
    with path.open("wb") as file:
        yield Source(file)


class Source:
    """A file that grows."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.lines = 0

    def grow(self) -> None:
        for number in range(self.lines, self.lines + LINES):
            self._file.write(b"line %d\n" % number)
        self._file.flush()
        self.lines += LINES


def read(log: SparkLog) -> int:
    log.refresh(force=True)
    return log.log_end_offset(TOPIC, 0)


def test_lines_of_a_file_are_there_once_however_often_the_worker_is_killed(
    kafka_application_jars: Jars, tmp_path: Path
) -> None:
    path, port = tmp_path / "lines.txt", lasting_port()
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(path),
        "topic": TOPIC,
        "batch.size": "50",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    with (
        serving(tmp_path / "log", SETTINGS) as server,
        sparklog.open(str(server.root), create=False) as log,
        source_file(path) as source,
    ):
        log.create_topic(TOPIC, 1)
        settings = tmp_path / "worker.properties"
        settings.write_text(
            "".join(f"{key}={value}\n" for key, value in worker_settings(server.bootstrap, port).items())
        )
        command = java(kafka_application_jars, WORKER, str(settings), heap=HEAP, jvm=QUICK_START)
        left_open = 0
        for life in range(LIVES):
            before = source.lines
            source.grow()
            goal = source.lines if life == LIVES - 1 else before + LINES * (life + 1) // LIVES
            with Killed(command, tmp_path / f"worker-{life}.out") as worker:
                if life == 0:
                    where = f"/connectors/{CONNECTOR}/config"
                    worker.until(lambda: ask(port, where, connector), PATIENCE_SECONDS)  # noqa: B023
                worker.until(lambda: read(log) >= goal, PATIENCE_SECONDS)  # noqa: B023
            left_open += any(one.is_ongoing for one in log.refresh(force=True).transactions.values())
        assert left_open, "no kill was in the midst of a transaction"
        found = [(one.value or b"").decode() for one in stored_records(log, TOPIC)]
        assert found == [f"line {number}" for number in range(source.lines)]
        assert server.process.poll() is None
        assert "Traceback" not in server.errors()
