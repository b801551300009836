"""Produce of batches in transactions, over a socket; what opens and ends those is done beside the broker."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.client import SparkLog
from sparklog.metadata import TransactionPhase
from sparklog_server.protocol.responses import topic_uuid
from tests.server.api.producing import ONE, now_batch, sequenced
from tests.server.publish.asking import Part, ProducingClient
from tests.server.publish.batches import with_header
from tests.support.running_broker import RunningBroker
from tests.support.transactional_producer import TransactionalProducer

BROKER_TOPICS = {"orders": 3}
VERSIONS = range(3, 14)


class Client(ProducingClient):
    """Its requests are read after a look, as they are where there are several brokers."""

    broker: RunningBroker

    def send_produce(self, *parts: Part, version: int = 9, acks: int = -1, **fields: Any) -> int:
        """See ProducingClient."""
        self.broker.settle()
        return super().send_produce(*parts, version=version, acks=acks, **fields)


@pytest.fixture
def client(running_broker: RunningBroker) -> Iterator[ProducingClient]:
    running_broker.settle()
    with Client(running_broker.host, running_broker.port) as client:
        client.broker = running_broker
        yield client


@pytest.fixture
def producer(client: ProducingClient, log: SparkLog) -> TransactionalProducer:
    """Its commits are not shown to the broker."""
    return TransactionalProducer(log).begin()


def of(producer: TransactionalProducer, sequence: int = 0, count: int = 2) -> bytes:
    return now_batch(
        [b"%d" % (sequence + n) for n in range(count)],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def read(log: SparkLog, partition: int = 0) -> list[bytes]:
    log.refresh()
    found: list[bytes] = log.read("orders", partition, 0).column("value").to_pylist()
    return found


def topic_in(log: SparkLog, version: int) -> object:
    return "orders" if version < 13 else topic_uuid(log.image.topic("orders").topic_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(
    client: ProducingClient, log: SparkLog, producer: TransactionalProducer, version: int
) -> None:
    """A batch has no offset before its transaction is committed; from version 12 on it opens that."""
    if version < 12:
        producer.add(0, 1)
    topic = topic_in(log, version)
    parts = [(topic, 0, of(producer)), (topic, 1, of(producer)), (topic, 0, of(producer))]
    responses = client.produce(*parts, version=version, transactional_id="app")  # type: ignore[arg-type]
    assert [(one.error_code, one.base_offset) for one in responses] == [(ErrorCode.none, -1)] * 3
    assert read(log) == []
    assert producer.known.phase is TransactionPhase.ONGOING
    assert producer.known.started_ms > 0
    producer.end(second=version >= 12)
    assert (read(log), read(log, 1)) == ([b"0", b"1"], [b"0", b"1"])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_not_added(client: ProducingClient, producer: TransactionalProducer, version: int) -> None:
    producer.add(1)
    topic = topic_in(producer.log, version)
    (response,) = client.produce((topic, 0, of(producer)), version=version, transactional_id="app")  # type: ignore[arg-type]
    expected = {11: ErrorCode.transaction_abortable, 12: ErrorCode.none, 13: ErrorCode.none}
    assert response.error_code is expected.get(version, ErrorCode.invalid_txn_state)


def test_who_may_not(client: ProducingClient, log: SparkLog, producer: TransactionalProducer) -> None:
    """Each is told, and harms nobody else in its request."""
    other = TransactionalProducer(log, "other").begin()
    fenced = dataclasses.replace(producer)
    producer.begin()
    producer.add(0, 1, 2)

    def code(records: bytes, transactional_id: str | None = "app", **fields: int) -> ErrorCode:
        (response,) = client.produce(("orders", 0, records), transactional_id=transactional_id, **fields)
        found: ErrorCode = response.error_code
        return found

    assert code(of(fenced)) is ErrorCode.invalid_producer_epoch
    assert code(of(other)) is ErrorCode.invalid_producer_id_mapping
    assert code(of(producer), "nobodys") is ErrorCode.invalid_producer_id_mapping
    assert code(of(producer), None) is ErrorCode.transactional_id_authorization_failed
    assert code(of(producer), "") is ErrorCode.invalid_request
    assert code(sequenced(producer.producer_id, 0, producer.epoch)) is ErrorCode.invalid_txn_state
    assert code(of(producer, 4)) is ErrorCode.none  # as in Kafka, any sequence may be the first
    assert code(of(producer, 8)) is ErrorCode.out_of_order_sequence_number
    marker = with_header(of(producer, 6), attributes=0x30)
    assert code(marker) is ErrorCode.invalid_record
    (plain,) = client.produce(("orders", 1, ONE), transactional_id="app")
    assert (plain.error_code, plain.base_offset) == (ErrorCode.none, 0)  # of no transaction, as in Kafka


def test_a_request_is_of_one_producer(
    client: ProducingClient, log: SparkLog, producer: TransactionalProducer
) -> None:
    other = TransactionalProducer(log, "other").begin()
    producer.add(0, 1)
    responses = client.produce(
        ("orders", 0, of(producer)), ("orders", 1, of(other)), ("orders", 2, ONE), transactional_id="app"
    )
    assert {one.error_code for one in responses} == {ErrorCode.invalid_producer_id_mapping}
    assert producer.known.staged_extents == 0


def test_one_partition_that_may_not_leaves_the_others_alone(
    client: ProducingClient, producer: TransactionalProducer
) -> None:
    producer.add(0, 2)
    parts = [("orders", number, of(producer)) for number in range(3)]
    responses = client.produce(*parts, transactional_id="app")
    assert [one.error_code.name for one in responses] == ["none", "invalid_txn_state", "none"]
    producer.end()
    assert [len(read(producer.log, number)) for number in range(3)] == [2, 0, 2]


def test_log_append_time_is_that_of_staging(
    client: ProducingClient, producer: TransactionalProducer, running_broker: RunningBroker
) -> None:
    producer.log.alter_topic("orders", {"message.timestamp.type": "LogAppendTime"})
    producer.add(0)
    running_broker.settle()
    (response,) = client.produce(("orders", 0, of(producer)), transactional_id="app")
    assert (response.error_code, response.base_offset) == (ErrorCode.none, -1)
    producer.end()
    producer.log.refresh()
    times = producer.log.read("orders", 0, 0).column("timestamp").to_pylist()
    assert set(times) == {response.log_append_time}
