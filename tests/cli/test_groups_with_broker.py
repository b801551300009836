"""`groups` through --bootstrap-server: the coordinator knows the members, and makes the changes.

A real broker in this process, a real consumer, and confluent's admin client, which must say the same.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from sparklog.client import SparkLog
from tests.cli.conftest import Run
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.slow
RunOn = Callable[..., Any]


@pytest.fixture
def broker(root: Path) -> Iterator[RunningBroker]:
    broker = RunningBroker(str(root), {"group.initial.rebalance.delay.ms": "0"})
    yield broker
    broker.stop()


@pytest.fixture
def log(broker: RunningBroker, run: Run) -> Iterator[SparkLog]:
    """Topic t, two partitions of ten records; group idle has read some, and no member."""
    with broker.beside() as log:
        log.create_topic("t", 2)
        for partition in "01":
            run("produce", "--topic", "t", "-p", partition, stdin="x\n" * 10)
        log.commit_offsets("idle", {("t", 0): 4, ("t", 1): 6})
        yield log


@pytest.fixture
def words(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.delenv("SPARKLOG_ROOT")  # the broker names it
    return "--bootstrap-server", broker.bootstrap


@pytest.fixture
def ask(run: Run, run_json: RunOn, words: tuple[str, str]) -> RunOn:
    return lambda *more, **options: run(*words, *more, **options)


@pytest.fixture
def ask_json(run_json: RunOn, words: tuple[str, str]) -> RunOn:
    return lambda *more: run_json(*words, *more)


@pytest.fixture
def member(broker: RunningBroker, log: SparkLog) -> Iterator[confluent_kafka.Consumer]:
    """Of group busy; it has both partitions, and has read and committed three records of each."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "busy",
            "client.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == 2

    until(is_assigned)
    places = [confluent_kafka.TopicPartition("t", partition, 3) for partition in range(2)]
    consumer.commit(offsets=places, asynchronous=False)
    yield consumer
    consumer.close()


def test_states_are_listed(log: SparkLog, member: object, run: Run, ask_json: RunOn) -> None:
    assert member
    assert ask_json("groups", "list", "--state") == [
        {"group": "busy", "type": "classic", "state": "Stable"},
        {"group": "idle", "type": "classic", "state": "Empty"},
    ]
    assert "only a broker knows" in run("groups", "list", "--state", "--root", log.url, exit_code=2).stderr


def test_members_and_state_are_the_coordinators(
    member: confluent_kafka.Consumer, broker: RunningBroker, ask: RunOn, ask_json: RunOn
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    expected = admin.describe_consumer_groups(["busy"])["busy"].result(60)
    (expected_member,) = expected.members
    rows = ask_json("groups", "describe", "--group", "busy")
    assert [(row["partition"], row["current_offset"], row["lag"]) for row in rows] == [(0, 3, 7), (1, 3, 7)]
    fields = [(expected_member.member_id, expected_member.host, expected_member.client_id)] * 2
    assert [(row["consumer_id"], row["host"], row["client_id"]) for row in rows] == fields
    assert all(row["lag_seconds"] >= 0 for row in rows)
    assert ask_json("groups", "describe", "--group", "busy", "--members") == [
        {
            "group": "busy",
            "consumer_id": expected_member.member_id,
            "group_instance_id": None,
            "host": expected_member.host,
            "client_id": "reader",
            "partitions": 2,
            "assignment": "t:0,1",
            "current_epoch": None,
            "target_assignment": None,
        }
    ]
    (state,) = ask_json("groups", "describe", "--group", "busy", "--state")
    assert state == {
        "group": "busy",
        "coordinator": f"{expected.coordinator.host}:{expected.coordinator.port} ({expected.coordinator.id})",
        "assignment_strategy": expected.partition_assignor,
        "state": "Stable",
        "members": 1,
        "type": "classic",
        "group_epoch": None,
        "target_assignment_epoch": None,
    }
    heading, row = ask(
        "kafka-consumer-groups", "--describe", "--group", "busy", "--state"
    ).stdout.splitlines()
    assert heading.split("  ")[:2] == ["GROUP", "COORDINATOR (ID)"]
    assert row.split()[-3:] == ["Stable", "1", "classic"]
    text = ask("groups", "describe", "--all-groups", "--members", "--verbose")
    assert text.stdout.splitlines()[0].split() == [
        "GROUP",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
        "#PARTITIONS",
        "ASSIGNMENT",
    ]
    assert "Consumer group 'idle' has no active members." in text.stderr


def test_a_group_with_members_is_not_changed(
    member: confluent_kafka.Consumer, log: SparkLog, ask: RunOn
) -> None:
    before = log.committed_offsets("busy")
    for more in ([], ["--execute"]):
        shown = ask(
            "groups", "reset-offsets", "--all-groups", "--topic", "t", "--to-earliest", *more, exit_code=1
        )
        assert "1 of 2 groups: group 'busy': only a group without members" in shown.stderr
        assert [row.split()[0] for row in shown.stdout.splitlines()[1:]] == ["idle", "idle"]
    assert log.committed_offsets("idle") == {("t", 0): 0, ("t", 1): 0}
    assert "NON_EMPTY_GROUP" in ask("groups", "delete", "--group", "busy", exit_code=1).stderr
    shown = ask("groups", "delete-offsets", "--group", "busy", "--topic", "t", exit_code=1)
    assert "t-0: GROUP_SUBSCRIBED_TO_TOPIC" in shown.stderr
    assert "Error: GROUP_SUBSCRIBED_TO_TOPIC" in shown.stdout
    assert log.committed_offsets("busy") == before


def fetched(broker: RunningBroker, group: str) -> dict[int, int]:
    """What the broker answers, not what is in the root."""
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.list_consumer_group_offsets([asked])[group].result(60).topic_partitions
    return {place.partition: place.offset for place in found}


def test_the_broker_has_what_was_changed(
    broker: RunningBroker, log: SparkLog, ask: RunOn, ask_json: RunOn
) -> None:
    reset = ("groups", "reset-offsets", "--group", "idle", "--topic", "t")
    ask(*reset, "--shift-by", "-1", "--execute")
    assert fetched(broker, "idle") == {0: 3, 1: 5}
    ask("kafka-consumer-groups", "--reset-offsets", *reset[2:], "--to-latest", "--execute")
    assert fetched(broker, "idle") == {0: 10, 1: 10}
    ask("groups", "delete-offsets", "--group", "idle", "--topic", "t:0")
    assert fetched(broker, "idle") == {1: 10}
    shown = ask("groups", "delete", "--group", "idle", "--group", "x", exit_code=1)
    assert "('idle') was successful" in shown.stdout
    assert "group 'x': GROUP_ID_NOT_FOUND" in shown.stderr
    assert fetched(broker, "idle") == {}
    assert "'idle' does not exist" in ask("groups", "describe", "--group", "idle", exit_code=1).stderr


def test_records_are_deleted_for_the_broker_too(
    member: confluent_kafka.Consumer, broker: RunningBroker, ask: RunOn
) -> None:
    ask("records", "delete", "--topic", "t", "--partition", "0", "--offset", "4")
    broker.settle()
    assert member.get_watermark_offsets(confluent_kafka.TopicPartition("t", 0), timeout=60) == (4, 10)


def test_all_groups_are_listed(member: confluent_kafka.Consumer, log: SparkLog, ask_json: RunOn) -> None:
    log.commit_offsets("busy", {("t", 0): None, ("t", 1): None})
    assert log.groups() == ["idle"]
    assert [one["group"] for one in ask_json("groups", "list")] == ["busy", "idle"]
    rows = ask_json("groups", "describe", "--group", "busy")
    assert [(row["partition"], row["current_offset"], row["lag"]) for row in rows] == [
        (0, None, None),
        (1, None, None),
    ]


@pytest.mark.parametrize("words_of", [("consume", "-e", "-G"), ("verify", "consume", "--exit", "-g")])
def test_no_command_commits_for_a_group_with_members(
    member: confluent_kafka.Consumer, log: SparkLog, ask: RunOn, words_of: tuple[str, ...]
) -> None:
    """The member would overwrite what is committed, or its successor leave records out."""
    told = ask(*words_of, "busy", "--topic", "t", exit_code=1)
    assert "group 'busy' has members, and its state is Stable" in told.stderr
    assert told.stdout == ""
    assert log.committed_offsets("busy") == {("t", 0): 3, ("t", 1): 3}


def test_a_group_without_members_commits_at_its_coordinator(
    log: SparkLog, broker: RunningBroker, ask: RunOn, run: Run
) -> None:
    assert ask("consume", "-e", "-G", "idle", "--topic", "t", "-c", "7").stdout == "x\n" * 7
    assert sum(log.committed_offsets("idle").values()) == 4 + 6 + 7
    ask("verify", "consume", "--exit", "-g", "idle", "--topic", "t")
    assert log.committed_offsets("idle") == {("t", 0): 10, ("t", 1): 10}
    words = ("--root", broker.root, "consume", "-e", "-G", "idle", "--topic", "t")
    assert "BROKER_COORDINATES" in run(*words, exit_code=1).stderr
    assert run(*words, "--force").stdout == ""


def test_settings_of_a_group(log: SparkLog, ask: RunOn, ask_json: RunOn) -> None:
    """It has none before, and may have some before it has members."""
    limit = "share.delivery.count.limit"
    shown = ask("groups", "alter", "-g", "new", "--config", f"{limit}=9").stdout
    assert [limit, "9", "group", "default=5"] in [line.split() for line in shown.splitlines()]
    of_new = ("--entity-type", "groups", "--entity-name", "new")
    described = ask("kafka-configs", "--describe", *of_new).stdout.splitlines()
    synonyms = f"{{DYNAMIC_GROUP_CONFIG:{limit}=9, DEFAULT_CONFIG:{limit}=5}}"
    assert described == [
        "Dynamic configs for group new are:",
        f"  {limit}=9 sensitive=false synonyms={synonyms}",
    ]
    ask("kafka-configs", "--alter", *of_new, "--delete-config", limit)
    heading, *every = ask("kafka-configs", "--describe", *of_new, "--all").stdout.splitlines()
    assert heading == "All configs for group new are:"
    assert any(line.startswith(f"  {limit}=5 ") for line in every)
    ((group, found),) = [one.values() for one in ask_json("groups", "describe", "-g", "idle", "--settings")]
    assert group == "idle"
    assert {one["source"] for one in found} == {"default"}
    refused = ask("groups", "alter", "-g", "new", "--config", f"{limit}=many", exit_code=1)
    assert f"{limit}: found 'many', expected integer" in refused.stderr
    unknown = ask("groups", "alter", "-g", "new", "--config", "nothing=1", exit_code=1)
    assert "nothing" in unknown.stderr


@pytest.mark.parametrize(
    ("words", "command"), [("", "topics"), ("--entity-type groups", "groups"), ("--alter --user a", "quotas")]
)
def test_the_help_of_kafka_configs_is_that_of_what_is_named(run: Run, words: str, command: str) -> None:
    assert f"sparklog {command} " in run("kafka-configs", *words.split(), "--help").stdout
