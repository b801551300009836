"""Kafka's own tools against our broker: `make compat-peers`, never part of `make test`.

They are fetched into a cache outside the repository; what cannot be fetched is skipped, with the reason.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pytest

import sparklog
from benchmarks.peers import fetching
from benchmarks.peers.fetching import Jars, NotFetchedError
from benchmarks.peers.kafka_tools import run_tool
from sparklog.client import SparkLog
from sparklog.log.config import TRANSACTION_VERSION_KEY
from sparklog_server.protocol.apis import ApiKey
from tests.peers.transacting import Producer, franz_command, java_command
from tests.support.broker_process import BrokerProcess, serving, until
from tests.support.wire_client import WireClient

if os.environ.get("SPARKLOG_PEERS") != "1":
    collect_ignore_glob = ["test_*.py"]

_numbers = itertools.count(1)


def numbered(count: int, start: int = 0) -> pa.Table:
    """Rows whose values are numbers."""
    return pa.table({"value": pa.array([b"%d" % n for n in range(start, start + count)], pa.binary())})


class Tool(Protocol):
    """Runs a tool against the broker: tool("kafka-topics", "--list") -> what it printed."""

    def __call__(self, name: str, *words: str, stdin: str | None = None) -> str: ...


@pytest.fixture(scope="session")
def kafka_jars() -> Jars:
    try:
        return fetching.kafka()
    except NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka_application_jars() -> Jars:
    try:
        return fetching.kafka_applications()
    except NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def connector_jars() -> Jars:
    try:
        return fetching.connector()
    except NotFetchedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with serving(tmp_path_factory.mktemp("broker") / "log") as one:
        yield one
        assert one.process.poll() is None, f"the broker ended by itself\n{one.errors()}"
        errors = one.errors()
        assert "Traceback" not in errors, errors


@pytest.fixture(scope="module")
def log(server: BrokerProcess) -> Iterator[SparkLog]:
    """The broker's root, embedded in this process."""
    with sparklog.open(str(server.root), create=False) as log:
        yield log


@pytest.fixture
def tool(kafka_jars: Jars, server: BrokerProcess) -> Tool:
    def run(name: str, *words: str, stdin: str | None = None) -> str:
        return run_tool(kafka_jars, name, "--bootstrap-server", server.bootstrap, *words, stdin=stdin)

    return run


@pytest.fixture
def new_topic(log: SparkLog) -> Callable[..., str]:
    """Create a topic of one's own: new_topic(3, {"cleanup.policy": "compact"})."""

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        log.create_topic(name, partitions, configs)
        return name

    return create


# --- transactional producers of other clients ---------------------------------------------------------


@pytest.fixture(params=[1, 2], ids=["first-protocol", "second-protocol"])
def protocol(request: pytest.FixtureRequest, log: SparkLog, server: BrokerProcess) -> Iterator[int]:
    log.alter_root({TRANSACTION_VERSION_KEY: str(request.param)})
    until(lambda: _offered(server) == request.param, what="the broker has seen the setting")
    yield request.param
    log.alter_root({}, [TRANSACTION_VERSION_KEY])


def _offered(server: BrokerProcess) -> int:
    host, _, port = server.bootstrap.rpartition(":")
    with WireClient(host, int(port)) as client:
        answer = client.ask(ApiKey.API_VERSIONS, 4)
    return int({one.name: one.max_version_level for one in answer.finalized_features}["transaction.version"])


@pytest.fixture(scope="session")
def java_program(kafka_jars: Jars) -> list[str]:
    return java_command(kafka_jars)


@pytest.fixture(scope="session")
def franz_program() -> list[str]:
    return franz_command()


@pytest.fixture(params=["java", "franz"])
def start(
    request: pytest.FixtureRequest, server: BrokerProcess, protocol: int
) -> Iterator[Callable[..., tuple[Producer, str]]]:
    started: list[Producer] = []
    program: list[str] = request.getfixturevalue(f"{request.param}_program")

    def start_one(name: str | None = None, **settings: int) -> tuple[Producer, str]:
        name = name or f"{request.param}-{protocol}-{next(_numbers)}"
        started.append(Producer(program, server.bootstrap, name, **settings))
        return started[-1], name

    yield start_one
    for one in started:
        one.close()
