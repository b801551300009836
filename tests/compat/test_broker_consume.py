"""Real clients read what was appended without a broker: by assignment from every kind of start, by group,
with offsets that are committed, resumed, and seen by `sparklog`."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from kafka import TopicPartition

from sparklog.client import SparkLog
from tests.compat.clients import CLIENTS, AtTime, Client, KafkaPython, Seen, Start
from tests.support.broker_process import BrokerProcess, until

START_MS = 1_700_000_000_000
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}
pytestmark = pytest.mark.usefixtures("server")


def fill(
    log: SparkLog, topic: str, count: int = 30, *, first: int = 0, codec: str | None = None
) -> list[Seen]:
    """Append records, a second of time apart; returns what a consumer should see."""
    expected = [
        Seen(
            partition=0,
            offset=n,
            timestamp_ms=START_MS + 1000 * n,
            key=None if n % 3 == 0 else f"key-{n}".encode(),
            value=None if n % 7 == 1 else f"{topic}/{n}/".encode() * 10,
            headers=() if n % 2 else (("name", f"{n}".encode()), ("empty", b""), ("none", None)),
        )
        for n in range(first, first + count)
    ]
    rows = pa.table(
        {
            "key": pa.array([one.key for one in expected], pa.binary()),
            "value": pa.array([one.value for one in expected], pa.binary()),
            "timestamp": pa.array([one.timestamp_ms for one in expected], pa.int64()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in one.headers] for one in expected],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    log.append(topic, rows, partition=0, compression_type=codec)
    return expected


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_with_all_its_fields(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, codec: str
) -> None:
    expected = fill(log, topic, codec=codec)
    assert client.consume(server.bootstrap, topic, 0, "earliest", 30) == expected


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), (0, 0), (17, 17), (29, 29), (AtTime(START_MS + 8_500), 9), (AtTime(0), 0)],
    ids=str,
)
def test_every_kind_of_start(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, start: Start, first: int
) -> None:
    expected = fill(log, topic, 10) + fill(log, topic, 10, first=10) + fill(log, topic, 10, first=20)
    assert client.consume(server.bootstrap, topic, 0, start, 30 - first) == expected[first:]


def test_what_was_appended_elsewhere_is_known_at_once(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    consumer = KafkaPython().consumer(server.bootstrap)
    for _ in range(20):
        topic = new_topic()
        fill(log, topic, 2)
        tp = TopicPartition(topic, 0)
        assert consumer.end_offsets([tp]) == {tp: 2}
        fill(log, topic, 2)
        assert consumer.end_offsets([tp]) == {tp: 4}
    consumer.close()


def test_times_and_ends_are_looked_up(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    assert client.watermarks(server.bootstrap, topic, 0) == (0, 0)
    fill(log, topic, 10)
    assert client.watermarks(server.bootstrap, topic, 0) == (0, 10)
    assert client.offset_for_time(server.bootstrap, topic, 0, START_MS + 2_001) == 3
    assert client.offset_for_time(server.bootstrap, topic, 0, START_MS + 10_000) is None


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_isolation_levels_read_the_same_without_transactions(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str, isolation: str
) -> None:
    expected = fill(log, topic, 5)
    name = "isolation.level" if client.name == "confluent" else "isolation_level"
    assert client.consume(server.bootstrap, topic, 0, "earliest", 5, **{name: isolation}) == expected


def test_a_batch_larger_than_the_fetch_size_is_read(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    value = bytes(range(256)) * 2000
    log.append(topic, pa.table({"value": pa.array([value, value, b"end"], pa.binary())}))
    sizes = {
        "confluent": {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 2000, "message.max.bytes": 1000},
        "kafka-python": {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 2000},
        "aiokafka": {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 2000},
    }[client.name]
    seen = client.consume(server.bootstrap, topic, 0, "earliest", 3, **sizes)
    assert [one.value for one in seen] == [value, value, b"end"]


def test_a_group_resumes_where_it_committed(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    group = f"group-{client.name}-{topic}"
    expected = fill(log, topic, 20)
    assert client.consume_group(server.bootstrap, topic, group, 20) == expected
    assert client.committed(server.bootstrap, topic, group, 0) == 20
    assert log.committed_offsets(group) == {(topic, 0): 20}
    more = fill(log, topic, 5, first=20)
    assert client.consume_group(server.bootstrap, topic, group, 5) == more
    assert log.committed_offsets(group) == {(topic, 0): 25}


def test_offsets_committed_without_a_broker_are_resumed(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    group = f"embedded-{client.name}-{topic}"
    expected = fill(log, topic, 20)
    log.commit_offsets(group, {(topic, 0): 12})
    # The broker follows commits of others some milliseconds behind them.
    until(lambda: client.committed(server.bootstrap, topic, group, 0) == 12)
    assert client.consume_group(server.bootstrap, topic, group, 8) == expected[12:]


def test_one_client_resumes_where_another_stopped(
    client: Client, server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    expected = fill(log, topic, 10)
    other = CLIENTS[(CLIENTS.index(client) + 1) % len(CLIENTS)]
    group = f"handed-over-{client.name}"
    assert client.consume_group(server.bootstrap, topic, group, 10) == expected
    more = fill(log, topic, 10, first=10)
    assert other.consume_group(server.bootstrap, topic, group, 10) == more


def test_a_start_outside_the_log_is_told(
    client: Client, server: BrokerProcess, log: SparkLog, topic: str
) -> None:
    fill(log, topic, 3)
    with pytest.raises(Exception, match=r"(?i)out.?of.?range"):
        client.consume(server.bootstrap, topic, 0, 4, 1)
