"""`mirror`, from a broker in this process, and from a cluster in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.group_coordinators import GroupCoordinators
from sparklog.errors import DataLossError
from sparklog.mirror import kafka_source
from tests.cli.conftest import Run
from tests.mirror.clusters import Cluster
from tests.support.running_broker import RunningBroker

FROM = ("--from", "cluster:9092")


class Closable(Cluster):
    def close(self) -> None:
        """As KafkaSource."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Closable()
    made.add("orders", offsets=range(10))
    made.add("people", offsets=[3, 5], end=7)
    made.configs["orders"] = {"retention.ms": "-1", "follower.x": "*"}
    made.groups = {"app": {("orders", 0): 4, ("people", 0): 5}, "other": {("gone", 0): 1}}
    made.given = []  # type: ignore[attr-defined]

    def connect(servers: str, properties: dict[str, str], *, timeout_s: float) -> Cluster:
        made.given += [servers, properties, timeout_s]  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(kafka_source, "KafkaSource", connect)
    return made


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        yield log


def test_a_dry_run_makes_no_root(run: Run, cluster: Cluster, root: Path) -> None:
    assert cluster
    shown = run("mirror", *FROM, "--dry-run").stdout
    assert shown.split("\n") == [
        "TOPIC   PARTITIONS  STATE  OFFSETS-TO-COPY  SETTINGS         NOT-SET",
        "orders  1           new    10               retention.ms=-1  follower.x",
        "people  1           new    4                                 -",
        "GROUP  TOPIC   PARTITION  SOURCE-OFFSET  OFFSET  STATUS",
        "app    orders  0          4              -       planned",
        "app    people  0          5              -       planned",
        "",
    ]
    assert not root.exists()


def test_records_and_groups_are_copied(run: Run, cluster: Cluster, log: SparkLog) -> None:
    assert cluster
    result = run("mirror", *FROM)
    assert "12 records copied" in result.stderr
    assert "Topic orders: follower.x is not set" in result.stderr
    assert result.stdout.split("\n")[1:3] == [
        "app    orders  0          4              4       committed",
        "app    people  0          5              1       committed",
    ]
    assert log.committed_offsets("app") == {("orders", 0): 4, ("people", 0): 1}
    assert log.groups() == ["app"]


def test_groups_move_forward_only(run: Run, cluster: Cluster, log: SparkLog) -> None:
    run("mirror", *FROM)
    log.commit_offsets("app", {("orders", 0): 9, ("people", 0): 0})
    result = run("mirror", *FROM)
    assert cluster
    assert log.committed_offsets("app") == {("orders", 0): 9, ("people", 0): 1}
    assert [line.split()[-2:] for line in result.stdout.splitlines()[1:]] == [
        ["9", "kept"],
        ["1", "committed"],
    ]


def test_chosen_topics(run: Run, cluster: Cluster, log: SparkLog) -> None:
    assert cluster
    run("mirror", *FROM, "--pattern", "peo.*", "--skip-groups")
    assert log.topics() == ["people", "sparklog-mirror.cluster-1"]
    assert log.groups() == []
    run("mirror", *FROM, "orders", "-z", "zstd")
    assert "orders" in log.topics()
    assert "Warning: The source has no such topic" in run("mirror", *FROM, "--pattern", "peo").stderr
    missing = run("mirror", *FROM, "-t", "order", exit_code=1)
    assert "the source has no topic 'order'; did you mean 'orders'?" in missing.stderr
    assert "not both" in run("mirror", *FROM, "-t", "orders", "--pattern", "x", exit_code=2).stderr


def test_properties(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n\n")
    more = ("--from-config", str(file), "--from-property", "security.protocol=SSL", "--timeout", "7")
    run("mirror", *FROM, *more, "--dry-run")
    expected = {"security.protocol": "SSL", "sasl.password": "a=b"}
    assert cluster.given == ["cluster:9092", expected, 7.0]  # type: ignore[attr-defined]
    wrong = run("mirror", *FROM, "--from-property", "hunter2", "--dry-run", exit_code=1)
    assert "--from-property, number 1: found a property without a value, expected key=value" in wrong.stderr
    assert "hunter2" not in wrong.stderr
    file.write_text("# comment\n\nsasl.password: hunter2\n")
    wrong = run("mirror", *FROM, "--from-config", str(file), "--dry-run", exit_code=1)
    assert "--from-config, line 3: " in wrong.stderr
    assert "hunter2" not in wrong.stderr


def test_json(run_json: Callable[..., Any], cluster: Cluster) -> None:
    assert cluster
    planned = run_json("mirror", *FROM, "--dry-run")
    assert (planned["dry_run"], planned["records"]) == (True, 0)
    done = run_json("mirror", *FROM)
    assert {
        key: done[key] for key in ("dry_run", "source_cluster_id", "records", "commits", "is_complete")
    } == {
        "dry_run": False,
        "source_cluster_id": "cluster-1",
        "records": 12,
        "commits": 1,
        "is_complete": True,
    }
    assert [one["topic"] for one in done["topics"]] == ["orders", "people"]
    assert done["groups"][1] == {
        "group": "app",
        "topic": "people",
        "partition": 0,
        "source_offset": 5,
        "offset": 1,
        "status": "committed",
    }


def test_stopped_before_the_end(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparklog.cli.inputs import Stop

    real = cluster.fetch

    def fetch(wait_s: float) -> Any:
        monkeypatch.setattr(Stop, "is_asked", lambda _: True)
        return real(wait_s)

    monkeypatch.setattr(cluster, "fetch", fetch)
    result = run("mirror", *FROM, exit_code=1)
    assert "stopped before the end: run it again to go on" in result.stderr


def test_following(run: Run, cluster: Cluster, log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new at each round is copied: records, topics, groups; a cluster that is away is waited for."""
    from sparklog.cli import mirror
    from sparklog.cli.inputs import Stop

    monkeypatch.setattr(mirror, "REFRESH_S", 0.0)
    monkeypatch.setattr(mirror, "RETRY_S", 0.0)
    rounds = 0
    real = cluster.topics

    def topics() -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            cluster.add("new", offsets=range(5))
            cluster.groups["app"]["new", 0] = 2
        if rounds == 3:
            raise cluster.unreachable()
        if rounds == 6:
            monkeypatch.setattr(Stop, "is_asked", lambda _: True)
        return real()

    monkeypatch.setattr(cluster, "topics", topics)
    result = run("mirror", *FROM, "--follow")
    assert "cluster-1 is silent; it is tried again" in result.stderr
    assert log.log_end_offset("new", 0) >= 3
    assert log.committed_offsets("app")["new", 0] == 2


@pytest.mark.parametrize("method", ["fetch", "ranges", "group_offsets"])
def test_following_survives_a_source_that_does_not_answer(
    run: Run, cluster: Cluster, log: SparkLog, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from sparklog.cli import mirror
    from sparklog.cli.inputs import Stop

    monkeypatch.setattr(mirror, "REFRESH_S", 0.0)
    monkeypatch.setattr(mirror, "RETRY_S", 0.0)
    real, topics, calls = getattr(cluster, method), cluster.topics, 0

    def silent(*words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise cluster.unreachable()
        return real(*words)

    def until_retried() -> Any:
        if calls >= 4:
            monkeypatch.setattr(Stop, "is_asked", lambda _: True)
        return topics()

    monkeypatch.setattr(cluster, method, silent)
    monkeypatch.setattr(cluster, "topics", until_retried)
    result = run("mirror", *FROM, "--follow")
    assert result.stderr.count("cluster-1 is silent; it is tried again") == 1
    assert log.committed_offsets("app") == {("orders", 0): 4, ("people", 0): 1}


@pytest.mark.parametrize("follow", [("--follow",), ()])
@pytest.mark.parametrize("is_found_by_plan", [True, False])
def test_data_loss_that_is_allowed_during_the_copy_is_shown(
    run: Run,
    cluster: Cluster,
    log: SparkLog,
    monkeypatch: pytest.MonkeyPatch,
    follow: tuple[str, ...],
    is_found_by_plan: bool,
) -> None:
    """Retention passes the mirror between two fetches: of 10 records it has 3."""
    from sparklog.cli import mirror
    from sparklog.cli.inputs import Stop
    from sparklog.mirror import copying

    monkeypatch.setattr(mirror, "RETRY_S", 0.0)
    monkeypatch.setattr(copying, "COMMIT_RECORDS", 3)
    real, fetches = cluster.fetch, 0

    def fetch(wait_s: float) -> Any:
        nonlocal fetches
        fetches += 1
        if fetches == 2:
            if is_found_by_plan:
                cluster.remove_before(("orders", 0), 8)
            raise DataLossError("DATA_LOSS", "orders-0: outside of the log", fix="see --dry-run")
        if fetches == 6:
            monkeypatch.setattr(Stop, "is_asked", lambda _: True)
        return real(wait_s)

    monkeypatch.setattr(cluster, "fetch", fetch)
    arguments = ("mirror", *FROM, "-t", "orders", *follow)
    if not is_found_by_plan:
        assert "outside of the log" in run(*arguments, "--allow-data-loss", exit_code=1).stderr
        return
    result = run(*arguments, "--allow-data-loss")
    assert result.stderr.count("orders-0: 5 offsets were gone before they were copied") == 1
    assert [int(value) for value in log.read("orders", 0, 0)["value"].to_pylist()] == [0, 1, 2, 8, 9]


@pytest.mark.slow
def test_a_served_root_is_written_through_its_broker(
    run: Run, run_json: Callable[..., Any], root: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster
    broker = RunningBroker(str(root))
    try:
        refused = run("mirror", *FROM, exit_code=1)
        assert "SPARKLOG_BROKER_COORDINATES" in refused.stderr
        monkeypatch.delenv("SPARKLOG_ROOT")
        for code, exit_code, words in (
            ("GROUP_AUTHORIZATION_FAILED", 1, "group app: GROUP_AUTHORIZATION_FAILED"),
            ("UNKNOWN_MEMBER_ID", 0, "Warning: group app has members here, and was not moved"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(
                    GroupCoordinators,
                    "commit_offsets",
                    lambda _self, _group, offsets, code=code: dict.fromkeys(offsets, code),
                )
                failed = run("mirror", "--bootstrap-server", broker.bootstrap, *FROM, exit_code=exit_code)
            assert words in failed.stderr
            assert failed.stdout.split()[-2:] == ["-", code]
        done = run_json("mirror", "--bootstrap-server", broker.bootstrap, *FROM)
        assert {one["status"] for one in done["groups"]} == {"committed"}
        with broker.beside() as log:
            assert log.committed_offsets("app") == {("orders", 0): 4, ("people", 0): 1}
    finally:
        broker.stop()


@pytest.mark.slow
def test_from_a_broker(run_json: Callable[..., Any], tmp_path: Path, log: SparkLog) -> None:
    broker = RunningBroker(str(tmp_path / "source"))
    try:
        with broker.beside() as source:
            source.create_topic("t", 2)
            for partition in (0, 1):
                source.append(
                    "t", pa.table({"value": [b"%d" % n for n in range(1_000)]}), partition=partition
                )
            source.commit_offsets("app", {("t", 1): 10})
        done = run_json("mirror", "--from", broker.bootstrap)
    finally:
        broker.stop()
    assert done["records"] == 2_000
    for partition in (0, 1):
        assert log.read("t", partition, 0)["value"].to_pylist() == [b"%d" % n for n in range(1_000)]
    assert log.committed_offsets("app") == {("t", 1): 10}
