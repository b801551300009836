"""A broker's log as the embedded client sees it; and fixtures of fetching, for the APIs that read."""

from collections.abc import Iterator

import pytest

import sparklog
from tests.server.api.transacting import TransactionClient
from tests.server.fetch.conftest import broker, client, stored, talk
from tests.support.running_broker import RunningBroker

__all__ = ["broker", "client", "stored", "talk"]


@pytest.fixture
def log(running_broker: RunningBroker) -> sparklog.SparkLog:
    """The same root, opened beside the broker."""
    return running_broker.beside()


@pytest.fixture
def transactor(running_broker: RunningBroker) -> Iterator[TransactionClient]:
    """A transactional producer's connection to the running broker."""
    with TransactionClient(running_broker.host, running_broker.port) as client:
        yield client
