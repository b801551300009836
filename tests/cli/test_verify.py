"""`sparklog verify`: a JSON line for each event, with the names and fields of Kafka's verifiable clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import StorageError

Run = Callable[..., Result]


def events(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(list(one)[:2] == ["timestamp", "name"] for one in found)
    return found


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [one for one in found if one["name"] == name]


def places(found: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str | None, str]]:
    """By partition and offset: the key and the value."""
    return {(one["partition"], one["offset"]): (one["key"], one["value"]) for one in found}


def test_what_is_acknowledged_is_what_is_read(run: Run) -> None:
    run("topics", "create", "-t", "t", "--partitions", "3")
    for more in ([], ["--repeating-keys", "4", "--value-prefix", "7", "--throughput", "10000"]):
        words = ("--topic", "t", "--max-messages", "20", "--acks", "-1", *more)
        sent = events(run("kafka-verifiable-producer", *words))
        assert [sent[0]["name"], *[one["name"] for one in sent[-2:]]] == [
            "startup_complete",
            "shutdown_complete",
            "tool_data",
        ]
        assert (sent[-1]["sent"], sent[-1]["acked"]) == (20, 20)
        assert set(sent[-1]) == {
            "timestamp", "name", "sent", "acked", "target_throughput", "avg_throughput",
        }  # fmt: skip
        acknowledged = named(sent, "producer_send_success")
        group = f"g{len(more)}"
        read = events(run("verify", "consume", "-t", "t", "--group-id", group, "--verbose", "-e"))
        records = places(named(read, "record_data"))
        assert places(acknowledged).items() <= records.items()
        assert sorted({value for _, value in places(acknowledged).values()}) == sorted(
            f"{'7.' if more else ''}{number}" for number in range(20)
        )
    assert {key for key, _ in places(acknowledged).values()} == {"0", "1", "2", "3"}


def test_the_events_of_a_consumer(run: Run) -> None:
    run("produce", "-t", "t", stdin="a\nb\nc\n")
    words = ("kafka-verifiable-consumer", "--topic", "t", "--group-id", "g")
    found = events(run(*words, "--max-messages", "2"))
    for one in found:
        del one["timestamp"]
    assigned = [{"topic": "t", "partition": 0}]
    summary = {"topic": "t", "partition": 0, "count": 2, "minOffset": 0, "maxOffset": 1}
    assert found == [
        {"name": "startup_complete"},
        {"name": "partitions_assigned", "partitions": assigned},
        {"name": "records_consumed", "count": 2, "partitions": [summary]},
        {
            "name": "offsets_committed",
            "offsets": [{"topic": "t", "partition": 0, "offset": 2}],
            "success": True,
        },
        {"name": "partitions_revoked", "partitions": assigned},
        {"name": "shutdown_complete"},
    ]
    (rest,) = named(events(run(*words, "-e")), "records_consumed")
    assert rest["partitions"][0]["minOffset"] == 2
    assert named(events(run(*words, "-e")), "records_consumed") == []


@pytest.mark.parametrize(("policy", "read"), [("earliest", 1), ("latest", 0)])
def test_where_a_group_without_a_valid_offset_begins(run: Run, root: Path, policy: str, read: int) -> None:
    run("produce", "-t", "t", stdin="a\n")
    with sparklog.open(str(root), create=False) as log:
        log.commit_offsets("beyond", {("t", 0): 50})
    for group in ("new", "beyond"):
        words = ("verify", "consume", "-t", "t", "-g", group, "--reset-policy", policy, "-e")
        assert len(named(events(run(*words)), "records_consumed")) == read


def test_a_failure_is_an_event(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise StorageError("STORAGE_FAILED", "the disk is full", fix="make room")

    run("topics", "create", "-t", "t")
    run("produce", "-t", "t", stdin="a\n")
    monkeypatch.setattr(SparkLog, "append", fail)
    found = events(run("verify", "produce", "-t", "t", "--max-messages", "2", exit_code=1))
    errors = named(found, "producer_send_error")
    assert [(one["value"], one["message"]) for one in errors] == [
        ("0", "the disk is full"),
        ("1", "the disk is full"),
    ]
    assert (found[-1]["sent"], found[-1]["acked"]) == (2, 0)
    monkeypatch.setattr(SparkLog, "commit_offsets", fail)
    read = events(run("verify", "consume", "-t", "t", "-g", "g", exit_code=1))
    assert [one["success"] for one in named(read, "offsets_committed")] == [False]
    assert read[-1]["name"] == "shutdown_complete"
