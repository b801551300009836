"""Clients that speak of topics by their ids: which of them do, and what they make of a topic made anew."""

from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.support.running_broker import RunningBroker

TOPIC_IDS_FROM = 13
DEADLINE_SECONDS = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    running = RunningBroker(str(tmp_path / "log"))
    yield running
    running.stop()


@pytest.fixture
def log(broker: RunningBroker) -> Iterator[SparkLog]:
    with sparklog.open(broker.root, create=False) as log:
        yield log


@pytest.fixture
def consume(broker: RunningBroker) -> Iterator[Callable[[int], list[bytes]]]:
    """The values of the next records of `orders`, from its beginning on."""
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 500}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.subscribe(["orders"])

    def values(count: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(DEADLINE_SECONDS * 10):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
            if len(found) == count:
                return found
        raise AssertionError(f"{len(found)} of {count} records: {found}")

    yield values
    consumer.close()


def append(log: SparkLog, *values: bytes) -> None:
    log.append("orders", pa.table({"value": pa.array(values, pa.binary())}), partition=0)


def versions(broker: RunningBroker, api: str) -> list[int]:
    return sorted(broker.broker.metrics.requests[api].by_version)


def test_librdkafka_fetches_by_id(
    broker: RunningBroker, log: SparkLog, consume: Callable[[int], list[bytes]]
) -> None:
    log.create_topic("orders", 1)
    append(log, b"one", b"two")
    assert consume(2) == [b"one", b"two"]
    append(log, b"three")
    assert consume(1) == [b"three"]
    assert min(versions(broker, "Fetch")) >= TOPIC_IDS_FROM


def test_librdkafka_goes_on_with_a_topic_that_was_made_anew(
    broker: RunningBroker, log: SparkLog, consume: Callable[[int], list[bytes]]
) -> None:
    """It learns of the new id, and keeps its position, as it does with Kafka."""
    log.create_topic("orders", 1)
    append(log, b"old 0", b"old 1")
    assert consume(2) == [b"old 0", b"old 1"]
    log.delete_topic("orders")
    log.create_topic("orders", 1)
    append(log, b"new 0", b"new 1", b"new 2", b"new 3")
    assert consume(2) == [b"new 2", b"new 3"]
