"""AddOffsetsToTxn in every version."""

import pytest

from tests.server.api.transacting import TransactionClient, producer_of


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
