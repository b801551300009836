"""`sparklog acls`, and the same as kafka-acls says and prints it."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]
ORDERS = ("--topic", "orders")
ALICE = ("--allow-principal", "User:alice")


@pytest.fixture(autouse=True)
def _root(run: Run) -> None:
    run("topics", "create", *ORDERS)


def listed(run_json: RunJson, *words: str) -> list[tuple[str, ...]]:
    return [tuple(row.values()) for row in run_json("acls", "list", *words)]


def test_acls_are_added_listed_and_removed(run: Run, run_json: RunJson) -> None:
    assert run("acls", "list").stdout == "There are no ACLs.\n"
    run("acls", "add", *ALICE, "--operation", "Read", "--operation", "describe_configs", *ORDERS)
    run("acls", "add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--topic", "*")
    run("acls", "add", *ALICE, "--resource-pattern-type", "prefixed", "--group", "etl-", "--cluster")
    assert listed(run_json) == [
        ("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "ALL", "ALLOW"),
        ("GROUP", "etl-", "PREFIXED", "User:alice", "*", "ALL", "ALLOW"),
        ("TOPIC", "*", "LITERAL", "User:bob", "10.0.0.1", "ALL", "DENY"),
        ("TOPIC", "orders", "LITERAL", "User:alice", "*", "DESCRIBE_CONFIGS", "ALLOW"),
        ("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"),
    ]
    assert len(listed(run_json, *ORDERS)) == 2
    assert len(listed(run_json, *ORDERS, "--resource-pattern-type", "match")) == 3
    assert len(listed(run_json, "--principal", "User:bob")) == 1
    run("acls", "remove", *ORDERS, *ALICE, "--operation", "Read", "--yes")
    assert len(listed(run_json, *ORDERS)) == 1
    run("acls", "remove", *ORDERS, "--cluster", "--yes")
    assert [row[0] for row in listed(run_json)] == ["GROUP", "TOPIC"]


def test_roles(run: Run, run_json: RunJson) -> None:
    run("acls", "add", *ALICE, "--producer", "--idempotent", *ORDERS, "--transactional-id", "t")
    run("acls", "add", "--allow-principal", "User:bob", "--consumer", *ORDERS, "--group", "g")
    assert {(row[0], row[3], row[5]) for row in listed(run_json)} == {
        ("TOPIC", "User:alice", "WRITE"),
        ("TOPIC", "User:alice", "DESCRIBE"),
        ("TOPIC", "User:alice", "CREATE"),
        ("TRANSACTIONAL_ID", "User:alice", "WRITE"),
        ("TRANSACTIONAL_ID", "User:alice", "DESCRIBE"),
        ("CLUSTER", "User:alice", "IDEMPOTENT_WRITE"),
        ("TOPIC", "User:bob", "READ"),
        ("TOPIC", "User:bob", "DESCRIBE"),
        ("GROUP", "User:bob", "READ"),
    }


def test_as_kafka_acls(run: Run) -> None:
    command = ("kafka-acls.sh", "--add", *ALICE, "--operation", "Read", *ORDERS)
    resource = "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)"
    entry = "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)"
    assert run(*command).stdout == f"Adding ACLs for resource `{resource}`:\n \t{entry}\n\n"
    assert run(*command).stdout == f"Acl (pattern={resource}, entry={entry}) already exists.\n"
    assert run("kafka-acls", "--list").stdout == f"Current ACLs for resource `{resource}`:\n\t{entry}\n\n"
    run("kafka-acls", "--remove", *ORDERS, "--force")
    assert run("kafka-acls", "--list").stdout == ""


def test_a_dry_run_changes_nothing_and_removing_asks(run: Run, run_json: RunJson) -> None:
    assert run_json("acls", "add", *ALICE, *ORDERS, "--dry-run")["added"]
    assert listed(run_json) == []
    run("acls", "add", *ALICE, *ORDERS)
    assert run_json("acls", "remove", *ORDERS, "--dry-run")["removed"]
    assert "give --yes" in run("acls", "remove", *ORDERS, exit_code=2).stderr
    assert len(listed(run_json)) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ALICE, "give at least one of --topic"),
        (ORDERS, "give --allow-principal or --deny-principal"),
        ((*ALICE, *ORDERS, "--operation", "Fly"), "no operation FLY"),
        ((*ALICE, *ORDERS, "--operation", "ClusterAction"), "ResourceType TOPIC only supports"),
        ((*ALICE, *ORDERS, "--resource-pattern-type", "match"), "not for adding"),
        ((*ALICE, *ORDERS, "--producer", "--operation", "Read"), "leave out --operation"),
        ((*ALICE, "--group", "g", "--producer"), "with --producer, give --topic"),
        ((*ALICE, *ORDERS, "--consumer"), "with --consumer, give --topic and --group"),
        ((*ALICE, *ORDERS, "--idempotent"), "--idempotent goes with --producer"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], message: str) -> None:
    assert message in run("acls", "add", *words, exit_code=2).stderr


def test_a_principal_has_a_type(run: Run) -> None:
    assert "INVALID_ACL" in run("acls", "add", "--allow-principal", "alice", *ORDERS, exit_code=1).stderr
