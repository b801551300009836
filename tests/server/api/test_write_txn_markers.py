"""WriteTxnMarkers: an administrator's abort, as Kafka's admin client asks for it."""

import pytest

from tests.server.api.transacting import TransactionClient, producer_of

BROKER_TOPICS = {"orders": 2, "returns": 1}


@pytest.mark.parametrize("version", [1, 2])
def test_an_abort_by_kafkas_admin_client(transactor: TransactionClient, version: int) -> None:
    producer = producer_of(transactor.initialise())
    transactor.add(producer, ("orders", 0), ("returns", 0))
    mark = transactor.mark
    assert mark(producer, ("orders", 0), commits=True, version=version) == ["invalid_request"]
    assert mark(producer, ("orders", 1), version=version) == ["invalid_txn_state"]
    assert mark((producer[0], 5), ("orders", 0), version=version) == ["invalid_producer_epoch"]
    assert mark(producer, ("none", 0), version=version) == ["unknown_topic_or_partition"]
    assert transactor.listed() == {"app": (producer[0], "Ongoing")}
    assert mark(producer, ("none", 0), ("orders", 0), version=version) == [
        "unknown_topic_or_partition",
        "none",
    ]
    assert transactor.listed() == {"app": (producer[0], "CompleteAbort")}
    assert mark(producer, ("orders", 0), version=version) == ["none"]
    assert transactor.end(producer, version=4)[0] == "producer_fenced"
