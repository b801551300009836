from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from sparklog.client import admin
from sparklog.client.admin import TopicDescription
from sparklog.metadata import Image

Run = Callable[..., Result]
RunJson = Callable[..., Any]

FOR_EVER = "-1"


def test_create_list_describe_alter_delete(run: Run, run_json: RunJson) -> None:
    assert run("topics", "create", "--topic", "events", "--partitions", "2").stdout == (
        "Created topic events with 2 partitions.\n"
    )
    assert run("topics", "list", "--names").stdout == "events\n"
    run("topics", "alter", "--topic", "events", "--partitions", "3", "--config", "retention.ms=-1")
    (found,) = run_json("topics", "describe", "--topic", "events")
    assert (found["partition_count"], found["configs"]) == (3, {"retention.ms": "-1"})
    run("topics", "alter", "--topic", "events", "--delete-config", "retention.ms")
    assert run_json("topics", "describe")[0]["configs"] == {}
    assert run("topics", "delete", "--topic", "events").stdout == "Deleted topic events.\n"
    assert run_json("topics", "list") == []


@pytest.mark.parametrize("refused", [("--partitions", "1"), ("--config", "no.such.setting=1")])
def test_what_is_altered_together_is_altered_or_refused_together(
    run: Run, run_json: RunJson, refused: tuple[str, ...]
) -> None:
    run("topics", "create", "--topic", "events", "--partitions", "2")
    before = run_json("topics", "describe")
    run("topics", "alter", "--topic", "events", "--config", "retention.ms=1000", *refused, exit_code=1)
    both = ("--partitions", "1", "--config", "no.such.setting=1")
    run("topics", "alter", "--topic", "events", *both, exit_code=1)
    assert run_json("topics", "describe") == before
    commit = run_json("root", "describe")["commit"]
    run("topics", "alter", "--topic", "events", "--config", "retention.ms=1000", "--partitions", "3")
    (found,) = run_json("topics", "describe")
    assert (found["partition_count"], found["configs"]) == (3, {"retention.ms": "1000"})
    assert run_json("root", "describe")["commit"] == commit + 1


def test_the_number_of_partitions_has_to_grow(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "--topic", "events", "--partitions", "2")
    words = ("topics", "alter", "--topic", "events", "--partitions", "2", "--config", "retention.ms=1")
    assert "2 would not be an increase" in run(*words, exit_code=1).stderr
    assert run_json("topics", "describe")[0]["configs"] == {}


def test_what_changed_settings_let_go_is_shown(run: Run) -> None:
    run("produce", "--topic", "events", stdin="a\nb\n")
    run("produce", "--topic", "other", stdin="c\n")
    alter = ("topics", "alter", "--topic", "events")
    assert "Warning" not in run(*alter, "--config", "retention.ms=86400000").stderr
    short = run(*alter, "--config", "retention.bytes=0").stderr
    assert "Warning: with this the next maintenance removes 2 records for good" in short
    assert "Warning" not in run(*alter, "--config", "segment.bytes=1048576").stderr
    assert "removes 1 record for good" in run("root", "alter", "--config", "retention.bytes=0").stderr
    compacted = run(*alter, "--config", "cleanup.policy=compact").stderr
    assert "Warning: compaction of events keeps only the last record of each key" in compacted
    again = run(*alter, "--config", "cleanup.policy=compact", "--config", "segment.bytes=2097152").stderr
    assert "Warning" not in again


def test_settings_are_shown_with_their_source(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "--topic", "events", "--config", "retention.ms=1000")
    run("root", "alter", "--config", "retention.ms=2000", "--config", "segment.ms=3000")
    heading, columns, *rows = run("topics", "describe", "events", "--all").stdout.splitlines()
    assert heading.startswith("Topic: events\t")
    assert columns.split() == ["SETTING", "VALUE", "SOURCE", "OVERRIDES"]
    shown = {row.split()[0]: row.split()[1:] for row in rows}
    assert shown["retention.ms"] == ["1000", "topic", "root=2000,default=-1"]
    assert shown["segment.ms"] == ["3000", "root", "default=604800000"]
    assert shown["cleanup.policy"] == ["delete", "default", "-"]
    (described,) = run_json("topics", "describe", "events", "--all")
    assert {"name": "segment.ms", "value": "3000", "source": "root"}.items() <= next(
        one for one in described["settings"] if one["name"] == "segment.ms"
    ).items()
    assert list(described["settings"][0]) == ["name", "value", "source", "overridden"]


def test_internal_topics_are_listed_when_asked_for(run: Run) -> None:
    run("produce", "--topic", "events", stdin="one\n")
    run("consume", "--topic", "events", "-e", "--group", "g")
    assert run("topics", "list", "--names").stdout == "events\n"
    every = "__consumer_offsets\nevents\n"
    assert run("topics", "list", "--names", "--include-internal").stdout == every
    assert run("kafka-topics", "--list").stdout == every
    assert run("kafka-topics", "--list", "--exclude-internal").stdout == "events\n"
    assert "__consumer_offsets" not in run("topics", "describe").stdout
    assert "__consumer_offsets" in run("topics", "describe", "__consumer_offsets").stdout
    assert "__consumer_offsets" not in run("partitions", "list").stdout
    assert "__consumer_offsets" in run("partitions", "list", "--include-internal").stdout
    assert run("topics", "list", "--names", "--pattern", "__.*").stdout == "__consumer_offsets\n"
    assert run("topics", "list", "--names", "--pattern", ".*").stderr.startswith("Note: __consumer_offsets")


@pytest.mark.parametrize("verb", ["list", "describe"])
def test_topics_that_are_deleted_while_they_are_told_of(
    run: Run, run_json: RunJson, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    run("topics", "create", "--topic", "a")
    run("topics", "create", "--topic", "b")
    describe = admin.describe_topic

    def describe_and_delete(image: Image, name: str) -> TopicDescription:
        if name == "a":
            run("topics", "delete", "--topic", "b")
        return describe(image, name)

    monkeypatch.setattr(admin, "describe_topic", describe_and_delete)
    assert [one["topic"] for one in run_json("topics", verb)] == ["a", "b"]


def test_json_fields_are_pinned(run: Run, run_json: RunJson) -> None:
    created = run_json("topics", "create", "--topic", "events", "--config", f"retention.ms={FOR_EVER}")
    assert list(created) == [
        "topic",
        "topic_id",
        "partition_count",
        "internal",
        "configs",
        "partitions",
        "created",
    ]
    (described,) = run_json("topics", "describe")
    assert {**described, "created": True} == created
    assert described["partitions"] == [
        {"partition": 0, "log_start_offset": 0, "log_end_offset": 0, "size_bytes": 0, "extents": 0}
        | {"leader": None, "leader_epoch": None, "replicas": [], "isr": []}
    ]
    (listed,) = run_json("topics", "list")
    assert listed == {
        "topic": "events",
        "topic_id": described["topic_id"],
        "partitions": 1,
        "records": 0,
        "size_bytes": 0,
        "internal": False,
    }


def test_off_a_terminal_tables_are_plain_aligned_columns(run: Run) -> None:
    run("topics", "create", "--topic", "events", "--partitions", "2")
    assert run("topics", "list").stdout.splitlines() == [
        "TOPIC   PARTITIONS  RECORDS  SIZE",
        "events  2           0        0 B",
    ]
    first, heading, *rows = run("topics", "describe", "--topic", "events").stdout.splitlines()
    assert first.startswith("Topic: events\tTopicId: ")
    assert first.endswith("\tPartitionCount: 2\tConfigs: ")
    assert heading.split() == [
        "PARTITION",
        "LOG-START-OFFSET",
        "LOG-END-OFFSET",
        "SIZE",
        "EXTENTS",
        "LEADER",
        "LEADER-EPOCH",
        "REPLICAS",
        "ISR",
    ]
    assert len(rows) == 2


def test_existing_and_missing_topics(run: Run) -> None:
    run("topics", "create", "--topic", "events")
    assert "TOPIC_EXISTS" in run("topics", "create", "--topic", "events", exit_code=1).stderr
    assert (
        run("topics", "create", "--topic", "events", "--if-not-exists").stdout
        == "Topic events exists already.\n"
    )
    assert "TOPIC_MISSING" in run("topics", "delete", "--topic", "nope", exit_code=1).stderr
    assert run("topics", "delete", "--topic", "nope", "--if-exists").stdout == "Topic nope does not exist.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "--topic", "t", "--config", "retention.ms"), "expected key=value"),
        (("create", "--topic", "t", "--partitions", "0"), "0 is not in the range"),
        (("create",), "Missing option '--topic'"),
        (("alter", "--topic", "t"), "nothing to alter"),
        (("creat", "--topic", "t"), "Did you mean 'create'?"),
        (("create", "--topik", "t"), "Did you mean '--topic'?"),
    ],
)
def test_usage_errors_exit_with_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in run("topics", *arguments, exit_code=2).stderr


def test_unknown_setting_is_refused_with_the_nearest(run: Run) -> None:
    result = run("topics", "create", "--topic", "t", "--config", "retention.mss=1", exit_code=1)
    assert "retention.ms" in result.stderr
    assert result.stdout == ""


def test_replication_factor_is_accepted_with_a_note(run: Run) -> None:
    result = run("topics", "create", "--topic", "t", "--replication-factor", "3")
    assert "no effect" in result.stderr
    assert run("topics", "create", "--topic", "u", "--replication-factor", "1").stderr == ""
