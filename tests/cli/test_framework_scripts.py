"""What scripts do unawares: variables that are not set, streams that are closed, files from other systems."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.framework import Settings
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
PROGRAM = [sys.executable, "-m", "sparklog"]


@pytest.fixture(autouse=True)
def topic(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--config", "max.message.bytes=200")


@pytest.mark.parametrize("option", ["--root", "--cluster-id", "--bootstrap-server"])
def test_an_empty_option_is_refused(run: Run, option: str) -> None:
    """`--root "$STAGING"`, which is not set, deleted in the root of SPARKLOG_ROOT."""
    for words in (
        (option, "", "topics", "delete", "--topic", "t"),
        ("topics", "delete", "-t", "t", f"{option}="),
    ):
        assert "it is empty: give it a value" in run(*words, exit_code=2).stderr
    assert run("topics", "list", "--names").stdout == "t\n"


def test_an_empty_group_is_refused(run: Run) -> None:
    assert "--group is empty" in run("consume", "--topic", "t", "-e", "--group", "", exit_code=2).stderr


def with_closed(descriptor: int, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    streams: dict[int, dict[str, Any]] = {0: {}, 2: {"input": stdin}}
    return subprocess.run(
        [*PROGRAM, *words],
        preexec_fn=lambda: os.close(descriptor),
        capture_output=True,
        check=False,
        **streams[descriptor],
    )


@pytest.mark.slow
def test_closed_stdin_is_nobody_to_be_asked_and_no_lines(run: Run) -> None:
    result = with_closed(0, "produce", "--topic", "t")
    assert (result.returncode, result.stderr) == (
        1,
        b"Error: stdin is closed: there are no lines to be read.\n",
    )
    assert b"give --yes" in with_closed(0, "vacuum", "--retain", "1d").stderr
    assert with_closed(0, "topics", "delete", "--topic", "t").stdout == b"Deleted topic t.\n"


@pytest.mark.slow
def test_closed_stderr_takes_notes_silently(run: Run) -> None:
    assert with_closed(2, "produce", "--topic", "t", stdin=b"one\n").returncode == 0
    assert run("offsets", "get", "--topic", "t").stdout == "t:0:1\n"
    assert with_closed(2, "topics", "describe", "--topic", "u").returncode == 1


def test_what_was_acknowledged_before_a_failure_is_json_on_stdout(run: Run) -> None:
    words = ("produce", "--topic", "t", "--output", "json")
    result = run(*words, stdin="x" * 3000, exit_code=1)
    assert json.loads(result.stdout) == {"topic": "t", "records": 0, "partitions": []}
    assert json.loads(result.stderr)["error"]["code"] == "SPARKLOG_RECORD_TOO_LARGE"


def test_partitions_that_are_not_there_are_no_success(run: Run, run_json: RunJson) -> None:
    told = run("offsets", "get", "--topic", "t", "--partitions", "7", exit_code=1).stderr
    assert told == "Error: no partition is among those that were asked for.\n"
    run("offsets", "get", "--partitions", "7", exit_code=1)
    assert run_json("offsets", "get", "--topic", "t", "--partitions", "0,7")[0]["partition"] == 0


def test_more_records_than_there_can_be(run: Run) -> None:
    run("produce", "--topic", "t", stdin="one\n")
    assert run("consume", "--topic", "t", "-e", "-c", "9" * 30).stdout == "one\n"


@pytest.mark.parametrize("other", [("-f", "%s"), ("-J",)])
def test_one_format_is_given(run: Run, other: tuple[str, ...]) -> None:
    words = ("consume", "--topic", "t", "-e", "--formatter-property", "print.key=true")
    assert "name formats; give one" in run(*words, *other, exit_code=2).stderr


@pytest.mark.parametrize(
    ("stdin", "warnings"),
    [
        (
            b"a\r\nb\r\n",
            ["Warning: all lines so far end with a carriage return, which is kept: tr -d '\\r' removes it."],
        ),
        (b"a\r\nb\n", []),
        (
            b"\xef\xbb\xbfa\n",
            ["Warning: the input begins with a byte order mark, which is part of "],
        ),
        ("a\nb\n".encode("utf-16"), ["Warning: the input seems to be UTF-16, and is kept so: iconv "]),
    ],
)
def test_bytes_of_other_systems_are_kept_and_told_of(run: Run, stdin: bytes, warnings: list[str]) -> None:
    *told, last = run("produce", "--topic", "t", stdin=stdin).stderr.splitlines()
    assert [line[: len(warning)] for line, warning in zip(told, warnings, strict=True)] == warnings
    assert last.endswith("acknowledged by topic t.")
    assert run("consume", "--topic", "t", "-e").stdout_bytes.rstrip(b"\n") == stdin.rstrip(b"\n")


def test_every_damaged_file_is_told_of(run: Run, tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"junk")
    told = run("dump-log", str(tmp_path / "a.log"), str(tmp_path / "b.log"), exit_code=1).stderr
    assert "a.log@0" in told
    assert "b.log@0" in told


@pytest.mark.parametrize(
    "words",
    [
        ("metadata", "log", "--max", "9" * 30),
        ("maintain", "--watch", "--interval", "999999999999w"),
        ("groups", "expire", "--older-than", "36501d"),
    ],
)
def test_numbers_beyond_any_clock_or_list_are_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    assert "unexpected" not in run(*words, exit_code=2).stderr


def test_a_pattern_that_is_no_text_is_refused(run: Run) -> None:
    for words in (("topics", "list", "--pattern"), ("transactions", "list", "--transactional-id-pattern")):
        assert "INVALID_PATTERN" in run(*words, "\udcff", exit_code=1).stderr


def test_an_interrupt_is_json_where_json_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Settings) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Settings, "open_root", interrupt)
    assert json.loads(run("topics", "list", "--output", "json", exit_code=1).stderr)["error"] == {
        "code": "FAILED",
        "message": "aborted",
        "fix": None,
        "sqlstate": None,
    }
    assert run("topics", "list", exit_code=1).stderr.strip() == "Aborted!"


def test_a_line_without_the_key_that_kafkas_grammar_asks_for_ends_the_command(run: Run) -> None:
    properties = ("--reader-property", "parse.key=true", "--property", "key.separator=:")
    words = ("kafka-console-producer", "--topic", "t", *properties)
    result = run(*words, stdin="a:1\nb:2\nc\nd:4\n", exit_code=1)
    assert "line 3: found no key separator ':', expected one (parse.key=true)" in result.stderr
    assert "2 records acknowledged by topic t." in result.stderr
    assert run("consume", "--topic", "t", "-e", "-f", "%k%s ").stdout == "a1 b2 "
    run(*words, "--property", "ignore.error=true", stdin="c\n")
    run("produce", "--topic", "t", "-K:", stdin="d\n")
    assert run("consume", "--topic", "t", "-e", "-f", "%K%s ").stdout == "11 12 -1c -1d "


def test_groups_that_are_there_are_described_beside_one_that_is_not(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="one\n")
    run("consume", "--topic", "t", "-e", "--group", "g")
    result = run("groups", "describe", "--group", "g", "--group", "h", exit_code=1)
    assert result.stdout.splitlines()[1].startswith("g      t")
    assert "Consumer group 'h' does not exist" in result.stderr
