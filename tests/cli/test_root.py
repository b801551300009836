"""`sparklog root`: what a root is, and its settings."""

import os
from pathlib import Path

import pytest

import sparklog
from sparklog.metadata import VERSION
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
        ["sparklog.automatic.removal", "true", "false", "root"],
        ["sparklog.metadata.version", str(VERSION), "4", "root"],
        ["segment.bytes", "1000", "1073741824", "topics"],
    ]
    assert run_json("topics", "create", "--topic", "u")["partition_count"] == 3
    run("root", "alter", "--delete-config", "num.partitions", "--config", "auto.create.topics.enable=false")
    assert "sparklog root alter" in run("produce", "--topic", "v", stdin="x\n", exit_code=1).stderr
    (first, *others) = run_json("root", "describe")["settings"]
    assert (first["key"], first["value"]) == ("auto.create.topics.enable", "false")
    assert [one["key"] for one in others] == [
        "sparklog.automatic.removal",
        "sparklog.metadata.version",
        "segment.bytes",
    ]


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
        "metadata_version": VERSION,
        "settings": [
            {"key": "num.partitions", "value": "3", "default": "1", "scope": "root", "is_set": True},
            {"key": "sparklog.automatic.removal", "value": "true", "default": "false", "scope": "root"}
            | {"is_set": True},
            {"key": "sparklog.metadata.version", "value": str(VERSION), "default": "4", "scope": "root"}
            | {"is_set": True},
        ],
    }
    everything = run_json("root", "describe", "--all")["settings"]
    assert len(everything) > 20
    assert {"key": "retention.ms", "value": "-1", "default": "-1", "scope": "topics"} | {
        "is_set": False
    } in everything
    names = ("num.partitions", "sparklog.automatic.removal", "sparklog.metadata.version")
    words = [word for name in names for word in ("--delete-config", name)]
    assert run_json("root", "alter", *words)["settings"] == []
    assert "root describe --all" in run("root", "describe").stdout


def test_what_a_root_cannot_have_is_refused(run: Run) -> None:
    assert "nothing to alter" in run("root", "alter", exit_code=2).stderr
    refused = run("root", "alter", "--config", "num.partition=3", exit_code=1).stderr
    assert "write 'num.partitions'" in refused
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
    nodes = {one["path"]: one["value"]["config"] for one in run_json("metadata", "tree", "/config")["nodes"]}
    assert nodes["/config/brokers/1"] == {"max.connections": "7"}
    assert nodes["/config/brokers/<default>"] == {
        "max.connections": "9",
        "sparklog.automatic.removal": "true",
        "sparklog.metadata.version": str(VERSION),
    }
    refused = run("root", "alter", "--config", "brokers/1/max.connections=0", exit_code=1).stderr
    assert "only a broker can check" in refused
    run("root", "alter", "--delete-config", "brokers/1/max.connections")
    assert "brokers/1/" not in run("root", "describe").stdout


def test_a_default_that_nothing_acts_on_is_told_of(run: Run) -> None:
    assert run("root", "alter", "--config", "retention.ms=999").stderr == ""
    words = ("--config", "retention.ms=1000", "--delete-config", "sparklog.automatic.removal")
    told = run("root", "alter", *words).stderr
    assert told.startswith("Warning: root: retention.ms=1000: kept, but not acted on")


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
