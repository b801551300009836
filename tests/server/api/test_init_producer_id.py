"""InitProducerId in every version, of producers without a transactional id (tests/server/transactions)."""

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from tests.server.publish.asking import ProducingClient
from tests.support.running_broker import RunningBroker


@pytest.fixture
def client(running_broker: RunningBroker) -> Iterator[ProducingClient]:
    with ProducingClient(running_broker.host, running_broker.port) as client:
        yield client


@pytest.mark.parametrize("version", range(6))
def test_producer_ids(client: ProducingClient, version: int) -> None:
    found = [client.init_producer_id(version) for _ in range(3)]
    assert [(one.error_code, one.producer_id, one.producer_epoch) for one in found] == [
        (ErrorCode.none, number, 0) for number in range(3)
    ]


def test_init_producer_id_refuses(client: ProducingClient) -> None:
    assert client.init_producer_id(transactional_id="").error_code is ErrorCode.invalid_request
    assert client.init_producer_id(3, producer_id=5).error_code is ErrorCode.invalid_request
    assert client.init_producer_id(3, producer_epoch=5).error_code is ErrorCode.invalid_request
    # As Kafka: without a transactional id any producer gets a new id, whatever it had.
    assert client.init_producer_id(3, producer_id=77, producer_epoch=3).producer_id == 0
