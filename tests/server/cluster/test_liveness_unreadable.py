"""A node id that is started again while the heartbeat of its last process cannot be read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import FencedError, StorageError
from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import heartbeat_name
from sparklog_server.runtime.lifecycle import BrokerState
from tests.support.brokers import Brokers
from tests.support.running_broker import RunningBroker
from tests.support.told import Told

SESSION = {"broker_session_timeout_ms": "1000"}


@pytest.fixture
def brokers(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> Brokers:
    """Where no lock tells of the other process. The first one is alone: nobody else watches it."""
    found = Brokers(f"memory://{tmp_path.name}", start_broker)
    found.start(1, **SESSION)
    return found


class Damage:
    """Reads of the first broker's heartbeat fail: until it is written, or so many of them."""

    def __init__(self, brokers: Brokers, *, reads: int | None = None) -> None:
        self.written: list[str] = []
        self._left = reads
        store = brokers[1].broker.root.store
        assert isinstance(store, MemoryStore)
        store.hook = self._call

    def _call(self, operation: str, name: str) -> None:
        if name != heartbeat_name(1):
            return
        if operation == "put_hint":
            self.written.append(name)
        elif operation == "open_read" and (self._left or (self._left is None and not self.written)):
            self._left = None if self._left is None else self._left - 1
            raise StorageError("STORAGE_FAILED", "a damaged object", fix="replace it")


def replaced(told: Told) -> int:
    return sum("is replaced by one that says nothing" in text for text in told("sparklog_server"))


@pytest.mark.slow
def test_of_a_dead_process_it_is_replaced_and_watched(brokers: Brokers, told: Told) -> None:
    epoch = brokers[1].broker.membership.current().broker_epoch
    brokers.silence(1)
    Damage(brokers)
    brokers.start(1, **SESSION)
    assert brokers[1].broker.membership.is_registered
    assert brokers[1].broker.membership.current().broker_epoch > epoch
    assert replaced(told) <= 1  # none, where it was fenced before anybody asked for its object


@pytest.mark.parametrize("reads", [1, 3])
def test_of_a_living_one_it_is_written_again(reads: int, brokers: Brokers, told: Told) -> None:
    Damage(brokers, reads=reads)
    with pytest.raises(FencedError, match="DUPLICATE_BROKER"):
        brokers.start(1, **SESSION)
    assert brokers[1].broker.membership.is_registered
    assert brokers[1].broker.lifecycle.state is BrokerState.RUNNING
    assert replaced(told) == 1


@pytest.mark.slow
def test_where_it_stays_unreadable_nobodys_place_is_taken(brokers: Brokers, told: Told) -> None:
    """Of whom it is nothing is known, so that it may live."""
    Damage(brokers, reads=1 << 30)
    with pytest.raises(StorageError, match="a damaged object"):
        brokers.start(1, **SESSION, initial_broker_registration_timeout_ms="2000")
    assert brokers[1].broker.membership.is_registered
    assert brokers[1].broker.lifecycle.state is BrokerState.RUNNING
    assert replaced(told) == 1
