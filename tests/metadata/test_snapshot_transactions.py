"""Transactions in snapshots: what comes out is what went in, and damage is told."""

import base64
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from sparklog.errors import CorruptLogError
from sparklog.metadata import (
    DeleteTopic,
    StageExtents,
    plan_add_to_transaction,
    plan_create_topic,
    plan_stage,
)
from sparklog.metadata.documents.document import ManifestBody, checksum, encode_document
from sparklog.metadata.documents.properties import manifest_name, snapshot_directory
from sparklog.metadata.documents.snapshot import read_manifest, read_snapshot, write_snapshot
from sparklog.storage import MemoryStore
from tests.metadata.transacting import OTHER, TOPIC, Producer, Root, draft


@pytest.fixture
def root() -> Root:
    """One transaction with something staged, one that is over, one of which nothing was begun."""
    root = Root()
    root.append(9, 0)
    producer = root.begin()
    for number in range(20):
        root.stage(producer, 2 * number, 2, opens=True)
    root.stage(producer, 0, opens=True, topic_id=OTHER)
    root.add(producer, 2, groups=["readers"])
    over = root.open("over", 1)
    root.stage(over, 0, partition=1)
    root.end(over, name="over", second=True)
    root.begin("empty")
    return root


def test_what_comes_out_is_what_went_in(root: Root) -> None:
    store = MemoryStore()
    write_snapshot(store, root.image, timestamp_ms=1)
    read = read_snapshot(store, root.image.commit, cluster_id=root.image.cluster_id)
    assert read == root.image
    assert read.transactions["app"] == root.transaction()
    assert read.transactions.staging == root.image.transactions.staging
    assert (read.transactions.staged_extents, read.transactions.staged_bytes) == (21, 2_100)
    assert read.transactions.of_producer(0) == root.transaction()
    producer = 0, 0
    expected, root.image = root.image, read
    root.stage(producer, 40, opens=True)
    root.end(producer)
    assert len(root.visible()) == 22
    assert root.visible()[-1] == (41, 1, 40)
    assert len(expected.partition("orders", 0).extents) == 1


def test_bytes_beyond_an_int64_are_added_up_as_whoever_has_staged_them_did() -> None:
    """No writer stages so much, and readers take what is there."""
    root, store, huge = Root(), MemoryStore(), (1 << 62) + 3
    producer = root.begin()
    extents = tuple(draft(producer, number, size=huge) for number in range(3))
    root.apply(StageExtents(extents=extents, opens_ms=0))
    write_snapshot(store, root.image, timestamp_ms=1)
    read = read_snapshot(store, root.image.commit, cluster_id=root.image.cluster_id)
    for image in (root.image, read):
        root.image = image
        assert (root.transaction().staged_bytes, root.image.transactions.staged_bytes) == (3 * huge, 3 * huge)
        root.apply(DeleteTopic(topic_id=TOPIC))
        assert (root.transaction().staged_bytes, root.image.transactions.staged_bytes) == (0, 0)


def test_a_root_without_transactions_says_nothing_of_them() -> None:
    root, store = Root(), MemoryStore()
    write_snapshot(store, root.image, timestamp_ms=1)
    _, body = read_manifest(store, root.image.commit, cluster_id=root.image.cluster_id)
    assert b"transactions" not in store.read(f"{snapshot_directory(root.image.commit)}/{body.state.name}")


def changed(root: Root, change: Any) -> None:
    """Read a snapshot with another state, and checksums that fit."""
    store, commit = MemoryStore(), root.image.commit
    write_snapshot(store, root.image, timestamp_ms=1)
    header, body = read_manifest(store, commit, cluster_id=root.image.cluster_id)
    name = f"{snapshot_directory(commit)}/{body.state.name}"
    state = msgspec.json.decode(store.read(name))
    change(state)
    data = msgspec.json.encode(state)
    store.delete(name)
    store.put_if_absent(name, data)
    part = msgspec.structs.replace(body.state, size=len(data), crc32c=checksum(data))
    manifest = ManifestBody(state=part, extents=body.extents)
    store.delete(manifest_name(commit))
    store.put_if_absent(manifest_name(commit), encode_document(header, manifest))
    read_snapshot(store, commit, cluster_id=root.image.cluster_id)


def one(**fields: object) -> Any:
    """A change of the transaction of `app`."""

    def change(state: Any) -> None:
        (found,) = [one for one in state["transactions"] if one["transactional_id"] == "app"]
        found.update(fields)

    return change


def numbers(*partitions: int) -> str:
    """As a snapshot has them."""
    return base64.b64encode(np.array(partitions, "<i4").tobytes()).decode()


CHANGES = [
    one(transactional_id=""),
    one(transactional_id="x" * 1025),
    one(transactional_id="over"),
    one(producer_id=1),
    one(producer_id=-1),
    one(producer_epoch=1),
    one(producer_epoch=32_767),
    one(number=-1),
    one(phase="committed"),
    one(phase="open"),
    one(partitions=[]),
    one(partitions=[[TOPIC, numbers(0, 2)], [OTHER, ""]]),
    one(partitions=[[TOPIC, numbers(0, 2)[:-4]], [OTHER, numbers(0)]]),
    one(partitions=[[TOPIC, numbers(0, 2)], [OTHER, "AAAAAAA="]]),
    one(partitions=[[TOPIC, numbers(0, 0, 2)], [OTHER, numbers(0)]]),
    one(partitions=[[TOPIC, numbers(2, 0)], [OTHER, numbers(0)]]),
    one(partitions=[[TOPIC, numbers(-1, 0, 2)], [OTHER, numbers(0)]]),
    one(partitions=[[TOPIC, numbers(0, 2)], [OTHER, numbers(0)], ["Z" * 22, numbers(-1)]]),
    one(partitions=[[TOPIC, numbers(0)], [TOPIC, numbers(2)], [OTHER, numbers(0)]]),
    one(partitions=[[TOPIC, numbers(2)], [OTHER, numbers(0)]]),  # without what it has staged in
    one(staged=[[TOPIC, 0, 19], [OTHER, 0, 1]]),
    one(staged=[[TOPIC, 0, 20], [OTHER, 0, 2]]),
    one(staged=[[TOPIC, 0, -1], [OTHER, 0, 22]]),
    one(staged=[[TOPIC, 0, 21], [OTHER, 0, 0]]),
    one(staged=[[TOPIC, 0, 20], [OTHER, 1, 1]]),
    one(staged=[[TOPIC, 3, 20], [OTHER, 0, 1]]),
    one(staged=[["Z" * 22, 0, 20], [OTHER, 0, 1]]),
    one(staged=[[TOPIC, 0, 20], [TOPIC, 0, 1]]),
    one(staged=[[TOPIC, 0, 21]]),
    one(staged=[[TOPIC, 0, 1 << 62], [OTHER, 0, 1]]),
]


@pytest.mark.parametrize("change", CHANGES)
def test_damage_is_told(root: Root, change: Any) -> None:
    with pytest.raises(CorruptLogError) as raised:
        changed(root, change)
    assert raised.value.code == "CORRUPT_METADATA_SNAPSHOT"


# --- what opening costs ------------------------------------------------------------------------------


def read_bytes(root: Root) -> int:
    """What an image that was read takes in memory."""
    store = MemoryStore()
    write_snapshot(store, root.image, timestamp_ms=1)
    gc.collect()
    tracemalloc.start()
    try:
        image = read_snapshot(store, root.image.commit, cluster_id=root.image.cluster_id)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert image == root.image
    return taken


def many_partitions(root: Root, producer: Producer) -> None:
    root.add(producer, *range(1, 4_000, 2))


def many_topics(root: Root, producer: Producer) -> None:
    topic_ids = [f"{number:022d}" for number in range(500)]
    root.apply(*(plan_create_topic(root.image, f"t{one}", 1, topic_id=one) for one in topic_ids))
    places = [(one, 0) for one in topic_ids]
    root.apply(*plan_add_to_transaction(root.image, "app", *producer, partitions=places, now_ms=1))


def many_groups(root: Root, producer: Producer) -> None:
    root.add(producer, groups=[f"a group {number}" for number in range(900)])


def staged_in_many_partitions(root: Root, producer: Producer) -> None:
    parts = [root.staging(producer, 0, opens=True, partition=number) for number in range(1_000)]
    root.apply(plan_stage(root.image, parts))


def much_staged_in_one(root: Root, producer: Producer) -> None:
    root.apply(plan_stage(root.image, [root.staging(producer, one, opens=True) for one in range(2_000)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fill", [many_partitions, many_topics, many_groups, staged_in_many_partitions, much_staged_in_one]
)
def test_an_open_transaction_takes_no_more_than_it_weighs(fill: Callable[[Root, Producer], None]) -> None:
    """Everyone who opens the root has it in memory, so planning counts its bytes."""
    root = Root(partitions=4_000)
    fill(root, root.begin())
    weight = root.image.transactions.weight
    taken = read_bytes(root)
    root.abort("app")
    assert weight / 8 < taken - read_bytes(root) < weight + 8_192


def test_nothing_is_made_for_partitions_where_nothing_is_staged() -> None:
    """An extent list for each cost everyone who opened the root 14 s and 362 MiB."""
    root = Root(partitions=4_000)
    many_partitions(root, root.begin())
    root.add((0, 0), 0, groups=["g"])
    assert len(root.transaction().partitions) == 2_001
    assert root.transaction().staged == {}
    assert root.image.transactions.staging == {}
    changed(root, lambda state: state["transactions"][0].update(phase="ongoing"))
