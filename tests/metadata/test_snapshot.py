"""Snapshots say what a replay would, are used when opening, and never decide over a publish."""

import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, StorageError, UnsupportedVersionError
from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
    Topic,
    WriterTxn,
    plan_advance_log_start,
    plan_append,
)
from sparklog.metadata.documents.document import ManifestBody, encode_document
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, manifest_name, manifest_of
from sparklog.metadata.documents.snapshot import read_manifest, read_snapshot, verify_snapshot, write_snapshot
from sparklog.metadata.loading import load_image
from sparklog.storage import MemoryStore

BLOCK = 4096
Create = Callable[..., Topic]
Append = Callable[..., Image]
Draft = Callable[..., DraftExtent]


def rich_log(memory: MemoryStore, create: Create, draft: Draft) -> MetadataLog:
    log = MetadataLog.open(memory, ManualClock(), create=True)
    topic = create(log, partitions=3)
    create(log, "empty", 1, topic_id="BBBBBBBBBBBBBBBBBBBBBB")
    for number in range(20):
        drafts = [
            draft(topic, number % 2, segment=f"segments/ä{number % 3}/0.log", position=number * 100),
            draft(topic, 0, producer_id=number % 4, producer_epoch=0, base_sequence=number // 4 * 10),
        ]
        log.publish(partial(rich_plan, drafts=drafts, txn=rich_txn(topic, number)))
    log.publish(
        lambda image: [SetConfigs(configs={"a": "ü"}), SetConfigs(topic_id=topic.topic_id, configs={"b": ""})]
    )
    advance = plan_advance_log_start(log.image, topic.topic_id, 0, 25)
    assert advance is not None
    log.publish(lambda image: [advance])
    return log


def rich_txn(topic: Topic, number: int) -> WriterTxn:
    content = "" if number % 4 else f"content {number}"
    return WriterTxn(application=f"p{number % 3}", version=number, topics=(topic.topic_id,), content=content)


def rich_plan(image: Image, drafts: list[DraftExtent], txn: WriterTxn) -> list[Action]:
    return [plan_append(image, drafts), txn]


def snapshots(memory: MemoryStore) -> list[int]:
    names = (manifest_of(file.name) for file in memory.list(DIRECTORY, recursive=True))
    return [number for number in names if number is not None]


def replace_file(memory: MemoryStore, name: str, data: bytes) -> None:
    memory.delete(name)
    memory.put_if_absent(name, data)


def files_of(memory: MemoryStore, snapshot: int) -> list[str]:
    return [file.name for file in memory.list(f"{DIRECTORY}/{snapshot:020d}.snapshot")]


def test_snapshot_equals_the_image(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    assert read_snapshot(memory, commit, cluster_id=log.cluster_id) == log.image


def test_snapshot_of_an_empty_image(log: MetadataLog, memory: MemoryStore) -> None:
    log.write_snapshot()
    assert snapshots(memory) == []
    log.publish(lambda image: [SetConfigs(configs={"a": "1"})])
    assert log.write_snapshot() == 0
    assert read_snapshot(memory, 0, cluster_id=log.cluster_id) == log.image


def test_opening_needs_only_what_follows_the_snapshot(
    memory: MemoryStore, create: Create, append: Append, draft: Draft
) -> None:
    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    append(log, log.image.topic("orders"), 2)
    for number in range(commit):
        if number:
            memory.delete(commit_name(number))
    assert MetadataLog.open(memory, ManualClock()).image == log.image


def test_writing_it_twice_is_no_error(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)
    log.write_snapshot()
    before = memory.list("", recursive=True)
    log.write_snapshot()
    assert memory.list("", recursive=True) == before


def test_racing_writers_make_one_snapshot(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and name.endswith("manifest.json"):
            memory.hook = None
            write_snapshot(memory, log.image, timestamp_ms=1)

    memory.hook = hook
    commit = log.write_snapshot()
    assert read_manifest(memory, commit, cluster_id=log.cluster_id)[0].timestamp_ms == 1
    assert len(files_of(memory, commit)) == 5  # the loser's parts wait for cleaning
    assert read_snapshot(memory, commit, cluster_id=log.cluster_id) == log.image


@pytest.mark.parametrize("part", ["state", "extents", "manifest"])
def test_failure_to_write_it_never_fails_the_publish(
    memory: MemoryStore, create: Create, append: Append, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    settings = MetadataSettings(snapshot_bytes=4 * BLOCK)
    log = MetadataLog.open(memory, ManualClock(), create=True, settings=settings)
    topic = create(log)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and f"/{part}" in name:
            raise StorageError("STORAGE_FULL", "no space", fix="free some")

    memory.hook = hook
    with caplog.at_level(logging.WARNING, "sparklog"):
        append(log, topic, 6)
    assert "no snapshot after commit 3" in caplog.text
    assert snapshots(memory) == []
    memory.hook = None
    append(log, topic, 6)
    assert snapshots(memory) == [7, 11]
    assert MetadataLog.open(memory, ManualClock()).image == log.image


def test_every_bit_flip_and_truncation_is_detected(memory: MemoryStore, create: Create) -> None:
    log = MetadataLog.open(memory, ManualClock(), create=True)
    create(log)
    commit = log.write_snapshot()
    for name in files_of(memory, commit):
        good = memory.read(name)
        damaged = [good[:size] for size in range(0, len(good), 7)]
        damaged += [
            good[:position] + bytes([good[position] ^ 1 << position % 8]) + good[position + 1 :]
            for position in range(len(good))
        ]
        for bad in damaged:
            replace_file(memory, name, bad)
            for use in (read_snapshot, verify_snapshot):
                with pytest.raises(CorruptLogError):
                    use(memory, commit, cluster_id=log.cluster_id)
        replace_file(memory, name, good)
    assert read_snapshot(memory, commit, cluster_id=log.cluster_id) == log.image


def test_damaged_snapshot_falls_back_to_an_older_one(
    memory: MemoryStore, create: Create, append: Append, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetadataLog.open(memory, ManualClock(), create=True)
    topic = create(log)
    append(log, topic, 5)
    log.write_snapshot()
    append(log, topic, 5)
    damaged = manifest_name(log.write_snapshot())
    append(log, topic, 1)
    replace_file(memory, damaged, b"nonsense")
    for number in range(1, 5):
        memory.delete(commit_name(number))
    with caplog.at_level(logging.WARNING, "sparklog"):
        assert MetadataLog.open(memory, ManualClock()).image == log.image
    assert "skipping a damaged snapshot" in caplog.text
    assert damaged in caplog.text


def test_missing_part_falls_back_to_the_full_log(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    memory.delete(next(name for name in files_of(memory, commit) if "/extents" in name))
    assert MetadataLog.open(memory, ManualClock()).image == log.image


def test_no_way_to_the_end_is_an_error_that_names_the_snapshot(
    memory: MemoryStore, create: Create, draft: Draft
) -> None:
    log = rich_log(memory, create, draft)
    damaged = manifest_name(log.write_snapshot())
    replace_file(memory, damaged, b"nonsense")
    memory.delete(commit_name(1))
    with pytest.raises(CorruptLogError, match="commit 1 is missing") as raised:
        MetadataLog.open(memory, ManualClock())
    assert damaged in str(raised.value.__cause__)


def test_commits_that_end_before_a_snapshot(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    replace_file(memory, manifest_name(commit), b"nonsense")
    memory.delete(commit_name(commit))
    with pytest.raises(CorruptLogError, match=f"before snapshot {commit}"):
        MetadataLog.open(memory, ManualClock())


def test_snapshot_of_another_root_is_refused(memory: MemoryStore, create: Create, draft: Draft) -> None:
    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    with pytest.raises(CorruptLogError, match="another root"):
        read_snapshot(memory, commit, cluster_id="X" * 22)


def test_newer_snapshot_asks_for_an_upgrade(memory: MemoryStore, create: Create, draft: Draft) -> None:
    import msgspec

    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    header, body = read_manifest(memory, commit, cluster_id=log.cluster_id)
    replace_file(
        memory,
        manifest_name(commit),
        encode_document(msgspec.structs.replace(header, version=2), body),
    )
    with pytest.raises(UnsupportedVersionError, match=r"found version 2, expected 1;.*Upgrade"):
        load_image(memory, log.cluster_id)


@pytest.mark.parametrize("name", ["../../meta.properties", "/etc/passwd", "", "a\0"])
def test_manifest_cannot_point_outside(memory: MemoryStore, create: Create, draft: Draft, name: str) -> None:
    import msgspec

    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    header, body = read_manifest(memory, commit, cluster_id=log.cluster_id)
    body = ManifestBody(state=msgspec.structs.replace(body.state, name=name), extents=body.extents)
    replace_file(memory, manifest_name(commit), encode_document(header, body))
    with pytest.raises(CorruptLogError, match="file name"):
        read_snapshot(memory, commit, cluster_id=log.cluster_id)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b'"partitions":[[25,300,', b'"partitions":[[99,300,', None),
        (b'"partitions":[[25,300,', b'"partitions":[[25,29,', "end after the log end"),
        (b'"partitions":[[25,300,', b'"partitions":[[301,300,', "found _Partition"),
        (b'"name":"orders"', b'"name":"../orders"', "topic name"),
        (b'"topic_id":"A', b'"topic_id":"/', "topic name"),
        (b'"configs":{"a"', b'"configs":{5', "cannot be decoded"),
        (b'"topics":[', b'"epoch":1,"topics":[', "cannot be decoded"),
        (b']]}],"retired"', b',{}]]}],"retired"', "cannot be decoded"),
        (b'[0,0,0,{}]]}],"retired"', b'[0,0,1,{}]]}],"retired"', "found 38 extents, expected 39"),
    ],
)
def test_state_that_contradicts_itself(
    memory: MemoryStore, create: Create, draft: Draft, old: bytes, new: bytes, found: str | None
) -> None:
    """Bytes that match their checksum, and are wrong all the same."""
    import msgspec

    from sparklog.metadata.documents.document import checksum

    log = rich_log(memory, create, draft)
    commit = log.write_snapshot()
    header, body = read_manifest(memory, commit, cluster_id=log.cluster_id)
    name = f"{DIRECTORY}/{commit:020d}.snapshot/{body.state.name}"
    data = memory.read(name)
    assert old in data, data
    data = data.replace(old, new, 1)
    replace_file(memory, name, data)
    part = msgspec.structs.replace(body.state, size=len(data), crc32c=checksum(data))
    body = ManifestBody(state=part, extents=body.extents)
    replace_file(memory, manifest_name(commit), encode_document(header, body))
    if found is None:
        read_snapshot(memory, commit, cluster_id=log.cluster_id)
        return
    with pytest.raises(CorruptLogError, match=found):
        read_snapshot(memory, commit, cluster_id=log.cluster_id)


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"ARROW1\0\0" + bytes(100) + b"ARROW1"])
def test_extents_that_are_no_arrow_file(data: bytes) -> None:
    from sparklog.metadata.documents.snapshot_extents import decode_extents

    with pytest.raises(CorruptLogError, match="here"):
        decode_extents(memoryview(data), "here")


@pytest.mark.slow
def test_neither_writing_nor_opening_imports_pandas() -> None:
    """pyarrow imports it by itself in many places; 0.3 s in the middle of somebody's publish."""
    script = """
import sys
from sparklog.clock import SystemClock
from sparklog.metadata import *
from sparklog.storage import open_store
store = open_store("memory://x", create=True)
log = MetadataLog.open(store, SystemClock(), create=True)
topic = new_id()
log.publish(lambda image: [plan_create_topic(image, "orders", 1, topic_id=topic)])
extent = {"segment": "a", "position": 0, "size": 100, "record_count": 3, "max_timestamp_ms": 0}
draft = DraftExtent(topic_id=topic, partition=0, **extent)
log.publish(lambda image: [plan_append(image, [draft])])
log.write_snapshot()
assert MetadataLog.open(store, SystemClock()).image == log.image
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
