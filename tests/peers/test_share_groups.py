"""Java's share consumer, and Kafka's tools for share groups.

100,000 messages, eight workers in three processes, one of which is killed, a poison message in a thousand:
each message is acknowledged once, or in the dead-letter topic with its delivery count.
"""

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from sparklog.client.consumer import read_batches
from tests.peers.conftest import Tool
from tests.support.broker_process import BrokerProcess, until

PROGRAM = Path(__file__).with_name("Sharing.java")
MESSAGES, STEP, POISON_EVERY, LIMIT = 100_000, 5_000, 1_000, 5
WORKERS = (3, 3, 2)  # of each process; the first is killed


class Workers:
    """A JVM with some workers, and what they were answered."""

    def __init__(self, jars: Jars, server: BrokerProcess, topic: str, count: int) -> None:
        command = java(jars, str(PROGRAM), heap=HEAP, jvm=QUICK_START)
        self.process = subprocess.Popen(
            [*command, server.bootstrap, "workers", topic, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.said: list[list[str]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(line.split() for line in self.process.stdout)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._thread.join(60)
            self.process.stdout.close()


@pytest.fixture
def topic(log: SparkLog, new_topic: Callable[..., str], tool: Tool) -> Iterator[str]:
    name = new_topic(4)
    log.create_topic("dlq.jobs", 4, {"errors.deadletterqueue.group.enable": "true"})
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.jobs",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    words = ",".join(f"{key}={value}" for key, value in configs.items())
    tool(
        "kafka-configs",
        "--entity-type",
        "groups",
        "--entity-name",
        "workers",
        "--alter",
        "--add-config",
        words,
    )
    yield name
    log.delete_topic("dlq.jobs")


def append(log: SparkLog, topic: str, numbers: range) -> None:
    values = [f"{number}-poison" if number % POISON_EVERY == 0 else str(number) for number in numbers]
    table = pa.table(
        {
            "value": pa.array([one.encode() for one in values], pa.binary()),
            "partition": pa.array([number % 4 for number in numbers], pa.int32()),
        }
    )
    log.append(topic, table)


def test_each_message_is_acknowledged_once_or_a_dead_letter(
    server: BrokerProcess, log: SparkLog, topic: str, kafka_jars: Jars, tool: Tool
) -> None:
    topic_id = log.image.topic(topic).topic_id

    def ended() -> int:
        states = log.refresh(force=True).shares.get("workers", {})
        return sum(one.start_offset for place, one in states.items() if place[0] == topic_id)

    append(log, topic, range(STEP))
    jvms = [Workers(kafka_jars, server, topic, WORKERS[0])]
    try:
        until(lambda: bool(jvms[0].said), what="the first workers have some")
        jvms += [Workers(kafka_jars, server, topic, count) for count in WORKERS[1:]]
        for start in range(STEP, MESSAGES, STEP):
            append(log, topic, range(start, start + STEP))
            if start == 2 * STEP:  # while it works on these
                jvms[0].process.kill()
        until(lambda: ended() == MESSAGES, what="every message has ended")
    finally:
        for one in jvms:
            one.close()
    said = [words for one in jvms for words in one.said]
    accepted = Counter(words[1] for words in said if words[0] == "accepted")
    letters = [
        (row["value"].decode(), {one["key"]: one["value"] for one in row["headers"]})
        for number in range(4)
        for batch in read_batches(log.metadata, log.image, "dlq.jobs", number, include_headers=True)
        for row in batch.to_pylist()
    ]
    poison = {f"{number}-poison" for number in range(0, MESSAGES, POISON_EVERY)}
    assert max(accepted.values()) == 1
    assert Counter(value for value, _ in letters) == Counter(dict.fromkeys(poison, 1))
    assert {one["__dlq.errors.delivery.count"] for _, one in letters} == {str(LIMIT).encode()}
    released = Counter(words[1] for words in said if words[0] == "released")
    assert max(released.values()) <= LIMIT
    # What the killed workers had acknowledged, a record batch each, and did not live to say.
    assert MESSAGES - len(poison) - len(accepted) <= WORKERS[0] * STEP // 4


def test_tools(server: BrokerProcess, log: SparkLog, topic: str, kafka_jars: Jars, tool: Tool) -> None:
    append(log, topic, range(1, 101))
    workers = Workers(kafka_jars, server, topic, 1)
    try:
        until(lambda: len(workers.said) == 100, what="all are acknowledged")
        assert tool("kafka-share-groups", "--list", "--state").split()[2:] == ["workers", "Stable"]
        members = tool("kafka-share-groups", "--describe", "--group", "workers", "--members")
        assert members.strip().splitlines()[-1].split()[0] == "workers"
    finally:
        workers.close()
    lines = tool("kafka-share-groups", "--describe", "--group", "workers").strip().splitlines()
    rows = [words for words in map(str.split, lines) if words[1] == topic]  # other tests have others
    assert rows == [["workers", topic, str(one), "25", "0"] for one in range(4)]
    assert "Share" in tool("kafka-groups", "--list")
    words = "--group", "workers", "--topic", topic
    tool("kafka-share-groups", "--reset-offsets", *words, "--to-earliest", "--execute")
    assert " 0 " in tool("kafka-share-groups", "--describe", "--group", "workers")
    assert "Successful" in tool("kafka-share-groups", "--delete-offsets", *words)
