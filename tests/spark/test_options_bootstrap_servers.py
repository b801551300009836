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
def _nothing_known() -> None:
    roots.reset()


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
    assert "kafka.bootstrap.servers has no effect: path names the root" in caplog.text


def test_a_process_that_knows_the_root_goes_on_without_the_broker(
    log: sparklog.SparkLog, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        roots.root_of_broker(server)
    assert roots.root_of_broker(server) == log.url
    assert "continuing with its root" in caplog.text
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


# --- a broker that nobody trusts ---------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> sparklog.SparkLog:
    return sparklog.open(tmp_path / "elsewhere" / "other")


@pytest.mark.parametrize("named_by", ["path", "broker"])
def test_a_root_outside_the_allowed_ones_is_refused_on_either_side(
    log: sparklog.SparkLog, other: sparklog.SparkLog, tmp_path: Path, named_by: str
) -> None:
    with fake_broker(broker_of(other.url, other.cluster_id)) as server:
        given = {"path": other.url} if named_by == "path" else {"kafka.bootstrap.servers": server}
        for allowed, is_allowed in ((log.url, False), (f"{log.url},{tmp_path}/elsewhere", True)):
            sides = (
                lambda given: parse_source_options({**given, "subscribe": "t"}, streaming=True),
                lambda given: parse_sink_options(given, streaming=False),
            )
            for parse in sides:
                options = {**given, "allowedRoots": allowed}
                if is_allowed:
                    assert parse(options).root == other.url
                    continue
                with pytest.raises(InvalidRequestError, match=r"ROOT_NOT_ALLOWED.*\(allowedRoots\)"):
                    parse(options)


def test_an_option_narrows_what_the_environment_allows_and_never_widens_it(
    log: sparklog.SparkLog, other: sparklog.SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"{tmp_path}/elsewhere")
    for allowed in ("/", str(tmp_path), log.url):
        with pytest.raises(InvalidRequestError, match=r"ROOT_NOT_ALLOWED"):
            parse_sink_options({"path": log.url, "allowedRoots": allowed}, streaming=False)
    assert parse_sink_options({"path": other.url, "allowedRoots": "/"}, streaming=False).root == other.url
    with pytest.raises(InvalidRequestError, match=r"ROOT_NOT_ALLOWED.*\(allowedRoots\)"):
        parse_sink_options({"path": other.url, "allowedRoots": log.url}, streaming=False)


def test_what_the_drivers_environment_allows_goes_with_the_query(
    log: sparklog.SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", str(tmp_path))
    parsed = parse_sink_options({"path": log.url}, streaming=False)
    monkeypatch.delenv("SPARKLOG_ALLOWED_ROOTS")
    assert roots.open_root(log.url, create=False, rules=parsed.rules).cluster_id == log.cluster_id
    with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"):
        roots.open_root("/", create=True, rules=parsed.rules)


def test_the_rules_hold_for_what_a_broker_said_before_it_went(log: sparklog.SparkLog, tmp_path: Path) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        roots.root_of_broker(server)
    given = {"kafka.bootstrap.servers": server}
    assert parse_sink_options({**given, "clusterId": log.cluster_id}, streaming=True).root == log.url
    with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"):
        parse_sink_options({**given, "allowedRoots": f"{tmp_path}/elsewhere"}, streaming=True)
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
        parse_sink_options({**given, "clusterId": "x" * 22}, streaming=True)


@pytest.mark.parametrize("first", [True, False])
def test_the_cluster_id_is_looked_at_with_every_use_of_a_root(
    log: sparklog.SparkLog, tmp_path: Path, first: bool
) -> None:
    """A process keeps roots open, and queries with other expectations share them."""
    if not first:
        roots.open_root(log.url, create=False)
    meant = parse_sink_options({"path": log.url, "clusterId": "x" * 22}, streaming=False).rules
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
            roots.open_root(log.url, create=True, rules=meant)
    rules = parse_sink_options({"path": log.url, "clusterId": log.cluster_id}, streaming=False).rules
    assert roots.open_root(log.url, create=True, rules=rules).cluster_id == log.cluster_id
    (tmp_path / "log").rename(tmp_path / "gone")
    with pytest.raises(sparklog.SparklogError, match="ROOT_NOT_FOUND"):
        roots.open_root(log.url, create=True, rules=rules)


def test_a_link_that_is_turned_elsewhere_is_noticed(
    log: sparklog.SparkLog, other: sparklog.SparkLog, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "log")
    options = {"path": str(link), "subscribe": "t", "allowedRoots": log.url}
    rules = parse_source_options(options, streaming=True).rules
    roots.open_root(str(link), create=False, rules=rules)
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere" / "other")
    with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"):
        roots.open_root(str(link), create=False, rules=rules)
