"""One connection to a running broker, and its log as the embedded client sees it."""

from collections.abc import Callable

import pytest

import sparklog
from tests.server.admin.asking import Asker
from tests.server.conftest import RawClient, RunningBroker


@pytest.fixture
def asker(running_broker: RunningBroker, connect: Callable[[RunningBroker], RawClient]) -> Asker:
    return Asker(connect(running_broker))


@pytest.fixture
def log(running_broker: RunningBroker) -> sparklog.SparkLog:
    """The same root, opened beside the broker."""
    return sparklog.open(running_broker.root, create=False)
