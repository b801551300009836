"""EndTxn in every version, and in both protocols."""

import pytest

from tests.server.api.transacting import TransactionClient, producer_of

BROKER_TOPICS = {"orders": 2, "returns": 1}


@pytest.mark.parametrize("version", range(5))
def test_the_first_protocol_keeps_the_epoch(transactor: TransactionClient, version: int) -> None:
    producer = producer_of(transactor.initialise())
    assert transactor.end(producer, version=version)[0] == "invalid_txn_state"
    assert transactor.add_offsets(producer, version=version) == "none"
    for _ in range(2):
        assert transactor.end(producer, version=version)[0] == "none"
    assert transactor.end(producer, commits=False, version=version)[0] == "invalid_txn_state"
    assert transactor.add(producer, ("orders", 0)) == ["none"]
    assert transactor.end(producer, commits=False, version=version)[0] == "none"
    assert transactor.listed() == {"app": (producer[0], "CompleteAbort")}


def test_the_second_protocol_tells_the_next_epoch(transactor: TransactionClient) -> None:
    first = producer_of(transactor.initialise())
    transactor.add(first, ("orders", 0))
    second = producer_of(transactor.end(first))
    assert second == (first[0], first[1] + 1)
    assert transactor.end(first) == ("none", *second)
    assert transactor.end(first, commits=False)[0] == "invalid_txn_state"
    assert transactor.end(second)[0] == "invalid_txn_state"
    assert transactor.end(second, commits=False) == ("none", second[0], second[1] + 1)


@pytest.mark.parametrize("version", range(6))
def test_an_older_producer_is_fenced(transactor: TransactionClient, version: int) -> None:
    old = producer_of(transactor.initialise())
    transactor.initialise()
    error = "producer_fenced" if version >= 2 else "invalid_producer_epoch"
    assert transactor.end(old, version=version) == (error, -1, -1)
    assert transactor.end((5, 0), version=version)[0] == "invalid_producer_id_mapping"
