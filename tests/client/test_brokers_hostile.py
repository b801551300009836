"""A broker that names somebody else's place: refused before anything there is looked at."""

from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.brokers import find_broker_root
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.storage import Store, open_store
from sparklog.storage.root_rules import RootRules, root_rules
from tests.client.fake_broker import Answer, broker_of, fake_broker, log_dirs, metadata


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    return sparklog.open(tmp_path / "log")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that were looked at."""
    places: list[str] = []

    def look(root: str, **options: Any) -> Store:
        places.append(root)
        return open_store(root, **options)

    monkeypatch.setattr("sparklog.client.brokers.open_store", look)
    return places


def refused(answer: Answer, rules: RootRules) -> str:
    with fake_broker(answer) as server, pytest.raises(SparklogError) as caught:
        find_broker_root(server, rules=rules)
    return str(caught.value)


@pytest.mark.parametrize(
    "told",
    [
        "s3://somebody-elses/log",
        "S3A://somebody-elses/log",
        "s3://logs-too/team",
        "s3://logs/team/../other",
        "s3://logs/teams",
        "s3://u:p@logs/team",
        "memory://logs/team",
        "file:///etc",
        "file:///",
        "file://elsewhere/data",
        "file:///%2e%2e/etc",
        "file:///etc%00",
        "https://logs/team",
    ],
)
def test_a_place_that_is_not_allowed_is_not_looked_at(told: str, opened: list[str]) -> None:
    rules = root_rules(None, "s3://logs/team,/data", {})
    assert "SPARKLOG_" in refused(broker_of(told, "x" * 22), rules)
    assert opened == []


def test_a_link_beneath_an_allowed_place_is_followed(
    log: sparklog.SparkLog, tmp_path: Path, opened: list[str]
) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "log")
    rules = root_rules(None, str(tmp_path / "allowed"), {})
    told = (tmp_path / "allowed" / "link").as_uri()
    message = refused(broker_of(told, log.cluster_id), rules)
    assert "ROOT_NOT_ALLOWED" in message
    assert f"found '{tmp_path}/log'" in message
    assert opened == []


def test_another_cluster_than_the_one_that_is_meant_is_not_looked_at(
    log: sparklog.SparkLog, tmp_path: Path, opened: list[str]
) -> None:
    rules = root_rules(sparklog.open(tmp_path / "meant").cluster_id, None, {})
    message = refused(broker_of(log.url, log.cluster_id), rules)
    assert "WRONG_ROOT" in message
    assert f"found cluster id '{log.cluster_id}', expected '{rules.cluster_id}'" in message
    assert opened == []


def test_a_liar_with_the_right_cluster_id_is_found_out_by_the_root(
    log: sparklog.SparkLog, tmp_path: Path
) -> None:
    meant = sparklog.open(tmp_path / "meant")
    rules = root_rules(meant.cluster_id, str(tmp_path), {})
    assert "ROOT_NOT_VISIBLE" in refused(broker_of(log.url, meant.cluster_id), rules)


def test_the_environment_holds_where_nobody_gives_rules(
    log: sparklog.SparkLog, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", "s3://logs")
    with (
        fake_broker(broker_of(log.url, log.cluster_id)) as server,
        pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"),
    ):
        find_broker_root(server)
    assert opened == []


def test_no_second_server_is_asked_for_a_place_that_suits(log: sparklog.SparkLog, tmp_path: Path) -> None:
    rules = root_rules(None, str(tmp_path), {})
    with (
        fake_broker(broker_of("s3://b/x", log.cluster_id)) as first,
        fake_broker(broker_of(log.url, log.cluster_id)) as second,
        pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED"),
    ):
        find_broker_root(f"{first},{second}", rules=rules)


def test_a_message_holds_no_more_than_a_little_of_a_strangers_text() -> None:
    long = "x" * 30_000
    assert len(refused(broker_of(f"file:///{long}", "y" * 22), RootRules())) < 1500
    many = log_dirs(*[f"/{number}/{long[:10_000]}\n" for number in range(90)])
    message = refused(lambda key: metadata("y" * 22) if key == 3 else many, RootRules())
    assert len(message) < 2000
    assert "and 87 more" in message
    assert "\n" not in message
