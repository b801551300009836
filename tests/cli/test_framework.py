"""What all commands share: plain text, options given twice, --bootstrap-server."""

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
from sparklog.cli.framework import json_text, show_failure
from sparklog.cli.output import cell
from sparklog.cli.record_format import ConsumedRecord, json_line
from sparklog.metadata import plan_begin_producer
from sparklog.wording import plain
from tests.cli.conftest import Run
from tests.client.fake_broker import broker_of, fake_broker

# --- plain text ------------------------------------------------------------------------------------


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
    assert run_json("groups", "list") == [{"group": FORGED, "type": "classic"}]
    assert run_json("groups", "describe", "--group", FORGED)[0]["group"] == FORGED


def test_a_missing_group_is_told_in_a_line(run: Run) -> None:
    run("topics", "create", "--topic", "t")
    told = run("groups", "describe", "--group", FORGED, exit_code=1).stderr
    assert f"GROUP_MISSING] Consumer group '{SHOWN}' does not exist: it has committed no offsets. Fix" in told
    assert told.count("\n") == 1


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
    "framework.py": "messages",
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


# --- given twice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "--topic", "t", "--topic", "u"),
        ("produce", "-t", "t", "--topic=u"),
        ("kafka-console-producer", "--topic", "t", "--topic", "u"),
        ("consume", "--topic", "t", "-e", "--group", "a", "-G", "b"),
        ("topics", "alter", "--topic", "t", "--topic", "u", "--partitions", "4"),
        ("topics", "create", "--topic", "v", "--partitions", "1", "--partitions", "2"),
        ("kafka-topics", "--alter", "--topic", "t", "--topic", "u", "--partitions", "4"),
        ("groups", "expire", "--older-than", "7d", "--older-than", "0"),
        ("vacuum", "--retain", "7d", "--retain", "0"),
    ],
)
def test_nothing_is_done(run: Run, run_json: RunJson, words: tuple[str, ...]) -> None:
    for topic in ("t", "u"):
        run("topics", "create", "--topic", topic)
    told = run(*words, stdin="x\n", exit_code=2).stderr
    assert "it is given more than once, and takes one value" in told
    described = run_json("topics", "describe")
    assert [(one["topic"], one["partition_count"]) for one in described] == [("t", 1), ("u", 1)]
    assert run("consume", "--topic", "t", "-e").stdout == run("consume", "--topic", "u", "-e").stdout == ""


def test_what_takes_several_values_takes_them(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--config", "flush.ms=5", "--config", "segment.bytes=1000")
    for partition in ("0", "0"):
        run("produce", "--topic", "t", "-p", partition, "-H", "a=1", "-H", "b=2", stdin="x\n")
    assert run("consume", "--topic", "t", "-e", "-p", "0", "-p", "0").stdout == "x\nx\n"


def test_a_word_without_an_option_is_the_topic_or_the_group(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "t", "--partitions", "2")
    run("produce", "t", "-p", "0", stdin="x\n")
    assert run("consume", "t", "-e", "--group", "g").stdout == "x\n"
    assert [one["topic"] for one in run_json("topics", "describe", "t", "t")] == ["t", "t"]
    assert run_json("groups", "describe", "g")[0]["group"] == "g"
    assert "unexpected extra argument (t)" in run("topics", "delete", "t", exit_code=2).stderr
    assert "given more than once" in run("consume", "-e", "-t", "t", "u", exit_code=2).stderr
    assert "TOPIC_MISSING" in run("topics", "describe", "t", "u", exit_code=1).stderr


def test_of_the_common_options_the_last_one_wins(run: Run) -> None:
    """They may stand before the command, in an alias of the shell, and after it."""
    run("topics", "create", "--topic", "t")
    assert run("topics", "list", "--output", "json", "--output", "table", "--names").stdout == "t\n"


def test_a_capital_m_is_no_minute(run: Run) -> None:
    """Months were meant, and offsets of six minutes ago would have gone."""
    run("topics", "create", "--topic", "t")
    told = run("groups", "expire", "--older-than", "6M", exit_code=2).stderr
    assert "found '6M': write 6m for minutes; for months, days" in told
    assert run("groups", "expire", "--older-than", "6D").stdout == "No group is older than that.\n"


# --- bootstrap server ------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    log = sparklog.open(tmp_path / "the broker's")
    log.create_topic("events")
    return log


@pytest.mark.slow
def test_the_brokers_root_is_worked_on(run: Run, log: sparklog.SparkLog) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        assert run("kafka-topics", "--list", "--bootstrap-server", server).stdout == "events\n"
        run("--bootstrap-server", server, "topics", "create", "--topic", "more")
        assert f"cluster {log.cluster_id}" in run("doctor", "--bootstrap-server", server, exit_code=0).stdout
    assert log.topics() == ["events", "more"]


def test_a_root_and_a_broker_are_one_too_many(run: Run, tmp_path: Path) -> None:
    words = ("topics", "list", "--root", str(tmp_path), "--bootstrap-server", "127.0.0.1:1")
    assert "give one of them" in run(*words, exit_code=2).stderr


def test_a_broker_that_does_not_answer(run: Run) -> None:
    result = run("topics", "list", "--bootstrap-server", "127.0.0.1:1", exit_code=1)
    assert "BROKER_UNREACHABLE" in result.stderr


def test_the_demo_wants_no_broker(run: Run) -> None:
    assert "a log of its own" in run("demo", "--bootstrap-server", "127.0.0.1:1", exit_code=2).stderr


@pytest.mark.slow
def test_the_log_that_is_meant_is_worked_on_and_no_other(
    run: Run, log: sparklog.SparkLog, tmp_path: Path
) -> None:
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        for place in (("--bootstrap-server", server), ("--root", log.url)):
            run("topics", "list", *place, "--cluster-id", log.cluster_id)
            for command in (("topics", "list"), ("topics", "create", "--topic", "t"), ("doctor",)):
                result = run(*command, *place, "--cluster-id", "another", exit_code=1)
                assert "WRONG_ROOT" in result.output
                assert f"found cluster id '{log.cluster_id}', expected 'another'" in result.output
    run(
        "topics", "create", "--topic", "t", "--root", f"{tmp_path}/new", "--cluster-id", "x" * 22, exit_code=1
    )
    assert not (tmp_path / "new").exists()
    assert log.topics() == ["events"]


def test_the_environment_says_where_roots_may_be(
    run: Run, log: sparklog.SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"{tmp_path}/elsewhere")
    with fake_broker(broker_of(log.url, log.cluster_id)) as server:
        for place in (("--bootstrap-server", server), ("--root", log.url)):
            assert "ROOT_NOT_ALLOWED" in run("topics", "list", *place, exit_code=1).stderr
        monkeypatch.setenv("SPARKLOG_ALLOWED_ROOTS", f"{tmp_path}/elsewhere,{tmp_path}")
        assert run("topics", "list", "--bootstrap-server", server).exit_code == 0
