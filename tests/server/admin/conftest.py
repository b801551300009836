"""The log of the running broker, as the embedded client sees it."""

import pytest

import sparklog
from tests.support.running_broker import RunningBroker


@pytest.fixture
def log(running_broker: RunningBroker) -> sparklog.SparkLog:
    """The same root, opened beside the broker."""
    return running_broker.beside()
