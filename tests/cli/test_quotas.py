"""`sparklog quotas`, and the same by the words of kafka-configs."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def _root(run: Run) -> None:
    run("topics", "create", "--topic", "t")


def test_quotas_are_set_listed_and_removed(run: Run, run_json: RunJson) -> None:
    assert run("quotas", "list").stdout == "There are no quotas.\n"
    of_alice = ("quotas", "alter", "--user", "alice", "--client-defaults")
    found = run_json(*of_alice, "--quota", "producer_byte_rate=5")
    assert found == {
        "dry_run": False,
        "user": "alice",
        "client_id": "<default>",
        "ip": None,
        "quotas": {"producer_byte_rate": 5.0},
    }
    run("quotas", "alter", "--ip", "10.0.0.1", "--quota", "connection_creation_rate=2", "--dry-run")
    assert len(run_json("quotas", "list")) == 1
    run(
        *("quotas", "alter", "--user", "alice", "--client-defaults", "--quota", "request_percentage=9"),
        *("--delete-quota", "producer_byte_rate"),
    )
    (row,) = run_json("quotas", "list")
    assert (row["quota"], row["value"]) == ("request_percentage", 9.0)


def test_as_kafka_configs(run: Run, run_json: RunJson) -> None:
    alter = ("kafka-configs", "--alter")
    run(*alter, "--entity-type", "users", "--entity-name", "a", "--add-config", "producer_byte_rate=1024")
    run(*alter, "--entity-type", "clients", "--entity-default", "--add-config", "consumer_byte_rate=3")
    run(*alter, "--user", "a", "--client", "c", "--add-config", "request_percentage=1,consumer_byte_rate=2")
    run(*alter, "--ip-defaults", "--add-config", "connection_creation_rate=7")
    run(*alter, "--ip-defaults", "--delete-config", "connection_creation_rate")
    rows = run_json("quotas", "list")
    assert {(row["user"], row["client_id"], row["quota"]) for row in rows} == {
        (None, "<default>", "consumer_byte_rate"),
        ("a", "c", "consumer_byte_rate"),
        ("a", "c", "request_percentage"),
        ("a", None, "producer_byte_rate"),
    }
    shown = run("kafka-configs", "--describe", "--entity-type", "users").stdout
    assert "Quota configs for user-principal 'a' are producer_byte_rate=1024.0\n" in shown
    assert "Quota configs for the default client-id are consumer_byte_rate=3.0\n" in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--quota", "producer_byte_rate=1"), 2, "give --user"),
        (("--user", "a"), 2, "give --quota KEY=NUMBER"),
        (
            ("--user", "a", "--user-defaults", "--quota", "producer_byte_rate=1"),
            2,
            "--user or --user-defaults",
        ),
        (("--user", "a", "--quota", "producer_byte_rate=x"), 2, "expected KEY=NUMBER"),
        (("--user", "a", "--quota", "no_such=1"), 1, "INVALID_QUOTA"),
        (("--user", "a", "--ip", "h", "--quota", "producer_byte_rate=1"), 1, "INVALID_QUOTA"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], code: int, message: str) -> None:
    assert message in run("quotas", "alter", *words, exit_code=code).stderr
