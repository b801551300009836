"""DescribeProducers: who has written to a partition of late."""

import pytest

from sparklog.clock import SystemClock
from tests.server.api.transacting import DESCRIBE_PRODUCERS, TransactionClient
from tests.server.publish.batches import batch

BROKER_TOPICS = {"orders": 2, "returns": 1}


def test_producers_of_a_partition_are_described(transactor: TransactionClient) -> None:
    producer_id = transactor.init_producer_id().producer_id
    data = batch([b"a", b"b"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    (made,) = transactor.produce(("orders", 0, data))
    assert made.error_code.name == "none"
    topics = [
        {"_": "TopicRequest", "name": "orders", "partition_indexes": [0, 1, 2, 0]},
        {"_": "TopicRequest", "name": "none", "partition_indexes": [0]},
    ]
    known, unknown = transactor.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    assert [one.error_code.name for one in known.partitions] == ["none", "none", "unknown_topic_or_partition"]
    assert [one.error_code.name for one in unknown.partitions] == ["unknown_topic_or_partition"]
    ((found,), nobody, _) = [one.active_producers for one in known.partitions]
    assert nobody == ()
    assert (found.producer_id, found.producer_epoch, found.last_sequence) == (producer_id, 0, 1)
    assert found.last_timestamp > 1_600_000_000_000
    assert (found.coordinator_epoch, found.current_txn_start_offset) == (-1, -1)


def test_what_would_make_an_answer_too_large_is_refused(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog_server.protocol.wire.MAX_ANSWER_BYTES", 300)
    topics = [{"_": "TopicRequest", "name": "orders", "partition_indexes": [0, 1]}]
    (found,) = transactor.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    assert [one.error_code.name for one in found.partitions] == ["none", "unknown_server_error"]


def test_no_more_producers_are_described_than_a_request_may_take(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """90,000 took a second of CPU."""
    monkeypatch.setattr("sparklog_server.api.transaction_listing.MAX_PRODUCERS", 4)
    for _ in range(3):
        producer_id = transactor.init_producer_id().producer_id
        data = batch([b"a"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        transactor.produce(*((topic, number, data) for topic, number in (("orders", 0), ("orders", 1))))
    last = transactor.init_producer_id().producer_id
    transactor.produce(("returns", 0, batch([b"a"], producer_id=last, producer_epoch=0, base_sequence=0)))
    topics = [
        {"_": "TopicRequest", "name": "orders", "partition_indexes": [0, 1]},
        {"_": "TopicRequest", "name": "returns", "partition_indexes": [0]},
    ]
    orders, returns = transactor.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    assert [one.error_code.name for one in orders.partitions] == ["none", "unknown_server_error"]
    assert [len(one.active_producers) for one in orders.partitions] == [3, 0]
    assert [one.producer_id for one in returns.partitions[0].active_producers] == [last]


def test_the_time_of_a_producer_is_that_of_its_last_batch(transactor: TransactionClient) -> None:
    now_ms = SystemClock().now_ms()
    first, second = (transactor.init_producer_id().producer_id for _ in range(2))
    for number in range(40):  # more than are kept as they come
        producer_id, sequence = ((first, number), (second, number - 20))[number >= 20]
        data = batch(
            [b"a"],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            timestamps=[now_ms - 1000 * number],
        )
        (made,) = transactor.produce(("orders", 0, data))
        assert made.error_code.name == "none"
    topics = [{"_": "TopicRequest", "name": "orders", "partition_indexes": [0]}]
    (found,) = transactor.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    told = {one.producer_id: one.last_timestamp for one in found.partitions[0].active_producers}
    assert told == {first: now_ms - 19_000, second: now_ms - 39_000}
