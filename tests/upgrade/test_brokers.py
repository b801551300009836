"""Brokers of two versions over one root: one after the other under the same clients, and at the same time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.broker_process import until
from tests.upgrade.programs import BrokerOf, Programs

Start = Callable[..., BrokerOf]
TOPIC = "t"


@pytest.fixture
def new_client() -> Iterator[Callable[..., Any]]:
    """Make clients that are closed at the end."""
    consumers: list[Consumer] = []

    def make(kind: type, servers: str, **settings: Any) -> Any:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        made = kind({"bootstrap.servers": servers, "topic.metadata.refresh.interval.ms": 500, **named})
        if isinstance(made, Consumer):
            consumers.append(made)
        return made

    yield make
    for consumer in consumers:
        consumer.close()


def send(producer: Any, values: range) -> None:
    for value in values:
        producer.produce(TOPIC, str(value).encode(), key=b"k")
    assert producer.flush(60) == 0


def received(consumer: Any, count: int) -> list[int]:
    found: list[int] = []

    def one_more() -> bool:
        messages = consumer.consume(100, timeout=0.5)
        found.extend(int(message.value()) for message in messages if message.error() is None)
        return len(found) >= count

    until(one_more, 90, f"{count} records")
    return found


@pytest.mark.parametrize("gracefully", [True, False], ids=["stopped", "killed"])
def test_clients_go_on_while_the_broker_changes_to_and_fro(
    older: Programs, newer: Programs, start_broker: Start, new_client: Callable[..., Any], *, gracefully: bool
) -> None:
    broker = start_broker(older)
    producer = new_client(Producer, broker.bootstrap_servers, enable_idempotence=True)
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = new_client(Consumer, broker.bootstrap_servers, **settings)
    consumer.subscribe([TOPIC])
    for number, programs in enumerate((older, newer, older, newer)):
        if number:
            broker.become(programs, gracefully=gracefully)
        values = range(number * 100, number * 100 + 100)
        send(producer, values)
        assert received(consumer, 100) == list(values)
        consumer.commit(asynchronous=False)
    fresh = new_client(Consumer, broker.bootstrap_servers, **settings)
    (committed,) = fresh.committed([TopicPartition(TOPIC, 0)], timeout=60)
    assert committed.offset == 400


def test_a_transaction_is_begun_with_one_and_ended_with_the_other(
    before_and_after: tuple[Programs, Programs],
    start_broker: Start,
    new_client: Callable[..., Any],
    root: Path,
) -> None:
    before, after = before_and_after
    broker = start_broker(before)
    for first, ends in ((0, "commit_transaction"), (10, "abort_transaction"), (20, "commit_transaction")):
        producer = new_client(Producer, broker.bootstrap_servers, transactional_id="job")
        producer.init_transactions(60)
        producer.begin_transaction()
        send(producer, range(first, first + 10))
        broker.become(after)
        send(producer, range(first + 100, first + 110))
        getattr(producer, ends)(60)
        before, after = after, before
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = new_client(Consumer, broker.bootstrap_servers, **settings)
    consumer.subscribe([TOPIC])
    wanted = [*range(10), *range(100, 110), *range(20, 30), *range(120, 130)]
    assert received(consumer, 40) == wanted
    assert before.records(root, TOPIC) == after.records(root, TOPIC)


def test_brokers_of_both_share_a_cluster(
    older: Programs, newer: Programs, start_broker: Start, new_client: Callable[..., Any], root: Path
) -> None:
    older.sparklog(root, "topics", "create", "--topic", TOPIC, "--partitions", "4")
    brokers = [
        start_broker(programs, {"node.id": str(number), "broker.session.timeout.ms": "6000"})
        for number, programs in enumerate((older, newer), 1)
    ]
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    producer = new_client(Producer, servers, enable_idempotence=True)
    consumer = new_client(Consumer, servers, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe([TOPIC])
    found: list[int] = []
    for number, broker in enumerate((*brokers, None)):
        send(producer, range(number * 50, number * 50 + 50))
        found += received(consumer, 50)
        if broker is not None:  # the other one takes over what it led, and its groups
            with broker.killed():
                send(producer, range(1000 + number * 50, 1050 + number * 50))
                found += received(consumer, 50)
    assert sorted(found) == [*range(150), *range(1000, 1100)]
    assert older.records(root, TOPIC) == newer.records(root, TOPIC)
