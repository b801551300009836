"""DescribeProducers: who has written to a partition of late."""

import pytest

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
    monkeypatch.setattr("sparklog_server.protocol.answers.MAX_ANSWER_BYTES", 300)
    topics = [{"_": "TopicRequest", "name": "orders", "partition_indexes": [0, 1]}]
    (found,) = transactor.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    assert [one.error_code.name for one in found.partitions] == ["none", "unknown_server_error"]
