"""Members of a group, and changes that its coordinator makes or refuses: a broker and a real consumer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.console import group_members
from sparklog.console.group_members import MAX_ASSIGNED
from tests.console.change_client import change, preview, refused, writing_client
from tests.console.conftest import rows
from tests.support.broker_process import until
from tests.support.cluster_root import ClusterRoot
from tests.support.running_broker import RunningBroker

RESET = "/group/reset?group=busy"


def members_of(client: TestClient, group: str) -> Any:
    answer = client.get("/api/v1/group", params={"group": group})
    assert answer.status_code == 200, answer.text
    return answer.json()["members"]


def test_a_root_without_brokers_has_no_members(log: SparkLog, client: TestClient) -> None:
    log.create_topic("orders")
    log.commit_offsets("etl", {("orders", 0): 0})
    assert members_of(client, "etl")["is_served"] is False
    assert "Only brokers know members, and none is registered" in client.get("/group?group=etl").text


def test_a_broker_that_does_not_answer_is_not_asked_again_soon(
    log: SparkLog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("orders")
    log.commit_offsets("etl", {("orders", 0): 0})
    ClusterRoot(log)  # brokers, of which none listens
    asked: list[int] = []
    make = group_members.coordinators_of

    def counting(*args: Any, **options: Any) -> Any:
        asked.append(1)
        return make(*args, **options)

    monkeypatch.setattr(group_members, "coordinators_of", counting)
    monkeypatch.setattr(group_members, "TIMEOUT_MS", 1)
    for _ in range(2):
        found = members_of(client, "etl")
        assert (found["is_served"], bool(found["problem"]), len(asked)) == (True, True, 1)
    log.clock.advance_ms(group_members.PAUSE_MS + 1)  # type: ignore[attr-defined]
    members_of(client, "etl")
    assert len(asked) == 2
    assert "Not known: " in client.get("/group?group=etl").text


def test_an_assignment_is_cut() -> None:
    found = group_members.shown_assignment([("t", number) for number in range(1000)])
    assert found.startswith("t:0,1,2,")
    assert len(found) == MAX_ASSIGNED + 1


# --- with a broker -----------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[RunningBroker, SparkLog, TestClient]]:
    """A broker with topic t of two partitions, and a console of the root, in another process as it were."""
    broker = RunningBroker(str(tmp_path / "root"), {"group.initial.rebalance.delay.ms": "0"})
    try:
        with broker.beside() as log:
            log.create_topic("t", 2)
            for number in range(2):
                log.append("t", rows(10, time_ms=log.clock.now_ms()), partition=number)
            with writing_client(log) as client:
                yield broker, log, client
    finally:
        broker.stop()


@pytest.mark.slow
def test_members_are_shown_and_keep_their_group(served: tuple[RunningBroker, SparkLog, TestClient]) -> None:
    broker, log, client = served
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "busy",
            "client.id": "<b>reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe(["t"])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        until(is_assigned)
        found = members_of(client, "busy")  # it has committed nothing yet
        (row,) = client.get("/api/v1/groups").json()["groups"]
        assert (row["group"], row["partitions"], row["committed_ms"]) == ("busy", 0, -1)
        assert "busy" in client.get("/groups").text
        assert (found["state"], found["member_count"], found["problem"]) == ("Stable", 1, "")
        (member,) = found["members"]
        assert (member["client_id"], member["partitions"], member["assignment"]) == ("<b>reader", 2, "t:0,1")
        assert member["consumer_id"] == consumer.memberid()
        page = client.get("/group?group=busy").text
        assert "&lt;b&gt;reader" in page
        places = [confluent_kafka.TopicPartition("t", number, 3) for number in range(2)]
        consumer.commit(offsets=places, asynchronous=False)
        assert refused(client, RESET, {"to": "earliest"}) == (400, "GROUP_UNCHANGED")
        assert refused(client, "/group/delete?group=busy", {"name": "busy"}) == (400, "GROUP_UNCHANGED")
    finally:
        consumer.close()
    assert log.committed_offsets("busy") == {("t", 0): 3, ("t", 1): 3}
    assert members_of(client, "busy")["state"] == "Empty"
    change(client, RESET, {"to": "latest"})
    assert log.committed_offsets("busy") == {("t", 0): 10, ("t", 1): 10}


@pytest.mark.slow
def test_a_member_that_joins_after_the_preview_keeps_its_group(
    served: tuple[RunningBroker, SparkLog, TestClient],
) -> None:
    broker, log, client = served
    log.commit_offsets("busy", {("t", 0): 4})
    moved = preview(client, RESET, {"to": "earliest"})
    gone = preview(client, "/group/delete?group=busy", {"name": "busy"})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "busy",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe(["t"])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        until(is_assigned)
        for shown in (moved, gone):
            assert refused(client, "/confirm", {"confirm": shown["confirm"]}) == (400, "GROUP_UNCHANGED")
    finally:
        consumer.close()
    assert log.committed_offsets("busy") == {("t", 0): 4}
    change(client, "/group/delete?group=busy", {"name": "busy"})
    assert log.groups() == []
