"""librdkafka's share consumer: each message is acknowledged once, or is a dead letter with its deliveries.

Some workers are killed; a message in a hundred is poison, which no worker can process.
"""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from sparklog.client import SparkLog
from sparklog.client.consumer import read_batches
from tests.support.broker_process import BrokerProcess, until

if not hasattr(confluent_kafka, "ShareConsumer"):
    pytest.skip("this confluent-kafka has no share consumer", allow_module_level=True)

MESSAGES, POISON_EVERY, WORKERS, KILLED, LIMIT = 2_000, 100, 3, 2, 3
SETTINGS = {
    "group.share.record.lock.duration.ms": "5000",
    "group.share.delivery.count.limit": str(LIMIT),
}
# A worker: says in a line which messages were confirmed as accepted.
WORKER = Path(__file__).with_name("share_worker.py")


def set_group(server: BrokerProcess, group: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def append(log: SparkLog, topic: str, numbers: range) -> None:
    values = pa.array([b"%d" % number for number in numbers], pa.binary())
    partitions = pa.array([number % 2 for number in numbers], pa.int32())
    log.append(topic, pa.table({"value": values, "partition": partitions}))


class Worker:
    """A process, and what it has said."""

    def __init__(self, server: BrokerProcess, group: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), server.bootstrap, group, topic],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.accepted: list[int] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.accepted += json.loads(line)

    def end(self) -> None:
        """Let it finish; a killed one has."""
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


def test_each_message_is_acknowledged_once_or_a_dead_letter(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    log.create_topic("dlq.jobs", 1, {"errors.deadletterqueue.group.enable": "true"})
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.jobs",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    set_group(server, "workers", configs)
    append(log, topic, range(MESSAGES // 2))
    topic_id = log.image.topic(topic).topic_id
    workers = [Worker(server, "workers", topic) for _ in range(KILLED)]
    try:
        until(lambda: any(one.accepted for one in workers), what="the first have some")
        append(log, topic, range(MESSAGES // 2, MESSAGES))
        for one in workers:
            one.process.kill()
        workers += [Worker(server, "workers", topic) for _ in range(WORKERS)]

        def is_done() -> bool:
            states = log.refresh().shares.get("workers", {})
            return sum(states[place].start_offset for place in states if place[0] == topic_id) == MESSAGES

        until(is_done, what="every message has ended")
    finally:
        for one in workers:
            one.end()
    accepted = Counter(number for one in workers for number in one.accepted)
    poison = set(range(0, MESSAGES, POISON_EVERY))
    log.refresh(force=True)
    letters = [
        (int(row["value"]), {header["key"]: header["value"] for header in row["headers"]})
        for batch in read_batches(log.metadata, log.image, "dlq.jobs", 0, include_headers=True)
        for row in batch.to_pylist()
    ]
    assert max(accepted.values()) == 1
    assert not poison & set(accepted)
    assert Counter(number for number, _ in letters) == Counter(dict.fromkeys(poison, 1))
    counts = {headers["__dlq.errors.delivery.count"] for _, headers in letters}
    assert counts == {str(LIMIT).encode()}
    # What a killed worker had acknowledged, and did not live to say.
    missing = set(range(MESSAGES)) - poison - set(accepted)
    assert len(missing) <= KILLED * 500
