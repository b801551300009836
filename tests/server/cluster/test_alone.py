"""One broker at a time: the rule in the metadata log, and the courtesy beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FencedError, RetriableError, StorageError
from sparklog.metadata import BrokerListener, plan_create_topic
from sparklog.storage import MemoryStore, open_store
from sparklog_server.cluster.alone import Alone
from sparklog_server.cluster.root_lock import LOCK_NAME, RootLock
from tests.support.roots import opened


def test_every_start_gets_the_next_epoch(log: SparkLog) -> None:
    listeners = [BrokerListener(host="localhost", port=9092)]
    epochs = [Alone.register(log.metadata, 1, listeners) for _ in range(3)]
    assert [epoch.broker_epoch for epoch in epochs] == [0, 1, 2]
    epochs[2].validate(log.image)
    for old in epochs[:2]:
        with pytest.raises(FencedError, match=r"BROKER_FENCED.*broker 1 with epoch 2 is, at localhost:9092"):
            old.validate(log.image)


def test_a_stalled_plan_is_fenced(log: SparkLog, store: MemoryStore, clock: ManualClock) -> None:
    """The plan was computed, the put loses the race, and the second computation finds the other broker."""
    epoch = Alone.register(log.metadata, 1)
    newer = opened(store, clock)
    computed: list[int] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and computed:
            store.hook = None
            Alone.register(newer.metadata, 2)

    def plan(image):  # type: ignore[no-untyped-def]
        computed.append(image.commit)
        return [plan_create_topic(image, "late", 1, topic_id="L" * 22)]

    store.hook = hook
    with pytest.raises(FencedError, match="BROKER_FENCED"):
        log.metadata.publish(epoch.fenced(plan))
    assert computed == [log.image.commit - 1]
    assert "late" not in newer.refresh().topics


def test_overtaken_while_registering(log: SparkLog, store: MemoryStore, clock: ManualClock) -> None:
    newer = opened(store, clock)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done":
            store.hook = None
            Alone.register(newer.metadata, 2)
            log.refresh()

    store.hook = hook
    with pytest.raises(FencedError, match="broker 2 with epoch 1 is"):
        Alone.register(log.metadata, 1)


# --- the lock ----------------------------------------------------------------------------------------

HOLD = """
import sys
from sparklog.storage import open_store
from sparklog_server.cluster.root_lock import RootLock
lock = RootLock.acquire(open_store(sys.argv[1]), "localhost:9092")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_broker_is_told_about_the_first(tmp_path: Path) -> None:
    store = open_store(tmp_path / "root", create=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "root")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            RetriableError, match=rf"process {holder.pid}, listening at localhost:9092"
        ) as caught:
            RootLock.acquire(store, "localhost:9093")
        assert caught.value.code == "BROKER_RUNNING"
        holder.kill()
    RootLock.acquire(store, "localhost:9093").release()  # the kernel has freed it


def test_released_and_taken_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "root", create=True)
    lock = RootLock.acquire(store, "localhost:1")
    held = json.loads((tmp_path / "root" / LOCK_NAME).read_text())
    assert held == {"pid": os.getpid(), "listeners": "localhost:1"}
    lock.release()
    lock.release()
    RootLock.acquire(store, "localhost:2").release()


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid":"x"}', b"[]", b"\xff\xfe", b"1"])
def test_a_strange_lock_file_still_locks(tmp_path: Path, content: bytes) -> None:
    store = open_store(tmp_path / "root", create=True)
    first = RootLock.acquire(store, "localhost:1")
    (tmp_path / "root" / LOCK_NAME).write_bytes(content)
    with pytest.raises(RetriableError, match="an unknown process"):
        RootLock.acquire(store, "localhost:2")
    first.release()


def test_no_lock_where_there_can_be_none(tmp_path: Path, store: MemoryStore) -> None:
    RootLock.acquire(store, "a").release()
    RootLock.acquire(store, "b").release()
    local = open_store(tmp_path / "root", create=True)
    (tmp_path / "root" / LOCK_NAME).mkdir()  # cannot be opened for writing
    RootLock.acquire(local, "a").release()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_lock_file_leads_nowhere(tmp_path: Path, kind: str) -> None:
    """It is written to: a link would empty what it leads to."""
    store = open_store(tmp_path / "root", create=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = tmp_path / "root" / LOCK_NAME
    if kind == "link":
        lock.symlink_to(victim)
    else:
        os.mkfifo(lock)
    with pytest.raises(StorageError, match="expected a regular file"):
        RootLock.acquire(store, "localhost:1")
    assert victim.read_text() == "precious"
