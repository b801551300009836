"""`users`: what is shown, passwords that are in no argument, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.scram import Mechanism, is_password
from tests.cli.conftest import Run

RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def made(run: Run) -> None:
    run("topics", "create", "--topic", "t")


def create(run: Run, *words: str, password: str = "secret", exit_code: int = 0) -> Any:
    return run("users", "create", *words, "--password-file", "-", stdin=f"{password}\n", exit_code=exit_code)


def test_user_is_created_listed_and_deleted(run: Run, run_json: RunJson, root: Path) -> None:
    assert create(run, "alice").stdout == "User alice can log in with SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    create(run, "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    assert run_json("users", "list") == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    assert run("users", "list").stdout.splitlines()[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    with sparklog.open(str(root)) as log:
        stored = log.image.scram.find("alice", "SCRAM-SHA-256")
    assert stored is not None
    assert is_password(Mechanism.SHA_256, stored, "secret")
    run("users", "delete", "alice", "--mechanism", "SCRAM-SHA-512", "--yes")
    assert run_json("users", "delete", "alice") == {"user": "alice", "deleted": ["SCRAM-SHA-256"]}
    assert [one["user"] for one in run_json("users", "list")] == ["bob"]


def test_existing_user_is_replaced_only_when_asked(run: Run, root: Path) -> None:
    create(run, "alice")
    assert "user 'alice' exists" in create(run, "alice", password="new", exit_code=1).stderr
    create(run, "alice", "--replace", password="new")
    with sparklog.open(str(root)) as log:
        stored = log.image.scram.find("alice", "SCRAM-SHA-256")
    assert stored is not None
    assert is_password(Mechanism.SHA_256, stored, "new")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "alice"), "give --password-file"),
        (("create", "alice", "--password", "x"), "No such option"),
        (("create", "alice", "--mechanism", "PLAIN", "--password-file", "-"), "SCRAM-SHA-256"),
        (("delete", "alice"), "USER_MISSING"),
    ],
)
def test_what_is_refused(run: Run, words: tuple[str, ...], message: str) -> None:
    code = 1 if "MISSING" in message else 2
    assert message in run("users", *words, stdin="", exit_code=code).stderr


def test_empty_password_and_bad_names(run: Run) -> None:
    assert "no password" in create(run, "alice", password="", exit_code=1).stderr
    assert "INVALID_USER" in create(run, "a\tb", exit_code=1).stderr


def test_keys_are_in_no_output(run: Run, root: Path) -> None:
    create(run, "alice")
    with sparklog.open(str(root)) as log:
        secrets = [
            text
            for one in log.image.scram.credentials["alice"].values()
            for text in (one.salt, one.stored_key, one.server_key)
        ]
        secrets.append(log.image.scram.decoy_key)
    for words in (
        ("metadata", "log"),
        ("metadata", "log", "--output", "json"),
        ("metadata", "show", "1"),
        ("metadata", "show", "1", "--output", "json"),
        ("metadata", "show"),
        ("metadata", "show", "--output", "json"),
        ("users", "list", "--output", "json"),
        ("root", "describe", "--all"),
    ):
        shown = run(*words).stdout
        assert not [one for one in secrets if one in shown], words
