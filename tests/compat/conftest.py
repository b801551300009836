"""One broker process per module of test_broker_*.py, a topic per test, and three clients."""

import itertools
from collections.abc import Callable, Iterator

import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.clients import CLIENTS, Client
from tests.support.broker_process import BrokerProcess, serving

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """kafka-python deprecates parts of itself that it uses itself."""
    for item in items:
        if item.path.name.startswith("test_broker_"):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess]:
    """A broker as a process; SETTINGS of the test's module are its settings."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    with serving(tmp_path_factory.mktemp("broker") / "log", settings) as one:
        yield one
        assert one.process.poll() is None, f"the broker ended by itself\n{one.errors()}"
        assert one.stop() == 0, one.errors()
    # (a failed assertion above still ends the process: serving closes it)


@pytest.fixture(scope="module")
def log(server: BrokerProcess) -> Iterator[SparkLog]:
    """The broker's root, embedded in this process."""
    with sparklog.open(str(server.root), create=False) as log:
        yield log


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    one: Client = request.param
    return one


@pytest.fixture
def new_topic(log: SparkLog) -> Callable[..., str]:
    """Create a topic of one's own: new_topic(3, {"max.message.bytes": "1000"})."""

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        log.create_topic(name, partitions, configs)
        return name

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """A topic of one partition."""
    return new_topic()
