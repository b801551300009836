"""A broker process on an S3 root: three clients, a kill, a store that is killed, writers beside it."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.clients import Client, Confluent, ProduceOptions, Sent
from tests.compat.embedded import stored_records
from tests.seaweed import SeaweedServer
from tests.support.broker_process import BrokerProcess, serving

COUNT = 300
# The clients' own: sockets left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka"),
]


@pytest.fixture
def broker(s3_root: str) -> Iterator[BrokerProcess]:
    """A broker of its own, on a root of its own; credentials come from the environment."""
    with serving(s3_root, {"group.initial.rebalance.delay.ms": "0"}) as one:
        yield one


@pytest.fixture
def beside(broker: BrokerProcess) -> Iterator[SparkLog]:
    """The same root, embedded in this process."""
    with sparklog.open(str(broker.root), create=False) as log:
        yield log


def values(first: int, count: int = COUNT) -> list[bytes]:
    return [b"%06d/" % number + bytes(100) for number in range(first, first + count)]


def produce(client: Client, broker: BrokerProcess, first: int) -> list[tuple[int, int]]:
    records = [Sent(value=value, partition=0) for value in values(first)]
    return client.produce(broker.bootstrap, "t", records, ProduceOptions(compression="gzip"))


@pytest.mark.sampled(1)
def test_clients_and_an_embedded_writer_share_the_log(
    client: Client, broker: BrokerProcess, beside: SparkLog
) -> None:
    beside.create_topic("t", 1)
    assert produce(client, broker, 0) == [(0, offset) for offset in range(COUNT)]
    beside.append("t", pa.table({"value": values(COUNT)}), partition=0)
    seen = client.consume(broker.bootstrap, "t", 0, "earliest", 2 * COUNT)
    assert [one.value for one in seen] == values(0, 2 * COUNT)
    assert [one.offset for one in seen] == list(range(2 * COUNT))


@pytest.mark.sampled(1)
def test_what_was_acknowledged_is_there_when_the_broker_was_killed(
    client: Client, broker: BrokerProcess, beside: SparkLog
) -> None:
    beside.create_topic("t", 1)
    produce(client, broker, 0)
    assert len(client.consume_group(broker.bootstrap, "t", "g", COUNT)) == COUNT
    broker.kill()
    beside.refresh(force=True)
    assert beside.committed_offsets("g") == {("t", 0): COUNT}
    broker.start()
    assert client.committed(broker.bootstrap, "t", "g", 0) == COUNT
    assert produce(client, broker, COUNT) == [(0, COUNT + offset) for offset in range(COUNT)]
    # Not as the group: that its last member left may not have been stored when the broker was killed.
    seen = client.consume(broker.bootstrap, "t", 0, COUNT, COUNT)
    assert [one.value for one in seen] == values(COUNT)
    beside.refresh(force=True)
    assert [one.value for one in stored_records(beside, "t", 0)] == values(0, 2 * COUNT)


def test_the_broker_outlives_a_store_that_is_killed_and_comes_back(
    broker: BrokerProcess, beside: SparkLog, s3_server: SeaweedServer
) -> None:
    client = Confluent()
    beside.create_topic("t", 1)
    produce(client, broker, 0)
    s3_server.restart(kill=True)
    assert produce(client, broker, COUNT) == [(0, COUNT + offset) for offset in range(COUNT)]
    assert broker.process.poll() is None, broker.errors()
    assert broker.stop() == 0, broker.errors()
    beside.refresh(force=True)
    assert [one.value for one in stored_records(beside, "t", 0)] == values(0, 2 * COUNT)


def test_an_s3_store_with_wrong_credentials_is_named_when_the_broker_starts(
    s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(RuntimeError, match=r"cannot start: .*s3://") as caught, serving(s3_root):
        pass
    assert "not-the-secret" not in str(caught.value)
