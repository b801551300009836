"""AddPartitionsToTxn in every version."""

import pytest

from tests.server.api.transacting import TransactionClient, producer_of

BROKER_TOPICS = {"orders": 2, "returns": 1}


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_all_or_none(transactor: TransactionClient, version: int) -> None:
    producer = producer_of(transactor.initialise())
    asked = (("orders", 0), ("orders", 7), ("__consumer_offsets", 0), ("none", 0))
    assert transactor.add(producer, *asked, version=version) == [
        "operation_not_attempted",
        "unknown_topic_or_partition",
        "topic_authorization_failed",
        "unknown_topic_or_partition",
    ]
    assert transactor.listed() == {"app": (producer[0], "Empty")}
    assert transactor.add(producer, ("orders", 0), ("returns", 0), version=version) == ["none", "none"]
    assert transactor.listed() == {"app": (producer[0], "Ongoing")}


@pytest.mark.parametrize("version", range(4))
def test_an_older_producer_is_fenced(transactor: TransactionClient, version: int) -> None:
    old = producer_of(transactor.initialise())
    transactor.initialise()
    error = "producer_fenced" if version >= 2 else "invalid_producer_epoch"
    assert transactor.add(old, ("orders", 0), version=version) == [error]
    assert transactor.add((5, 0), ("orders", 0), version=version) == ["invalid_producer_id_mapping"]
