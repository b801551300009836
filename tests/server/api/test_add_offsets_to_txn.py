"""AddOffsetsToTxn in every version."""

import pytest

from sparklog.metadata.model import transactions
from tests.server.api.transacting import TransactionClient, producer_of

BROKER_TOPICS = {"orders": 1}


@pytest.mark.parametrize("version", range(5))
def test_a_group_opens_a_transaction(transactor: TransactionClient, version: int) -> None:
    producer = producer_of(transactor.initialise())
    for _ in range(2):
        assert transactor.add_offsets(producer, version=version) == "none"
    assert transactor.listed() == {"app": (producer[0], "Ongoing")}


@pytest.mark.parametrize("version", range(5))
def test_an_older_producer_is_fenced(transactor: TransactionClient, version: int) -> None:
    old = producer_of(transactor.initialise())
    transactor.initialise()
    error = "producer_fenced" if version >= 2 else "invalid_producer_epoch"
    assert transactor.add_offsets(old, version=version) == error
    assert transactor.add_offsets((5, 0), version=version) == "invalid_producer_id_mapping"


def test_where_the_root_has_no_room_the_producer_asks_again(
    transactor: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's ends at what it does not expect here."""
    producer = producer_of(transactor.initialise())
    with monkeypatch.context() as full:
        full.setattr(transactions, "MAX_ROOT_WEIGHT", 0)
        assert transactor.add_offsets(producer) == "coordinator_not_available"
        assert transactor.add(producer, ("orders", 0)) == ["coordinator_not_available"]
    assert transactor.add_offsets(producer) == "none"
    assert transactor.add(producer, ("orders", 0)) == ["none"]
