import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import sparklog

Run = Callable[..., Result]
RunJson = Callable[..., Any]


def lines(run: Run, *arguments: str) -> list[str]:
    return run("consume", "--topic", "t", "-e", *arguments).stdout.splitlines()


def test_lines_come_back_in_order(run: Run) -> None:
    result = run("produce", "--topic", "t", stdin="one\ntwo\n\nthree")
    assert result.stderr == "4 records acknowledged by topic t.\n"
    assert result.stdout == ""
    assert lines(run) == ["one", "two", "", "three"]


def test_keys_headers_codec_and_nulls(run: Run) -> None:
    run(
        "produce",
        "--topic",
        "t",
        "-K:",
        "-H",
        "a=1",
        "-H",
        "b",
        "-z",
        "zstd",
        "-Z",
        stdin="k:v\nk2:\nplain\n",
    )
    assert lines(run, "-f", r"%k|%s|%K|%S|%h\n", "-Z") == [
        "k|v|1|1|a=1,b=NULL",
        "k2|NULL|2|-1|a=1,b=NULL",
        "NULL|plain|-1|5|a=1,b=NULL",
    ]


@pytest.mark.parametrize(
    ("delimiter", "line"),
    [
        (r"\t", b"a\tb"),
        ("\t", b"a\tb"),
        (r"\x1f", b"a\x1fb"),
        (r"\xff", b"a\xffb"),
        (r"\\", b"a\\b"),
        ("::", b"a::b"),
    ],
)
def test_key_delimiters_may_be_escaped(run: Run, delimiter: str, line: bytes) -> None:
    result = run("produce", "--topic", "t", "-K", delimiter, stdin=line + b"\n")
    assert lines(run, "-f", r"[%k][%s]\n") == ["[a][b]"]
    assert result.stderr == "1 record acknowledged by topic t.\n"


@pytest.mark.parametrize("delimiter", ["", r"\q", "\\", r"\x1"])
def test_key_delimiters_that_cannot_be_are_refused(run: Run, root: Path, delimiter: str) -> None:
    assert "-K" in run("produce", "--topic", "t", "-K", delimiter, stdin="a\n", exit_code=2).stderr
    words = ("kafka-console-producer", "--topic", "t", "--property", "parse.key=true", "--property")
    assert delimiter or "empty" in run(*words, "key.separator=", stdin="a\n", exit_code=2).stderr
    assert not root.exists()


def test_lines_that_all_lack_the_delimiter_are_told_of(run: Run) -> None:
    result = run("produce", "--topic", "t", "-K", ";", stdin="a,b\nc,d\n")
    assert result.stderr == (
        "Warning: no line so far (2) holds the key delimiter ';': lines without it have no key.\n"
        "2 records acknowledged by topic t.\n"
    )
    assert "Warning" not in run("produce", "--topic", "t", "-K", ";", stdin="a,b\nc;d\n").stderr
    assert "Warning" not in run("produce", "--topic", "t", "-K", ";", "-k", "all", stdin="a,b\n").stderr
    assert (
        run("produce", "--topic", "t", "-K", ";", stdin="").stderr == "0 records acknowledged by topic t.\n"
    )


def test_bytes_of_the_command_line_are_keys_and_headers_as_they_came(run: Run, root: Path) -> None:
    odd = os.fsdecode(b"k\xff")
    run("produce", "--topic", "t", "-k", odd, "-H", f"a={odd}", stdin="value\n")
    with sparklog.open(str(root)) as log:
        (record,) = log.read("t", 0, 0, include_headers=True).to_pylist()
    assert record["key"] == b"k\xff"
    assert record["headers"] == [{"key": "a", "value": b"k\xff"}]


def test_json_lines_have_kcats_fields(run: Run) -> None:
    run("produce", "--topic", "t", "-k", "key", "-H", "a=1", stdin="value\n")
    (line,) = lines(run, "-J")
    document = json.loads(line)
    assert isinstance(document.pop("ts"), int)
    assert document == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "tstype": "create",
        "headers": ["a", "1"],
        "key": "key",
        "payload": "value",
    }
    assert lines(run, "--output", "json") == [line]


def test_lines_come_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a:1\nb:2\n")
    run("produce", "--topic", "t", "-K:", "--file", str(tmp_path / "lines"))
    assert lines(run, "-f", r"%k %s\n") == ["a 1", "b 2"]
    run("produce", "--topic", "t", "--file", str(tmp_path / "none"), exit_code=2)


def test_produce_reports_offsets_as_json(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    run("produce", "--topic", "t", "-p", "1", stdin="a\n")
    assert run_json("produce", "--topic", "t", "-p", "1", stdin="b\nc\n") == {
        "topic": "t",
        "records": 2,
        "partitions": [{"partition": 1, "base_offset": 1, "records": 2}],
    }
    assert run_json("produce", "--topic", "t", stdin="") == {"topic": "t", "records": 0, "partitions": []}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-o", "beginning"), "01234567"),
        (("--from-beginning",), "01234567"),
        (("-o", "end"), ""),
        (("-o", "5"), "567"),
        (("-o", "-2"), "67"),
        (("-o", "-100"), "01234567"),
        (("-c", "3"), "012"),
        (("-o", "2", "-c", "1"), "2"),
        (("-o", "s@0"), "01234567"),
        (("-o", "s@9999999999999"), ""),
        (("-o", "e@0"), ""),
        (("--max-messages", "0"), ""),
    ],
)
def test_where_to_start_and_stop(run: Run, arguments: tuple[str, ...], expected: str) -> None:
    run("produce", "--topic", "t", stdin="".join(f"{number}\n" for number in range(8)))
    assert "".join(lines(run, *arguments)) == expected


def test_partitions_are_chosen_or_all(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "3")
    for partition in range(3):
        run("produce", "--topic", "t", "-p", str(partition), stdin=f"in{partition}\n")
    assert lines(run) == ["in0", "in1", "in2"]
    assert lines(run, "-p", "2", "-p", "0", "-p", "2") == ["in2", "in0"]
    assert "no partition 7" in run("consume", "--topic", "t", "-e", "-p", "7", exit_code=1).stderr
    assert "PARTITION" in run("produce", "--topic", "t", "-p", "7", stdin="x\n", exit_code=1).stderr


def test_kafkas_properties_and_names(run: Run) -> None:
    run(
        "kafka-console-producer",
        "--topic",
        "t",
        "--property",
        "parse.key=true",
        "--property",
        "key.separator=:",
        "--reader-property",
        "null.marker=-",
        stdin="k:v\nk:-\n",
    )
    result = run(
        "kafka-console-consumer",
        "--topic",
        "t",
        "--from-beginning",
        "-e",
        "--formatter-property",
        "print.key=true",
        "--property",
        "key.separator=%",
    )
    assert result.stdout.splitlines() == ["k%v", "k%"]


def test_group_starts_where_it_left_off(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="1\n2\n3\n")
    assert lines(run, "--group", "g", "-c", "2") == ["1", "2"]
    assert lines(run, "--group", "g", "--from-beginning") == ["3"]
    assert lines(run, "--group", "g") == []
    assert lines(run, "--group", "g", "--from-beginning") == []
    assert lines(run, "--group", "g", "-o", "beginning") == ["1", "2", "3"]
    run("produce", "--topic", "t", stdin="4\n")
    (row,) = run_json("groups", "describe", "--group", "g")
    assert row.pop("lag_seconds") >= 0
    assert row.pop("committed_ms") > 0
    assert row == {
        "group": "g",
        "topic": "t",
        "partition": 0,
        "current_offset": 3,
        "log_end_offset": 4,
        "lag": 1,
        "consumer_id": None,
        "host": None,
        "client_id": None,
        "metadata": None,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "middle"), "'middle' is not a position"),
        (("-o", "1", "-o", "2"), "two starts"),
        (("-f", "%q"), "unknown token %q"),
        (("-f", "%s", "-J"), "name formats; give one"),
        (("-o", "end", "--from-beginning"), "two starts"),
        (("--property", "print.nothing=true"), "expected one of print.timestamp"),
    ],
)
def test_usage_errors(run: Run, arguments: tuple[str, ...], message: str) -> None:
    run("produce", "--topic", "t", stdin="1\n")
    assert message in run("consume", "--topic", "t", "-e", *arguments, exit_code=2).stderr


def test_offset_outside_the_log_is_an_error(run: Run) -> None:
    run("produce", "--topic", "t", stdin="1\n")
    result = run("consume", "--topic", "t", "-e", "-o", "5", exit_code=1)
    assert "found start offset 5, expected 0 to 1" in result.stderr


def test_record_too_large_says_what_was_acknowledged(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--config", "max.message.bytes=1000")
    result = run("produce", "--topic", "t", stdin="x" * 2000 + "\n", exit_code=1)
    assert "RECORD_TOO_LARGE" in result.stderr
    assert "0 records acknowledged" in result.stderr
    assert lines(run) == []


def test_reading_needs_a_root_that_exists(run: Run, root: Path) -> None:
    assert "ROOT_NOT_FOUND" in run("consume", "--topic", "t", "-e", exit_code=1).stderr
    assert not root.exists()
