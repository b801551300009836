"""How a producer gets to its coordinator, and becomes the only one with its transactional id."""

import pytest

from tests.server.api.transacting import TransactionClient, producer_of
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

FIND, API_VERSIONS = 10, 18
FENCED, OLD_FENCED = "producer_fenced", "invalid_producer_epoch"


@pytest.mark.parametrize("version", range(6))
def test_each_initialisation_gets_the_next_epoch(transactor: TransactionClient, version: int) -> None:
    first = producer_of(transactor.initialise(version=version))
    assert first[1] == 0
    assert transactor.initialise(version=version) == ("none", first[0], 1)
    other = producer_of(transactor.initialise("other", version))
    assert other[0] != first[0]


@pytest.mark.parametrize(("version", "error"), [(3, OLD_FENCED), (4, FENCED), (5, FENCED)])
def test_a_fenced_producer_is_told_so_in_its_words(
    transactor: TransactionClient, version: int, error: str
) -> None:
    producer_id, epoch = producer_of(transactor.initialise())
    transactor.initialise()
    assert transactor.initialise(version=version, producer_id=producer_id, producer_epoch=epoch) == (
        error,
        -1,
        -1,
    )


def test_what_an_initialisation_may_not_say(transactor: TransactionClient) -> None:
    assert transactor.initialise("")[0] == "invalid_request"
    assert transactor.initialise(producer_id=5)[0] == "invalid_request"
    assert transactor.initialise("x" * 1025)[0] == "invalid_request"
    for timeout_ms in (0, 900_001):
        assert transactor.initialise(timeout_ms=timeout_ms)[0] == "invalid_transaction_timeout"


@pytest.mark.parametrize("version", range(1, 5))
def test_a_coordinator_of_transactions_is_found(
    transactor: TransactionClient, running_broker: RunningBroker, version: int
) -> None:
    if version < 4:
        found = transactor.ask(FIND, version, key="app", key_type=1)
    else:
        (found,) = transactor.ask(FIND, version, key_type=1, coordinator_keys=("app",)).coordinators
    assert (found.error_code.name, found.node_id) == ("none", 1)
    assert (found.host, found.port) == (running_broker.host, running_broker.port)


@pytest.mark.parametrize("version", [3, 4])
def test_the_second_protocol_is_offered_until_the_root_says_otherwise(
    transactor: TransactionClient, running_broker: RunningBroker, version: int
) -> None:
    assert offered(transactor, version) == 2
    with running_broker.beside() as log:
        log.alter_root({"sparklog.transaction.version": "1"})
    running_broker.settle()
    assert offered(transactor, version) == 1


def offered(client: WireClient, version: int) -> int | None:
    answer = client.ask(API_VERSIONS, version)
    assert answer.finalized_features_epoch >= 0
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    assert supported["transaction.version"] == (1, 2)
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    return finalized.get("transaction.version")
