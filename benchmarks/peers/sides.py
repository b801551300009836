"""A side of the comparison: its storage or broker, and its own Spark driver, started and ended together."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker

PARTITIONS = 8
REPOSITORY = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 1800


class SideError(Exception):
    """A side could not do what it was asked; the rest goes on."""


class Side:
    """Asks the driver, makes topics, and knows what is to be measured."""

    def __init__(
        self, name: str, place: str, directory: Path, jars: str, broker_pid: int | None = None
    ) -> None:
        self.name, self.place, self.directory, self.jars = name, place, directory, jars
        self.broker_pid = broker_pid
        self._errors = (directory / f"{name}-driver.log").open("w+")
        words = [sys.executable, "-m", "benchmarks.peers.spark_driver", name, place, str(directory), jars]
        self.driver = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=REPOSITORY,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **words: object) -> dict[str, Any]:
        """Have the driver do something; its answer."""
        assert self.driver.stdin is not None
        self.driver.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.driver.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise SideError(f"{self.name}: {do}: {answer['error']}")
        return answer

    @property
    def groups(self) -> dict[str, list[int]]:
        """Whose CPU and memory count."""
        groups = {"spark": [self.driver.pid]}
        if self.broker_pid is not None:
            groups["broker"] = [self.broker_pid]
        return groups

    def create_topic(
        self, topic: str, partitions: int = PARTITIONS, configs: dict[str, str] | None = None
    ) -> None:
        """Tables of files need none."""
        if self.name == "sparklog":
            with sparklog.open(self.place) as log:
                log.create_topic(topic, partitions, configs)
        elif self.name == "kafka":
            create_kafka_topic(self.place, topic, partitions, configs)

    def disk_bytes(self) -> int:
        """What all its topics take on the disk."""
        return allocated_bytes(self.storage)

    @property
    def storage(self) -> Path:
        return self.directory / "data"

    def close(self) -> None:
        """End the driver: asked first, killed if need be."""
        assert self.driver.stdin is not None
        with contextlib.suppress(OSError):
            self.driver.stdin.close()
        try:
            self.driver.wait(20)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            self.driver.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self.driver.stdout is not None
        line = self.driver.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SideError(f"{self.name}: the driver ended: {self._errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def allocated_bytes(directory: Path) -> int:
    """Blocks taken, so that Kafka's indexes, made large and sparse, count for what they take."""
    total = 0
    for parent, directories, names in os.walk(directory.resolve()):  # passes over what is deleted meanwhile
        # Kafka frees the disk a minute after a topic was deleted: that is none of the next one's business.
        directories[:] = [one for one in directories if not one.endswith("-delete")]
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_blocks * 512
    return total


def create_kafka_topic(
    bootstrap: str, topic: str, partitions: int = PARTITIONS, configs: dict[str, str] | None = None
) -> None:
    """Through librdkafka, which starts faster than Kafka's own tool; waits until the topic has leaders."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs or {})])[topic].result(30)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
            return
        time.sleep(0.05)
    raise SideError(f"{topic} has no leaders")


@contextlib.contextmanager
def sparklog_side(parent: Path) -> Iterator[Side]:
    """Spark straight on the root: there is no broker in its path."""
    directory = Path(tempfile.mkdtemp(prefix="sparklog-", dir=parent))
    place = directory / "data"
    sparklog.open(str(place)).close()
    with contextlib.closing(Side("sparklog", str(place), directory, "")) as side:
        yield side


@contextlib.contextmanager
def kafka_side(parent: Path, kafka: Jars, connector: Jars) -> Iterator[Side]:
    """Spark's connector, and a broker."""
    with kafka_broker(kafka, parent) as broker:
        directory = broker.log_dir.parent
        broker.log_dir.parent.joinpath("data").symlink_to(broker.log_dir)
        jars = ",".join(map(str, connector.files))
        with contextlib.closing(Side("kafka", broker.bootstrap, directory, jars, broker.pid)) as side:
            yield side


@contextlib.contextmanager
def file_side(parent: Path, name: str, jars: Jars | None = None) -> Iterator[Side]:
    """Parquet or Delta: directories of files."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    (directory / "data").mkdir()
    files = ",".join(str(path) for path in jars.files if path.name.startswith("delta-")) if jars else ""
    with contextlib.closing(Side(name, str(directory / "data"), directory, files)) as side:
        yield side


@contextlib.contextmanager
def sparklog_broker(parent: Path) -> Iterator[tuple[str, int, Path]]:
    """Our broker on a root of its own: its address, process and root."""
    root = Path(tempfile.mkdtemp(prefix="broker-", dir=parent))
    words = ["-m", "sparklog_server", "--root", str(root), "--listeners", "PLAINTEXT://127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=REPOSITORY
    ) as process:
        try:
            assert process.stdout is not None
            bootstrap = process.stdout.readline().strip().rpartition("//")[2]
            if not bootstrap:
                raise SideError("our broker ended")
            yield bootstrap, process.pid, root
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(root, ignore_errors=True)
