"""`sparklog root`: what a root is, and its settings."""

import os
from pathlib import Path

import pytest

import sparklog
from tests.cli.conftest import Run
from tests.cli.test_topics import RunJson


@pytest.fixture(autouse=True)
def topic(run: Run) -> None:
    run("topics", "create", "--topic", "t")


def test_settings_of_the_root_are_set_shown_and_deleted(run: Run, run_json: RunJson) -> None:
    run("root", "alter", "--config", "num.partitions=3", "--config", "segment.bytes=1000")
    shown = run("root", "describe").stdout.splitlines()
    assert shown[0].split("\t")[2:] == ["Commit: 1", "Topics: 1"]
    assert [line.split() for line in shown[1:]] == [
        ["SETTING", "VALUE", "DEFAULT", "OF"],
        ["num.partitions", "3", "1", "root"],
        ["segment.bytes", "1000", "1073741824", "topics"],
    ]
    assert run_json("topics", "create", "--topic", "u")["partition_count"] == 3
    run("root", "alter", "--delete-config", "num.partitions", "--config", "auto.create.topics.enable=false")
    assert "sparklog root alter" in run("produce", "--topic", "v", stdin="x\n", exit_code=1).stderr
    (first, *others) = run_json("root", "describe")["settings"]
    assert (first["key"], first["value"]) == ("auto.create.topics.enable", "false")
    assert [one["key"] for one in others] == ["segment.bytes"]


def test_json_fields_are_pinned(run: Run, run_json: RunJson, root: str) -> None:
    altered = run_json("root", "alter", "--config", "num.partitions=3")
    assert altered == run_json("root", "describe")
    log = sparklog.open(root)
    assert altered == {
        "root": log.url,
        "cluster_id": log.cluster_id,
        "commit": log.image.commit,
        "topics": 1,
        "brokers": [],
        "controller": None,
        "settings": [
            {"key": "num.partitions", "value": "3", "default": "1", "scope": "root", "is_set": True},
        ],
    }
    everything = run_json("root", "describe", "--all")["settings"]
    assert len(everything) > 20
    assert {"key": "retention.ms", "value": "-1", "default": "-1", "scope": "topics"} | {
        "is_set": False
    } in everything
    assert run_json("root", "alter", "--delete-config", "num.partitions")["settings"] == []
    assert "root describe --all" in run("root", "describe").stdout


def test_what_a_root_cannot_have_is_refused(run: Run) -> None:
    assert "nothing to alter" in run("root", "alter", exit_code=2).stderr
    refused = run("root", "alter", "--config", "num.partition=3", exit_code=1).stderr
    assert "Write 'num.partitions'" in refused
    assert "expected key=value" in run("root", "alter", "--config", "num.partitions", exit_code=2).stderr
    assert "UNKNOWN_CONFIG" in run("root", "alter", "--delete-config", "nothing", exit_code=1).stderr


def test_settings_of_brokers_are_shown_and_can_be_deleted(run: Run, run_json: RunJson, root: str) -> None:
    """Set by Kafka's tools, through a broker; deleted also where that one does not start any more."""
    stored = {"brokers/1/max.connections": "7", "brokers/default/max.connections": "9"}
    with sparklog.open(root) as log:
        log.metadata.publish(lambda _image: [sparklog.metadata.SetConfigs(configs=dict(stored))])
    shown = [line.split() for line in run("root", "describe").stdout.splitlines()[-2:]]
    assert shown == [[key, value, "-", "brokers"] for key, value in stored.items()]
    assert run_json("root", "describe")["settings"][-1] == {
        "key": "brokers/default/max.connections", "value": "9", "default": None, "scope": "brokers",
        "is_set": True,
    }  # fmt: skip
    assert run_json("metadata", "show")["configs"] == stored
    refused = run("root", "alter", "--config", "brokers/1/max.connections=0", exit_code=1).stderr
    assert "only a broker can check" in refused
    run("root", "alter", "--delete-config", "brokers/1/max.connections")
    assert "brokers/1/" not in run("root", "describe").stdout


def test_settings_of_groups_are_shown_and_can_be_deleted(run: Run, root: str) -> None:
    key = "groups/a/b/consumer.session.timeout.ms"
    with sparklog.open(root) as log:
        log.metadata.publish(lambda _image: [sparklog.metadata.SetConfigs(configs={key: "50000"})])
    assert run("root", "describe").stdout.splitlines()[-1].split() == [key, "50000", "-", "groups"]
    refused = run("root", "alter", "--config", f"{key}=0", exit_code=1).stderr
    assert "settings of groups, which only a broker can check" in refused
    run("root", "alter", "--delete-config", key)
    assert "groups/" not in run("root", "describe").stdout


def test_no_root_is_made(run: Run, tmp_path: object) -> None:
    elsewhere = f"{tmp_path}/elsewhere"
    words = ("--root", elsewhere, "root", "alter", "--config", "num.partitions=3")
    assert "ROOT_NOT_FOUND" in run(*words, exit_code=1).stderr


def test_what_killed_writers_left_is_swept_when_it_is_old(run: Run, run_json: RunJson, root: Path) -> None:
    temporary = root / ".tmp"
    (temporary / "old").write_bytes(b"x")
    os.utime(temporary / "old", (0, 0))
    (temporary / "young").write_bytes(b"x")
    assert run("root", "sweep").stdout == "Removed 1 files of unfinished writes.\n"
    assert {path.name for path in temporary.iterdir()} == {"young", "reserve"}
    assert run_json("root", "sweep") == {"removed": 0}
    assert run_json("root", "sweep", "--older-than-hours", "0") == {"removed": 1}


def test_a_restore_begins_an_incarnation_and_says_who_begins_anew(
    run: Run, run_json: RunJson, root: str
) -> None:
    refused = run("root", "restore", exit_code=2).stderr
    assert "give --yes" in refused
    assert "Everything that has the root open must be stopped" in refused
    dry = run("root", "restore", "--dry-run").stdout.splitlines()
    assert dry[0] == "Would begin an incarnation after commit 0."
    assert sparklog.open(root).image.incarnation.incarnation_id == ""
    done = run("root", "restore", "--yes")
    image = sparklog.open(root).image
    life = image.incarnation
    assert done.stdout.splitlines() == [
        f"Began incarnation {life.incarnation_id} in commit 1.",
        f"Producer ids: from {image.next_producer_id} on, instead of 0.",
        f"Leader epochs: from {life.leader_epoch} on, in 1 partitions.",
        "Idempotent producers: 0 forgotten.",
        "Transactional ids: 0 with new producers; aborted: none.",
        "Brokers fenced: none.",
    ]
    assert "Start anew: brokers" in done.stderr
    assert "new checkpoints" in done.stderr
    again = run_json("root", "restore", "--yes")
    after = sparklog.open(root).image
    assert again == {
        "dry_run": False,
        "incarnation_before": life.incarnation_id,
        "incarnation": after.incarnation.incarnation_id,
        "commit": 2,
        "producer_id_before": image.next_producer_id,
        "producer_id": after.next_producer_id,
        "leader_epoch": after.incarnation.leader_epoch,
        "partitions": 1,
        "producers": 0,
        "transactions": 0,
        "aborted": [],
        "brokers": [],
        "applications": [],
    }
    assert after.incarnation.incarnation_id != life.incarnation_id
    assert "restore root: incarnation_id=" in run("metadata", "log").stdout
