"""Names that others chose: in a table, a line or a message each stays in its place; JSON has it exactly."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparklog
from sparklog.cli import framework
from sparklog.cli import framework as plain_text
from sparklog.cli.framework import json_text, plain, show_failure
from sparklog.cli.output import cell
from sparklog.cli.record_format import ConsumedRecord, json_line
from sparklog.metadata import plan_begin_producer
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
FORGED = "x\nforged  t  0  9  9  0\x1b[2J\x9b2J\u202e\r\x7f"
SHOWN = r"x\nforged  t  0  9  9  0\u001b[2J\u009b2J\u202e\r\u007f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-1", "orders-1"),
        ("größe \\n 注文", "größe \\n 注文"),
        (FORGED, SHOWN),
        ("a\tb", r"a\tb"),
        ("\u2028\u2066\ufeff", r"\u2028\u2066\ufeff"),
        ("\udcff", r"\udcff"),  # a byte of an argument that is not UTF-8
        ("\U000e0041", r"\udb40\udc41"),  # a letter nobody sees
    ],
)
def test_what_is_not_to_be_printed_is_an_escape(text: str, shown: str) -> None:
    assert plain(text) == cell(text) == shown
    assert cell([text, 1]) == f"{shown},1"
    assert cell({"key": text}) == f"key={shown}"


@given(st.text(st.characters(exclude_categories=[])))
def test_plain_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)


@given(st.recursive(st.text(st.characters(exclude_categories=[])), st.lists, max_leaves=5))
def test_json_is_exact_and_no_terminal_obeys_it(document: object) -> None:
    for indent in (None, 2):
        text = json_text(document, indent=indent)
        assert json.loads(text) == document
        assert plain_text.OBEYED.search(text) is None
        assert json.loads(plain(text, keep="\n")) == document
        text.encode()


def test_a_group_cannot_forge_a_row(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="one\n")
    run("consume", "--topic", "t", "--group", FORGED, "-e")
    assert run("groups", "list").stdout == f"{SHOWN}\n"
    _, row = run("groups", "describe", "--all-groups").stdout.splitlines()
    assert row.startswith(f"{SHOWN}  t      0          1 ")
    assert run_json("groups", "list") == [{"group": FORGED}]
    assert run_json("groups", "describe", "--group", FORGED)[0]["group"] == FORGED


def test_a_missing_group_is_told_in_a_line(run: Run) -> None:
    run("topics", "create", "--topic", "t")
    told = run("groups", "describe", "--group", FORGED, exit_code=1).stderr
    assert told == f"Error: Consumer group '{SHOWN}' does not exist: it has committed no offsets.\n"


def test_a_transactional_id_cannot_either(run: Run, run_json: RunJson, root: Path) -> None:
    run("topics", "create", "--topic", "t")
    with sparklog.open(root) as log:
        begun = plan_begin_producer(log.refresh(), FORGED, timeout_ms=1000, now_ms=log.clock.now_ms())
        log.metadata.publish(lambda _: begun.actions)
    assert run("transactions", "list").stdout.splitlines()[1].startswith(f"{SHOWN}  ")
    assert f"transactional_id={SHOWN}" in run("metadata", "log").stdout.splitlines()[-1]
    assert SHOWN in run("metadata", "show", str(log.image.commit)).stdout
    assert run_json("transactions", "list")[0]["transactional_id"] == FORGED


def test_dumped_records_are_a_line_each(run: Run, run_json: RunJson, root: Path) -> None:
    run("produce", "--topic", "t", "-K:", "-H", "h\x1b=1", stdin="k\x1b[2J:v\r\n")
    (segment,) = root.glob("segments/*/*.log")
    shown = run("dump-log", "--print-data-log", str(segment)).stdout.splitlines()
    assert len(shown) == 3
    assert shown[2].endswith(r"headerKeys: [h\u001b] key: k\u001b[2J payload: v\r")
    (file,) = run_json("dump-log", "--print-data-log", str(segment))
    assert (file["entries"][1]["key"], file["entries"][1]["payload"]) == ("k\x1b[2J", "v\r")


def test_a_record_is_printed_as_it_is_and_as_json_without_what_a_terminal_obeys(run: Run) -> None:
    run("produce", "--topic", "t", stdin="v\x1b\x9b\n")
    assert run("consume", "--topic", "t", "-e").stdout == "v\x1b\x9b\n"
    record = ConsumedRecord(
        topic="t", partition=0, offset=0, timestamp_ms=0, timestamp_type=0, key=None, value="v\x9b".encode()
    )
    assert b'"payload":"v\\u009b"' in json_line(record)


def test_messages_are_plain_too(capsys: pytest.CaptureFixture[str]) -> None:
    """What a broker answers, say; a line feed of ours stays."""
    show_failure(click.ClickException(""), f"broker 1: {FORGED}", as_json=False)
    assert capsys.readouterr().err == f"Error: broker 1: {SHOWN}\n"
    framework.note("one\ntwo\x1b[2J")
    assert capsys.readouterr().err == "one\ntwo\\u001b[2J\n"


MAY_PRINT = {
    "output.py": "tables, JSON and lines of results",
    "framework.py": "what is no result",
    "main.py": "the version",
}


def test_nothing_else_prints() -> None:
    """Who would print a name as it is: results go through `tell` and `show_*`, the rest through `note`."""
    folder = Path(plain_text.__file__).parent
    printing = {
        path.name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"click.echo", "click.secho", "print"}
    }
    assert printing == set(MAY_PRINT)
