"""kafka.bootstrap.servers instead of a path: the broker's root is what the options hold from then on."""

import dataclasses
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.spark import roots
from sparklog.spark.options import parse_sink_options, parse_source_options
from tests.client.fake_broker import broker_of, fake_broker


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    return sparklog.open(tmp_path / "log")


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_told", {})


@pytest.mark.parametrize("streaming", [True, False])
def test_the_option_alone_is_enough(log: sparklog.SparkLog, streaming: bool) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        given = {"kafka.bootstrap.servers": server}
        source = parse_source_options({**given, "subscribe": "t"}, streaming=streaming)
        sink = parse_sink_options(given, streaming=streaming)
    assert source.root == sink.root == log.url
    told = f"{dataclasses.asdict(source)} {dataclasses.asdict(sink)}"
    assert server not in told, "executors go to the storage, not to the broker"


def test_a_path_wins_and_nobody_is_asked(log: sparklog.SparkLog, caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "path": log.url}
    assert parse_sink_options(given, streaming=False).root == log.url
    assert "kafka.bootstrap.servers has no effect: the root is named by path" in caplog.text


def test_a_process_that_knows_the_root_goes_on_without_the_broker(
    log: sparklog.SparkLog, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        roots.root_of_broker(server)
    assert roots.root_of_broker(server) == log.url
    assert "going on with its root" in caplog.text
    with pytest.raises(RetriableError, match="BROKER_UNREACHABLE"):
        roots.root_of_broker(f"{server},{server}")  # never asked before


def test_a_broker_that_answers_otherwise_now_is_believed(log: sparklog.SparkLog, tmp_path: Path) -> None:
    other = sparklog.open(tmp_path / "other")
    answers = [broker_of(log.url, log.cluster_id), broker_of(other.url, other.cluster_id)]
    with fake_broker(lambda key: answers[0](key)) as server:
        assert roots.root_of_broker(server) == log.url
        del answers[0]
        assert roots.root_of_broker(server) == other.url


def test_apache_kafka_is_refused_with_its_own_format(log: sparklog.SparkLog) -> None:
    with (
        fake_broker(broker_of("/var/lib/kafka", log.cluster_id)) as server,
        pytest.raises(InvalidRequestError, match="NOT_A_SPARKLOG_BROKER"),
    ):
        parse_sink_options({"kafka.bootstrap.servers": server}, streaming=True)
