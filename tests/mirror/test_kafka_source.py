"""confluent-kafka as a source, against a real broker in this process."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

import sparklog
from sparklog.errors import DataLossError, InvalidRequestError, RetriableError
from sparklog.mirror.kafka_source import KafkaSource
from sparklog.mirror.source import Fetched
from tests.support.ports import reserved_port
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.slow
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(str(tmp_path_factory.mktemp("source") / "log"))
    with broker.beside() as log:
        log.create_topic("a", 2, {"retention.ms": "-1"})
        log.create_topic("b", 1)
        log.append(
            "a", pa.table({"key": ["k", None], "value": ["v", None], "timestamp": [7, 8]}), partition=1
        )
        headers = pa.array([[("h", b"1"), ("n", None)], None, []], HEADERS)
        log.append("b", pa.table({"value": ["x", "y", "z"], "headers": headers}))
        log.commit_offsets("app", {("a", 1): 1})
    broker.settle()
    yield broker
    broker.stop()


@pytest.fixture
def source(broker: RunningBroker) -> Iterator[KafkaSource]:
    source = KafkaSource(broker.bootstrap, {}, timeout_s=30)
    yield source
    source.close()


def fetch_all(source: KafkaSource, ends: int) -> list[Fetched]:
    """Fetch until so many partitions have reached their ends."""
    found: list[Fetched] = []
    while sum(len(one.reached) for one in found) < ends:
        found.append(source.fetch(0.2))
    return found


def test_it_says_what_there_is(source: KafkaSource, broker: RunningBroker) -> None:
    with sparklog.open(broker.root) as log:
        assert source.cluster_id == log.cluster_id
        topic_id = log.image.topic("a").topic_id
    topics = source.topics()
    assert {name: topic.partitions for name, topic in topics.items()} == {"a": 2, "b": 1}
    first, second = source.with_configs(list(topics.values()))
    assert (first.topic_id, first.configs, second.configs) == (topic_id, {"retention.ms": "-1"}, {})
    assert source.ranges([("a", 0), ("a", 1), ("b", 0)]) == {
        ("a", 0): (0, 0),
        ("a", 1): (0, 2),
        ("b", 0): (0, 3),
    }
    assert source.group_offsets() == {"app": {("a", 1): 1}}


def test_ids_of_topics_that_are_gone_are_left_out(source: KafkaSource, broker: RunningBroker) -> None:
    with sparklog.open(broker.root) as log:
        topic_id = log.image.topic("a").topic_id
    assert source.topic_ids(["a", "gone"]) == {"a": topic_id}
    assert source.topic_ids([]) == {}


def test_records_come_with_all_fields(source: KafkaSource) -> None:
    source.assign({("a", 0): 0, ("a", 1): 0, ("b", 0): 1})
    found = fetch_all(source, 3)
    reached = {at: end for one in found for at, end in one.reached.items()}
    assert reached == {("a", 0): 0, ("a", 1): 2, ("b", 0): 3}
    rows = [row for one in found if one.rows is not None for row in one.rows.to_pylist()]
    of_a = [row for row in rows if row["topic"] == "a"]
    assert [(row["partition"], row["key"], row["value"], row["timestamp"]) for row in of_a] == [
        (1, b"k", b"v", 7),
        (1, None, None, 8),
    ]
    assert [row["value"] for row in rows if row["topic"] == "b"] == [b"y", b"z"]
    offsets: dict[tuple[str, int], list[int]] = {at: [] for at in reached}
    for one in found:
        for at, some in one.offsets.items():
            offsets[at] += some.tolist()
    assert offsets == {("a", 0): [], ("a", 1): [0, 1], ("b", 0): [1, 2]}


def test_headers(source: KafkaSource) -> None:
    source.assign({("b", 0): 0})
    rows = [row for one in fetch_all(source, 1) if one.rows is not None for row in one.rows.to_pylist()]
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
        None,
        None,
    ]


def test_paused_partitions_send_nothing(source: KafkaSource) -> None:
    source.assign({("a", 1): 0, ("b", 0): 0})
    source.pause([("a", 1)])
    found = fetch_all(source, 1)
    assert {at for one in found for at in (*one.offsets, *one.reached)} == {("b", 0)}
    source.assign({("a", 1): 1})
    assert [some.tolist() for one in fetch_all(source, 1) for some in one.offsets.values()] == [[1]]


def test_a_position_outside_is_an_error(source: KafkaSource) -> None:
    source.assign({("b", 0): 100})
    with pytest.raises(DataLossError, match="b-0: the next offset to copy is outside"):
        fetch_all(source, 1)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"isolation.level": "read_uncommitted"}, "isolation.level: the mirror sets it itself"),
        ({"sasl.jaas.config": "password=hunter2"}, "sasl.jaas.config"),
        ({"ssl.key.password": "hunter2", "security.protocol": "hunter2"}, r"\*\*\*"),
    ],
)
def test_wrong_properties_are_named(properties: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        KafkaSource("127.0.0.1:1", properties)
    assert "hunter2" not in str(caught.value)


def test_nobody_there() -> None:
    words = r"SOURCE_UNREACHABLE.*127.0.0.1.*refused"
    with reserved_port() as taken, pytest.raises(RetriableError, match=words):
        KafkaSource(f"127.0.0.1:{taken.getsockname()[1]}", {}, timeout_s=1)


def test_an_interrupt_ends_the_wait_for_a_source_that_does_not_answer() -> None:
    """librdkafka waits in C, where Python runs no handler of a signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def interrupt() -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

            silent = threading.Thread(target=interrupt)
            silent.start()
            started_s = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                KafkaSource(f"127.0.0.1:{server.getsockname()[1]}", {}, timeout_s=20)
            assert time.monotonic() - started_s < 15
            silent.join()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("code", "is_skipped"), [("UNKNOWN_TOPIC_OR_PART", True), ("TOPIC_AUTHORIZATION_FAILED", False)]
)
def test_group_offsets_that_cannot_be_read_are_named(
    source: KafkaSource, monkeypatch: pytest.MonkeyPatch, code: str, is_skipped: bool
) -> None:
    """No broker of ours answers so: partitions that are left out would go unnoticed."""

    def answers(_admin: object, requests: list[Any]) -> dict[Any, Any]:
        error = KafkaError(getattr(KafkaError, code))
        at = SimpleNamespace(topic="a", partition=0, offset=-1, error=error)
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(topic_partitions=[at]))
        return {request.group_id: future for request in requests}

    monkeypatch.setattr(AdminClient, "list_consumer_group_offsets", answers)
    if is_skipped:
        assert source.group_offsets() == {}
        return
    with pytest.raises(RetriableError, match=r"SOURCE_FAILED.*group app, a-0: "):
        source.group_offsets()
