"""librdkafka beside merging and the removal of what was merged: every record, once, in order."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from tests.support.broker_process import BrokerProcess
from tests.support.removing import merge, remove_dead

pytestmark = pytest.mark.usefixtures("server")
APPENDS, RECORDS = 60, 40
END = APPENDS * RECORDS


@pytest.fixture
def consumer(server: BrokerProcess, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """Fetches little at a time, and does not fetch ahead for long."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 20_000,
            "queued.min.messages": 1,
            "queued.max.messages.kbytes": 1,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    yield consumer
    consumer.close()


def value_of(offset: int) -> bytes:
    return b"%d " % offset * (300 // len(b"%d " % offset))


def consumed(consumer: confluent_kafka.Consumer, count: int) -> list[int]:
    """The offsets of the next records; the values are checked."""
    offsets: list[int] = []
    while len(offsets) < count:
        message = consumer.poll(20)
        assert message is not None, f"nothing after {len(offsets)} records"
        assert message.error() is None
        offset = message.offset()
        assert offset is not None
        assert message.value() == value_of(offset)
        offsets.append(offset)
    return offsets


@pytest.fixture
def filled(log: SparkLog, topic: str) -> SparkLog:
    """A segment for each append, with a batch that is too large to be put together with others."""
    for first in range(0, END, RECORDS):
        values = [value_of(offset) for offset in range(first, first + RECORDS)]
        log.append(topic, pa.table({"value": pa.array(values, pa.binary())}), partition=0)
        log.close()
    return log


def test_a_consumer_in_the_midst(consumer: confluent_kafka.Consumer, filled: SparkLog) -> None:
    found = consumed(consumer, 100)
    merge(filled)
    assert len(remove_dead(filled)) >= APPENDS
    assert found + consumed(consumer, END - 100) == [*range(END)]


def test_a_consumer_all_the_while(consumer: confluent_kafka.Consumer, filled: SparkLog) -> None:
    """Merged into larger and larger segments, and removed, while it reads."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(consumed, consumer, END)
        for turn in range(7):
            merge(filled, shared_bytes=0, target_bytes=25_000 << turn)
            remove_dead(filled)
        assert reading.result(60) == [*range(END)]
