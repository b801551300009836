"""DeleteTopics: by name and by id."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog_server.protocol.responses import topic_uuid
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

ZERO = uuid.UUID(int=0)


def by_name(name: str | None, topic_id: uuid.UUID = ZERO) -> dict[str, Any]:
    return {"_": "DeleteTopicState", "name": name, "topic_id": topic_id}


def delete(asker: WireClient, *topics: dict[str, Any]) -> list[tuple[str | None, str, str | None]]:
    answer = asker.ask(20, 6, topics=topics, timeout=30_000)
    return [(one.name, one.error_code.name, one.error_message) for one in answer.responses]


@pytest.mark.parametrize("version", range(1, 6))
def test_every_version_deletes_by_name(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t")
    answer = asker.ask(20, version, topic_names=["t", "missing"], timeout=30_000)
    found = {one.name: one.error_code for one in answer.responses}
    assert found == {"t": ErrorCode.none, "missing": ErrorCode.unknown_topic_or_partition}
    assert log.topics() == []


def test_by_name_and_by_id(asker: WireClient, log: sparklog.SparkLog) -> None:
    for name in ("a", "b", "c"):
        log.create_topic(name)
    b = topic_uuid(log.describe_topic("b").topic_id)
    answer = asker.ask(20, 6, topics=[by_name("a"), by_name(None, b)], timeout=30_000)
    assert [(one.name, one.error_code) for one in answer.responses] == [
        ("a", ErrorCode.none), ("b", ErrorCode.none)]  # fmt: skip
    assert answer.responses[1].topic_id == b
    assert log.topics() == ["c"]


def test_requests_that_make_no_sense(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    t = topic_uuid(log.describe_topic("t").topic_id)
    assert delete(asker, by_name(None)) == [
        (None, "invalid_request", "Neither topic name nor id were specified.")]  # fmt: skip
    assert delete(asker, by_name("t", t)) == [
        ("t", "invalid_request", "You may not specify both topic name and topic id.")]  # fmt: skip
    assert delete(asker, by_name("t"), by_name("t")) == [("t", "invalid_request", "Duplicate topic name.")]
    assert delete(asker, by_name(None, t), by_name(None, t)) == [
        (None, "invalid_request", "Duplicate topic id.")]  # fmt: skip
    assert delete(asker, by_name(None, uuid.UUID(int=7)))[0][1] == "unknown_topic_id"
    assert delete(asker, by_name("t"), by_name(None, t)) == [
        ("t", "none", None),
        (None, "invalid_request", "The provided topic name maps to an ID that was already supplied."),
    ]
    assert log.topics() == []


def test_the_topic_of_all_groups_offsets_stays(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 0})
    ((_, code, message),) = delete(asker, by_name("__consumer_offsets"))
    assert code == "invalid_request"
    assert "every group's progress" in str(message)
    assert log.groups() == ["g"]


@pytest.mark.parametrize(("version", "code"), [(2, "invalid_request"), (3, "topic_deletion_disabled")])
def test_deletion_can_be_disabled(
    start_broker: Callable[..., RunningBroker],
    connect: Callable[[RunningBroker], WireClient],
    version: int,
    code: str,
) -> None:
    broker = start_broker({"delete.topic.enable": "false"})
    log = sparklog.open(broker.root, create=False)
    log.create_topic("t")
    answer = connect(broker).ask(20, version, topic_names=["t"], timeout=30_000)
    assert answer.responses[0].error_code.name == code
    assert log.topics() == ["t"]
