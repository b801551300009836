"""What a command says when it fails: near names, the shell's words, and JSON where JSON was asked for."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.cli.framework import Settings
from sparklog.cli.main import COMMANDS
from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def topic(run: Run) -> None:
    run("topics", "create", "--topic", "flights", "--partitions", "4")


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "-e", "--topic", "fligths"),
        ("topics", "describe", "--topic", "fligths"),
        ("topics", "alter", "--partitions", "5", "--topic", "fligths"),
        ("topics", "delete", "--topic", "fligths"),
        ("offsets", "get", "--topic", "fligths"),
        ("offsets", "get", "--topic-partitions", "fligths:0"),
        ("kafka-topics", "--describe", "--topic", "fligths"),
    ],
)
def test_a_mistyped_topic_is_answered_with_the_near_one(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words, exit_code=1).stderr == (
        "Error: [SPARKLOG_TOPIC_MISSING] topic 'fligths': not found; did you mean 'flights'? "
        "Fix: correct the name, or create it: sparklog topics create --topic fligths. SQLSTATE: 42704\n"
    )


def test_a_pipe_that_is_not_stdout_breaks_with_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_root(_: Settings) -> None:
        raise BrokenPipeError(errno.EPIPE, "the other end is gone")

    monkeypatch.setattr(Settings, "open_root", open_root)
    told = run("topics", "list", exit_code=1).stderr
    assert told == f"Error: [Errno {errno.EPIPE}] the other end is gone\n"


def test_nothing_is_meant_where_nothing_is_near(run: Run) -> None:
    assert "did you mean" not in run("consume", "--topic", "orders", "-e", exit_code=1).stderr


def test_a_mistyped_group_is_answered_with_the_near_one(run: Run) -> None:
    run("produce", "--topic", "flights", stdin="x\n")
    run("consume", "--topic", "flights", "--group", "dashboard", "-e")
    told = run("groups", "describe", "--group", "dashbord", exit_code=1).stderr
    assert "it has committed no offsets; did you mean 'dashboard'? Fix: " in told
    assert run("groups", "describe", "--group", "z", exit_code=1).stderr.count("did you mean") == 0


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_mistyped_command_is_answered_with_the_near_one(run: Run, command: str) -> None:
    told = run(command[:-2] + command[-1], exit_code=2).stderr
    assert f"'{command}'" in told.partition("Did you mean")[2]


def test_fixes_can_be_typed_in_a_shell(run: Run, tmp_path: Path) -> None:
    for elsewhere in (tmp_path / "missing", tmp_path):
        told = run("--root", str(elsewhere), "topics", "list", exit_code=1).stderr
        assert "Fix: check the path, or make a root there: sparklog topics create. SQLSTATE" in told
        told = run("--root", str(elsewhere), "topics", "list", "--output=json", exit_code=1).stderr
        assert json.loads(told)["error"]["fix"].endswith("sparklog topics create")
    assert "Use a partition from 0 to 3" in run("consume", "-t", "flights", "-p", "9", exit_code=1).stderr
    run("topics", "create", "--topic", "one")
    assert "Use partition 0, or" in run("consume", "-t", "one", "-p", "9", exit_code=1).stderr
    for topic, last, verb in (("flights", 3, "alter"), ("new", 0, "create")):
        told = run("produce", "-t", topic, "-p", "7", stdin="x\n", exit_code=1).stderr
        assert f"topic {topic}: found --partition 7, expected 0 to {last}. " in told
        assert f"sparklog topics {verb} --topic {topic} --partitions 8. " in told
        assert "column" not in told


@pytest.mark.parametrize("words", [("--output", "json"), ("--output=json",)])
def test_failures_are_json_where_json_is_asked_for(run: Run, words: tuple[str, ...]) -> None:
    result = run("consume", "--topic", "fligths", "-e", *words, exit_code=1)
    assert result.stdout == ""
    assert json.loads(result.stderr) == {
        "error": {
            "code": "SPARKLOG_TOPIC_MISSING",
            "message": "topic 'fligths': not found; did you mean 'flights'?",
            "fix": "correct the name, or create it: sparklog topics create --topic fligths",
            "sqlstate": "42704",
        }
    }
    run("produce", "-t", "g", stdin="x\n")
    failed = run(*words, "offsets", "get", "-t", "g", "--partitions", "9", exit_code=1).stderr
    message = "no partition is among those that were asked for."
    assert json.loads(failed) == {
        "error": {"code": "FAILED", "message": message, "fix": None, "sqlstate": None}
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("topics", "lst", "--output", "json"), "No such command 'lst'. Did you mean 'list'?"),
        (
            ("topics", "list", "--nmes", "--output", "json"),
            "No such option '--nmes'. Did you mean '--names'?",
        ),
        (("--output", "json", "topics", "alter"), "Missing option '--topic' / '-t'."),
    ],
)
def test_wrong_usage_is_json_too(run: Run, words: tuple[str, ...], message: str) -> None:
    told = json.loads(run(*words, exit_code=2).stderr)["error"]
    assert (told["code"], told["message"]) == ("USAGE", message)


def test_text_stays_text(run: Run) -> None:
    for words in (("--output", "table"), ("--output", "json", "--output", "table")):
        assert run("consume", "-t", "z", *words, exit_code=1).stderr.startswith("Error: [SPARKLOG_")


@pytest.mark.slow
def test_on_a_terminal_the_fix_has_a_line_of_its_own(root: Path) -> None:
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "sparklog", "--root", str(root), "consume", "--topic", "fligths"],
            stdin=subprocess.DEVNULL,
            stderr=theirs,
        ) as process:
            assert process.wait(timeout=60) == 1
        told = os.read(ours, 65536).decode().splitlines()
    finally:
        os.close(theirs)
        os.close(ours)
    assert told == [
        "Error: [SPARKLOG_TOPIC_MISSING] topic 'fligths': not found; did you mean 'flights'?",
        "Fix: correct the name, or create it: sparklog topics create --topic fligths.",
    ]


def test_bytes_that_are_no_text_are_dumped_as_json(run: Run, root: Path) -> None:
    run("produce", "--topic", "flights", stdin=b"\xff\n")
    (segment,) = root.glob("segments/*/*.log")
    assert 'payload: {"base64": "/w=="}' in run("dump-log", "--print-data-log", str(segment)).stdout
