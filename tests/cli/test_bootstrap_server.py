"""--bootstrap-server in the place of --root."""

from pathlib import Path

import pytest

import sparklog
from tests.cli.conftest import Run
from tests.client.fake_broker import broker_of, fake_broker


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    log = sparklog.open(tmp_path / "the broker's")
    log.create_topic("events")
    return log


@pytest.mark.slow
def test_the_brokers_root_is_worked_on(run: Run, log: sparklog.SparkLog) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        assert run("kafka-topics", "--list", "--bootstrap-server", server).stdout == "events\n"
        run("--bootstrap-server", server, "topics", "create", "--topic", "more")
        assert f"cluster {log.cluster_id}" in run("doctor", "--bootstrap-server", server, exit_code=0).stdout
    assert log.topics() == ["events", "more"]


def test_a_root_and_a_broker_are_one_too_many(run: Run, tmp_path: Path) -> None:
    words = ("topics", "list", "--root", str(tmp_path), "--bootstrap-server", "127.0.0.1:1")
    assert "give one of them" in run(*words, exit_code=2).stderr


def test_a_broker_that_does_not_answer(run: Run) -> None:
    result = run("topics", "list", "--bootstrap-server", "127.0.0.1:1", exit_code=1)
    assert "BROKER_UNREACHABLE" in result.stderr


def test_the_demo_wants_no_broker(run: Run) -> None:
    assert "a log of its own" in run("demo", "--bootstrap-server", "127.0.0.1:1", exit_code=2).stderr


@pytest.mark.slow
def test_the_log_that_is_meant_is_worked_on_and_no_other(
    run: Run, log: sparklog.SparkLog, tmp_path: Path
) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        for place in (("--bootstrap-server", server), ("--root", log.url)):
            run("topics", "list", *place, "--cluster-id", log.cluster_id)
            for command in (("topics", "list"), ("topics", "create", "--topic", "t"), ("doctor",)):
                result = run(*command, *place, "--cluster-id", "another", exit_code=1)
                assert "WRONG_ROOT" in result.output
                assert f"found cluster id '{log.cluster_id}', expected 'another'" in result.output
    run(
        "topics", "create", "--topic", "t", "--root", f"{tmp_path}/new", "--cluster-id", "x" * 22, exit_code=1
    )
    assert not (tmp_path / "new").exists()
    assert log.topics() == ["events"]


def test_the_environment_says_where_roots_may_be(
    run: Run, log: sparklog.SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"{tmp_path}/elsewhere")
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        for place in (("--bootstrap-server", server), ("--root", log.url)):
            assert "ROOT_NOT_ALLOWED" in run("topics", "list", *place, exit_code=1).stderr
        monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"{tmp_path}/elsewhere,{tmp_path}")
        assert run("topics", "list", "--bootstrap-server", server).exit_code == 0
