"""A broker with a topic, and somebody to ask it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.fetch.stored import StoredLog, stored_log
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredLog]:
    """Topic `events` with 3 partitions, written by another process than the broker, so to speak."""
    with stored_log(tmp_path / "log", partitions=3) as made:
        yield made


@pytest.fixture
def broker(stored: StoredLog, running_broker: RunningBroker) -> Iterator[RunningBroker]:
    """A broker over the same root; it knows at once what `stored` appends."""
    server = running_broker.broker

    stored.after_append = running_broker.settle
    yield running_broker
    # What the last answer lay in is given back after its bytes have arrived here.
    until(lambda: server.fetches.reader.segments.leases == 0, what="no segment is leased")


@pytest.fixture
def talk(broker: RunningBroker) -> Iterator[Callable[[], WireClient]]:
    """Open connections."""
    opened: list[WireClient] = []

    def connect() -> WireClient:
        opened.append(WireClient(broker.host, broker.port))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


@pytest.fixture
def client(talk: Callable[[], WireClient]) -> WireClient:
    return talk()
