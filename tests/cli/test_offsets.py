"""`sparklog offsets`: what kafka-get-offsets prints, and a group's offsets to a file and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog
from sparklog.metadata import new_id, plan_join_broker

Run = Callable[..., Result]
RunJson = Callable[..., Any]

# --- get ---------------------------------------------------------------------------------------------


def test_offsets_are_printed_as_kafka_does(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    run("produce", "--topic", "t", "-p", "0", stdin="a\nb\n")
    assert run("offsets", "get", "--topic", "t").stdout == "t:0:2\nt:1:0\n"
    assert run("offsets", "get", "--topic", "t", "--time", "-2").stdout == "t:0:0\nt:1:0\n"
    assert run("offsets", "get", "--topic-partitions", "t:0", "--time", "latest").stdout == "t:0:2\n"
    assert run("offsets", "get", "--topic", "t", "--partitions", "0", "--time", "0").stdout == "t:0:0\n"
    assert run("kafka-get-offsets", "--topic", "t", "--time", "9999999999999").stdout == "t:0:\nt:1:\n"
    assert run_json("offsets", "get", "--time", "9999999999999")[0] == {
        "topic": "t",
        "partition": 0,
        "offset": None,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topic-partitions", "t:x"),
        ("--topic-partitions", "t:1:2"),
        ("--topic-partitions", "t,"),
        ("--topic-partitions", "t:0", "--topic", "t"),
        ("--partitions", "x"),
        ("--time", "yesterday"),
        ("--time", "-7"),
    ],
)
def test_offsets_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    run("topics", "create", "--topic", "t")
    run("offsets", "get", *arguments, exit_code=2)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("-1", ["t:0:3", "t:1:0"]),
        ("latest", ["t:0:3", "t:1:0"]),
        ("-2", ["t:0:0", "t:1:0"]),
        ("earliest", ["t:0:0", "t:1:0"]),
        ("-3", ["t:0:1", "t:1:"]),
        ("max-timestamp", ["t:0:1", "t:1:"]),
        ("-4", ["t:0:0", "t:1:0"]),
        ("earliest-local", ["t:0:0", "t:1:0"]),
        ("-5", ["t:0:", "t:1:"]),
        ("latest-tiered", ["t:0:", "t:1:"]),
        ("earliest-pending-upload", ["t:0:", "t:1:"]),
        ("5500", ["t:0:1", "t:1:"]),
    ],
)
def test_special_times_of_kafka(run: Run, root: Path, named: str, found: list[str]) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    with sparklog.open(str(root), create=False) as log:
        rows = pa.table({"value": ["a", "b", "c"], "timestamp": pa.array([5000, 9000, 7000], pa.int64())})
        log.append("t", rows, partition=0)
    assert run("offsets", "get", "--topic", "t", "--time", named).stdout.splitlines() == found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a:1", ["a:1"]),
        ("a:1-3", ["a:1", "a:2"]),
        ("a:2-", ["a:2", "a:3"]),
        ("a:-1", ["a:0"]),
        ("b", ["b:0", "b:1"]),
        (":0", ["a:0", "b:0"]),
        ("[ab]:1", ["a:1", "b:1"]),
        ("b:0,a:3,b", ["b:0", "a:3", "b:1"]),
    ],
)
def test_topic_partitions_are_kafkas_patterns(run: Run, pattern: str, found: list[str]) -> None:
    run("topics", "create", "--topic", "a", "--partitions", "4")
    run("topics", "create", "--topic", "b", "--partitions", "2")
    shown = run("kafka-get-offsets", "--topic-partitions", pattern).stdout.splitlines()
    assert shown == [f"{name}:0" for name in found]


def test_topic_partitions_that_do_not_exist(run: Run) -> None:
    run("topics", "create", "--topic", "t")
    assert "no partition is among" in run("offsets", "get", "--topic-partitions", "t:4-", exit_code=1).stderr
    run("offsets", "get", "--topic-partitions", "t:4", exit_code=1)
    run("offsets", "get", "--topic-partitions", "u:0", exit_code=1)


# --- export and import -------------------------------------------------------------------------------


@pytest.fixture
def committed(run: Run) -> None:
    """Group g is at offset 2 of t-0, the end."""
    run("produce", "--topic", "t", stdin="a\nb\n")
    run("consume", "--topic", "t", "--group", "g", "-e")


@pytest.mark.usefixtures("committed")
def test_what_is_exported_can_be_imported(run: Run, run_json: RunJson) -> None:
    exported = run("offsets", "export", "--group", "g").stdout
    assert exported == "t,0,2\n"
    assert run_json("offsets", "export", "-g", "g") == [
        {"group": "g", "topic": "t", "partition": 0, "offset": 2}
    ]
    words = ("offsets", "import", "--group", "h", "--file", "-")
    dry = run(*words, stdin=exported)
    assert "Nothing was changed" in dry.stderr
    assert run("groups", "list").stdout == "g\n"
    run(*words, "--execute", stdin=exported)
    assert run("offsets", "export", "--group", "h").stdout == exported
    assert run("consume", "--topic", "t", "--group", "h", "-e").stdout == ""


@pytest.mark.usefixtures("committed")
def test_several_groups_have_their_names_in_the_file(run: Run, run_json: RunJson) -> None:
    run("consume", "--topic", "t", "--group", "h", "-e")
    exported = run("offsets", "export", "-g", "g", "-g", "h").stdout
    assert exported == "g,t,0,2\nh,t,0,2\n"
    moved = exported.replace("t,0,2", "t,0,1")
    found = run_json("offsets", "import", "--from-file", "-", "--execute", stdin=moved)
    assert found["executed"]
    assert [(one["group"], one["current_offset"], one["new_offset"]) for one in found["offsets"]] == [
        ("g", 2, 1),
        ("h", 2, 1),
    ]
    assert run("consume", "--topic", "t", "--group", "h", "-e").stdout == "b\n"


@pytest.mark.usefixtures("committed")
def test_an_offset_outside_of_the_log_is_its_end(run: Run) -> None:
    """Committed as it is, the group would skip records that come later, or be reset."""
    result = run("offsets", "import", "-g", "g", "--file", "-", "--execute", stdin="t,0,99\n")
    assert "found offset 99, and the log has 0 to 2: 2 is taken" in result.stderr
    assert run("offsets", "export", "-g", "g").stdout == "t,0,2\n"


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file has no offsets"),
        ("t,0\n", "line 1: found 't,0', expected topic,partition,offset"),
        ("t,0,-1\n", "line 1"),
        ("t,x,1\n", "line 1"),
        ("h,t,0,1\n", "(of group g)"),
        ("t,0,1\n\nt,0,2\n", "line 3: t-0 is there twice"),
        ("u,0,1\n", "TOPIC_MISSING"),
        ("t,5,1\n", "SPARKLOG"),
    ],
)
def test_what_is_no_file_of_offsets_changes_nothing(run: Run, text: str, why: str) -> None:
    result = run("offsets", "import", "-g", "g", "--file", "-", "--execute", stdin=text, exit_code=1)
    assert why in result.stderr
    assert run("offsets", "export", "-g", "g").stdout == "t,0,2\n"


@pytest.mark.usefixtures("committed")
def test_a_file_without_groups_needs_one(run: Run) -> None:
    result = run("offsets", "import", "--file", "-", stdin="t,0,1\n", exit_code=1)
    assert "or group,topic,partition,offset" in result.stderr
    assert "has committed no offsets" in run("offsets", "export", "-g", "nosuch", exit_code=1).stderr


@pytest.mark.usefixtures("committed")
def test_a_brokers_groups_are_its_own(run: Run, root: Path) -> None:
    """The next commit of a running member would undo the import without a word."""
    with sparklog.open(str(root), create=False) as log:
        log.metadata.publish(lambda image: [plan_join_broker(image, 7, incarnation_id=new_id())])
    words = ("offsets", "import", "-g", "g", "--file", "-")
    assert "Nothing was changed" in run(*words, stdin="t,0,1\n").stderr
    assert "BROKER_COORDINATES" in run(*words, "--execute", stdin="t,0,1\n", exit_code=1).stderr
    assert run("offsets", "export", "-g", "g").stdout == "t,0,2\n"
    run(*words, "--execute", "--force", stdin="t,0,1\n")
    assert run("offsets", "export", "-g", "g").stdout == "t,0,1\n"
