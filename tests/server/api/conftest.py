"""A broker's log as the embedded client sees it; and fixtures of fetching, for the APIs that read."""

import pytest

import sparklog
from tests.server.fetch.conftest import broker, client, stored, talk
from tests.support.running_broker import RunningBroker

__all__ = ["broker", "client", "stored", "talk"]


@pytest.fixture
def log(running_broker: RunningBroker) -> sparklog.SparkLog:
    """The same root, opened beside the broker."""
    return running_broker.beside()
