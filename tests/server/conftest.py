"""Fixtures for the broker's tests: a broker in a background thread, one as a process, clients of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.clock import Clock
from tests.support.broker_process import BrokerProcess
from tests.support.running_broker import RunningBroker
from tests.support.sasl_client import USERS, add_users
from tests.support.wire_client import WireClient


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers with settings: start_broker({"num.partitions": "3"}, root=...)."""
    started: list[RunningBroker] = []

    def start(
        configs: dict[str, str] | None = None, *, root: str | None = None, clock: Clock | None = None
    ) -> RunningBroker:
        started.append(RunningBroker(root or str(tmp_path / "log"), configs, clock))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def running_broker(
    start_broker: Callable[..., RunningBroker], tmp_path: Path, request: pytest.FixtureRequest
) -> RunningBroker:
    """A broker in a background thread: with BROKER_SETTINGS of the test's module, over a root with its
    BROKER_TOPICS (partitions by name), if it has any.
    """
    topics: dict[str, int] = getattr(request.module, "BROKER_TOPICS", {})
    if topics:
        with sparklog.open(str(tmp_path / "log")) as log:
            for name, partitions in topics.items():
                log.create_topic(name, partitions)
    return start_broker(getattr(request.module, "BROKER_SETTINGS", None))


@pytest.fixture
def connect() -> Iterator[Callable[[RunningBroker | BrokerProcess], WireClient]]:
    """Connect clients."""
    clients: list[WireClient] = []

    def connect_to(broker: RunningBroker | BrokerProcess) -> WireClient:
        clients.append(WireClient(broker.host, broker.port))
        return clients[-1]

    yield connect_to
    for client in clients:
        client.close()


@pytest.fixture
def root_with_users(tmp_path: Path) -> str:
    """A root with the users of tests/support/sasl_client.py."""
    path = str(tmp_path / "log")
    with sparklog.open(path) as log:
        add_users(log, USERS)
    return path


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start broker processes: start_process("--override", "num.partitions=3", root=...)."""
    started: list[BrokerProcess] = []

    def start(*words: str, root: str | None = None, env: dict[str, str] | None = None) -> BrokerProcess:
        started.append(BrokerProcess(root or str(tmp_path / "log"), None, *words, env=env))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def broker_process(start_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker with default settings as a process."""
    return start_process()


@pytest.fixture
def asker(running_broker: RunningBroker, connect: Callable[[RunningBroker], WireClient]) -> WireClient:
    """A connection to the running broker."""
    return connect(running_broker)
