"""The root behind a broker: found, or an error that says what is wrong and what to do."""

import contextlib
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparklog
from sparklog.client.brokers import AnswerReader, NotKafkaError, find_broker_root, read_cluster, read_log_dirs
from sparklog.errors import InvalidRequestError, RetriableError
from tests.client.fake_broker import broker_of, fake_broker, log_dirs, metadata


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    return sparklog.open(tmp_path / "root of a log")


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_a_broker_tells_its_root(log: sparklog.SparkLog) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        found = find_broker_root(f"  {server} ")
    assert (found.root, found.cluster_id, found.server) == (log.url, log.cluster_id, server)
    assert sparklog.open(found.root, create=False).cluster_id == log.cluster_id


def test_the_next_server_is_tried_when_one_does_not_answer(log: sparklog.SparkLog) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        servers = f"127.0.0.1:{unused_port()},PLAINTEXT://{server}"
        assert find_broker_root(servers).server == server


def test_nobody_answers() -> None:
    ports = unused_port(), unused_port()
    with pytest.raises(RetriableError, match="BROKER_UNREACHABLE") as caught:
        find_broker_root(",".join(f"127.0.0.1:{port}" for port in ports))
    assert all(f"127.0.0.1:{port}: Connection refused" in str(caught.value) for port in ports)
    assert "sparklog-server" in str(caught.value)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with fake_broker(metadata, silent=True) as server, pytest.raises(RetriableError, match="timed out"):  # type: ignore[arg-type]
        find_broker_root(server, timeout_ms=50)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "closed the connection"),
        (struct.pack(">i", 100) + b"short", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "does not speak Kafka's protocol"),  # a TLS alert
        (struct.pack(">ii", 4, 99), "correlation id 99, expected 1"),
        (struct.pack(">ii", 4, 1), "ends too early"),
        (struct.pack(">iii", 8, 1, 1 << 30), "an array of 1073741824 in 8 bytes"),
    ],
)
def test_a_server_that_is_not_kafka(raw: bytes, problem: str) -> None:
    with fake_broker(metadata, raw=raw) as server, pytest.raises(RetriableError) as caught:  # type: ignore[arg-type]
        find_broker_root(server, timeout_ms=5000)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("dirs", "problem"),
    [
        (("/var/lib/kafka/data",), "'/var/lib/kafka/data', which is no root of sparklog"),
        (("/data/0", "/data/1"), "Apache Kafka"),
        ((), "does not allow the request"),
    ],
)
def test_apache_kafka_is_told_apart(dirs: tuple[str, ...], problem: str) -> None:
    def kafka(key: int) -> bytes:
        return metadata("MkU3OEVBNTcwNTJENDM2Qg") if key == 3 else log_dirs(*dirs)

    with (
        fake_broker(kafka) as server,
        pytest.raises(InvalidRequestError, match="NOT_A_SPARKLOG_BROKER") as caught,
    ):
        find_broker_root(server)
    assert problem in str(caught.value)
    assert 'format("kafka")' in str(caught.value)


def test_a_broker_without_cluster_id(log: sparklog.SparkLog) -> None:
    with (
        fake_broker(broker_of(log.url, None)) as server,
        pytest.raises(InvalidRequestError, match="names no cluster id"),
    ):
        find_broker_root(server)


def test_a_root_that_this_machine_does_not_see(tmp_path: Path) -> None:
    with (
        fake_broker(broker_of((tmp_path / "elsewhere").as_uri(), "x" * 22)) as server,
        pytest.raises(InvalidRequestError, match="ROOT_NOT_VISIBLE") as caught,
    ):
        find_broker_root(server)
    assert "no such directory" in str(caught.value)
    assert "mount the broker's storage" in str(caught.value)


def test_a_directory_that_is_no_root_is_not_the_brokers(tmp_path: Path) -> None:
    with (
        fake_broker(broker_of(tmp_path.as_uri(), "x" * 22)) as server,
        pytest.raises(InvalidRequestError, match="ROOT_NOT_VISIBLE"),
    ):
        find_broker_root(server)


def test_another_log_under_the_same_path_is_not_used(log: sparklog.SparkLog) -> None:
    with (
        fake_broker(broker_of(log.url, "A" * 22)) as server,
        pytest.raises(InvalidRequestError, match="ROOT_NOT_VISIBLE") as caught,
    ):
        find_broker_root(server)
    assert f"another log: cluster {log.cluster_id}, not {'A' * 22}" in str(caught.value)


@pytest.mark.parametrize(
    "servers", ["", " , ", "host", "host:", ":9092", "host:0", "host:70000", "a:1,b", "h:9e2"]
)
def test_addresses_that_are_none(servers: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_OPTION"):
        find_broker_root(servers)


def test_an_ipv6_address_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def refused(address: tuple[str, int], timeout: float) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(RetriableError, match=r"\[::1\]:9092: .*b:1: "):
        find_broker_root("[::1]:9092, b:1")
    assert asked == [("::1", 9092), ("b", 1)]


@given(st.binary(max_size=64))
def test_hostile_answers_end_in_an_error_of_ours(body: bytes) -> None:
    for read in (read_cluster, read_log_dirs):
        with contextlib.suppress(NotKafkaError):
            read(AnswerReader(body))
