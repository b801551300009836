"""kafka-configs' own grammar, for topics and for the root."""

import json

import pytest

from tests.cli.conftest import Run

SETTING = ("--add-config", "segment.bytes=1000")


@pytest.fixture(autouse=True)
def topic(run: Run) -> None:
    run("topics", "create", "--topic", "t")


@pytest.mark.parametrize("entity", [("--topic", "t"), ("--entity-type", "topics", "--entity-name", "t")])
def test_a_topics_settings(run: Run, entity: tuple[str, ...]) -> None:
    added = "cleanup.policy=[compact,delete],segment.bytes=1000"
    run("kafka-configs", "--alter", *entity, "--add-config", added)
    (found,) = json.loads(run("kafka-configs", "--describe", *entity, "--output", "json").stdout)
    assert found["configs"] == {"cleanup.policy": "compact,delete", "segment.bytes": "1000"}
    run("kafka-configs", "--alter", *entity, "--delete-config", "cleanup.policy,segment.bytes")
    assert run("kafka-configs", "--describe", *entity).stdout.splitlines()[0].endswith("Configs: ")


def test_what_is_deleted_may_be_named_one_by_one_and_what_is_added_only_once(run: Run) -> None:
    """As Kafka's tool has it; the last one won, and a retention.ms that was deleted first stayed in force."""
    entity = ("kafka-configs", "--alter", "--topic", "t")
    run(*entity, "--add-config", "segment.bytes=1000,retention.ms=1000,flush.ms=5")
    run(*entity, "--delete-config", "retention.ms", "--delete-config", "segment.bytes,flush.ms")
    assert run("kafka-configs", "--describe", "--topic", "t").stdout.splitlines()[0].endswith("Configs: ")
    told = run(*entity, "--add-config", "retention.ms=5", "--add-config", "segment.bytes=1000", exit_code=2)
    assert "'--add-config': it is given more than once" in told.stderr
    assert run("kafka-configs", "--describe", "--topic", "t").stdout.splitlines()[0].endswith("Configs: ")


def test_the_settings_of_all_topics(run: Run) -> None:
    run("topics", "create", "--topic", "u")
    shown = run("kafka-configs", "--describe", "--entity-type", "topics").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("Topic: ")] == ["t", "u"]


@pytest.mark.parametrize("entity", [("--broker-defaults",), ("--entity-type", "brokers", "--entity-default")])
def test_the_roots_settings(run: Run, entity: tuple[str, ...]) -> None:
    run("kafka-configs", "--alter", *entity, "--add-config", "num.partitions=3")
    assert ["num.partitions", "3"] in [
        line.split()[:2] for line in run("root", "describe").stdout.splitlines()
    ]
    assert "retention.ms" in run("kafka-configs", "--describe", "--all", *entity).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--topic", "t"),
        ("--describe",),
        ("--describe", "--entity-type", "brokers", "--entity-name", "0"),
        ("--describe", "--topic", "t", "--broker-defaults"),
        ("--describe", "--topic", "t", "--add-config", "segment.bytes=99"),
        ("--alter", *SETTING, "--topic", "t", "--topic", "u"),
        ("--alter", *SETTING, "--topic", "t", "--entity-type", "topics", "--entity-name", "u"),
        ("--alter", *SETTING, "--topic", "t", "--entity-default"),
        ("--alter", *SETTING, "--entity-type", "topics", "--entity-name", "t", "--entity-name", "u"),
        ("--alter", *SETTING, "--entity-type", "topics", "--entity-name", "t", "--entity-default"),
        ("--alter", *SETTING, "--entity-type", "topics", "--entity-type", "brokers", "--entity-name", "t"),
        ("--alter", *SETTING, "--entity-type", "brokers", "--entity-name", "0", "--entity-default"),
        ("--alter", *SETTING, "--entity-type", "brokers", "--broker-defaults"),
        ("--alter", *SETTING, "--broker-defaults", "--entity-default"),
        ("--alter", "--topic", "t"),
        ("--alter", "--topic", "t", "--add-config", "segment.bytes"),
        ("--describe", "--entity-type", "users"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...]) -> None:
    run("kafka-configs", *words, exit_code=2)
    assert run("topics", "describe", "-t", "t").stdout.splitlines()[0].endswith("Configs: ")
    assert "segment.bytes" not in run("root", "describe").stdout
