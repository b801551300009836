"""A full disk is freed by sparklog itself: what frees space has a reserve, and nothing else has it."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import SystemClock
from sparklog.errors import StorageError
from sparklog.maintenance import maintain
from sparklog.metadata import Action, AdvanceLogStart, DeleteTopic, EndTransaction, MetadataLog, SetConfigs
from sparklog.storage import LocalStore, local

# On 48 MiB: filled, and freed in each way, each time by a process that has just opened the root.
FREEING = """
    import contextlib, os, sys
    import pyarrow as pa
    import sparklog
    from sparklog.errors import StorageError
    from sparklog.maintenance import maintain, vacuum, expire
    from sparklog.storage.local import RESERVE_BYTES

    root = sys.argv[1]
    reserve = os.path.join(root, ".tmp", "reserve")
    rows = pa.table({"value": [os.urandom(300_000)]})

    def fill(log, topic):
        with contextlib.suppress(StorageError):
            while True:
                log.append(topic, rows)
        with contextlib.suppress(OSError):  # and to the last block
            with open(os.path.join(os.path.dirname(root), "others"), "ab", buffering=0) as file:
                while True:
                    file.write(bytes(512))
        for _ in range(3):
            try:
                log.append(topic, rows)
            except StorageError as error:
                assert error.code == "STORAGE_FULL", error
                assert "sparklog vacuum" in error.fix, error
            else:
                raise AssertionError("there was room")
        try:
            log.create_topic("another", 1)
        except StorageError as error:
            assert error.code == "STORAGE_FULL", error
        else:
            raise AssertionError("a topic was made of the reserve")

    with sparklog.open(root) as log:
        for topic in ("gone", "short", "kept"):
            log.create_topic(topic, 1, {"compression.type": "none"})
        log.append("kept", pa.table({"value": [b"x"]}))
        log.close()  # what comes goes to another segment
        log.append("short", rows)
        assert os.path.getsize(reserve) == RESERVE_BYTES
        with contextlib.suppress(ZeroDivisionError), log.transaction("app") as txn:
            txn.append("kept", rows)
            txn.flush()
            fill(log, "gone")
            assert os.path.getsize(reserve) == RESERVE_BYTES, "appends have none of it"
            raise ZeroDivisionError
        assert log.image.transactions.staged_extents == 0
        assert os.path.getsize(reserve) < RESERVE_BYTES
        print("freed: abort")

    with sparklog.open(root) as log:
        log.alter_topic("short", {"retention.ms": "0"})
        log.delete_topic("gone")
        maintain(log.metadata, log.clock, steps=["expire"])
        assert log.log_start_offset("short", 0) == 1
        assert os.path.getsize(reserve) < RESERVE_BYTES
        print("freed: commits")
    with sparklog.open(root) as log:
        vacuum(log.metadata, log.clock, retain_ms=0, force=True)
        os.unlink(os.path.join(os.path.dirname(root), "others"))
        maintain(log.metadata, log.clock)
        log.append("kept", rows)
        assert os.path.getsize(reserve) == RESERVE_BYTES
        print("freed: files")
"""


@pytest.mark.slow
def test_a_full_disk_is_freed_by_sparklog(tmp_path: Path) -> None:
    """In a mount namespace of its own, which ends with it."""
    (tmp_path / "freeing.py").write_text(textwrap.dedent(FREEING))
    (tmp_path / "mount").mkdir()
    script = """
        mount -t tmpfs -o size=48m tmpfs "$1/mount" || exit 77
        "$2" "$1/freeing.py" "$1/mount/root"
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare(1)")
    done = subprocess.run(
        [unshare, "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"freed: {what}" for what in ("abort", "commits", "files")]


class FullStore(LocalStore):
    """A disk that is full for all but what the reserve gives: one put for each step."""

    is_full = False
    credit = 0

    def put_if_absent(self, name: str, data: bytes, **named: object) -> None:
        if self.is_full and not self.credit:
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free some")
        self.credit -= self.is_full
        super().put_if_absent(name, data, **named)  # type: ignore[arg-type]

    def release_reserve(self) -> bool:
        had = super().release_reserve()
        self.credit += had
        return had


@pytest.fixture
def full(tmp_path: Path) -> FullStore:
    with open_log(tmp_path / "root") as log:
        log.create_topic("t", 1)
        log.create_topic("u", 1)
        log.append("t", pa.table({"value": [b"x"]}))
    store = FullStore(tmp_path / "root")
    store.is_full = True
    return store


def reserve_of(store: LocalStore) -> int:
    path = Path(store.root) / ".tmp" / "reserve"
    return path.stat().st_size if path.exists() else -1


def test_a_root_has_a_reserve_from_the_start(tmp_path: Path) -> None:
    with open_log(tmp_path / "root") as log:
        assert isinstance(log.store, LocalStore)
        assert reserve_of(log.store) == local.RESERVE_BYTES
        log.store.sweep_temporary(older_than_ms=-1_000)
        assert reserve_of(log.store) == local.RESERVE_BYTES


def test_only_what_frees_space_has_it(full: FullStore) -> None:
    log = MetadataLog.open(full, SystemClock())
    topic_id = log.image.topic("t").topic_id
    client = SparkLog(full, log, SystemClock())
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        client.create_topic("another", 1)
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        client.append("t", pa.table({"value": [b"y"]}))
    assert reserve_of(full) == local.RESERVE_BYTES
    start = AdvanceLogStart(topic_id=topic_id, partition=0, log_start_offset=1)
    log.publish(lambda _: [start])
    assert log.image.partition("t", 0).log_start_offset == 1
    assert reserve_of(full) < local.RESERVE_BYTES


def test_an_empty_reserve_is_an_error_as_before_and_maintenance_makes_it_whole(full: FullStore) -> None:
    while full.release_reserve():
        pass
    full.credit = 0
    log = MetadataLog.open(full, SystemClock())
    drop: Action = DeleteTopic(topic_id=log.image.topic("u").topic_id)
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        log.publish(lambda _: [drop])
    full.is_full = False
    assert reserve_of(full) == 0
    maintain(log, SystemClock())
    assert reserve_of(full) == local.RESERVE_BYTES


def test_no_reserve_where_there_is_little_room(full: FullStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(full.root) / ".tmp" / "reserve").unlink()
    monkeypatch.setattr(local, "RESERVE_BYTES", 1 << 60)
    full.restore_reserve()
    assert reserve_of(full) == -1


def test_what_frees_space() -> None:
    ends = [
        EndTransaction(
            transactional_id="a", producer_id=1, producer_epoch=0, committed=committed, time_ms=0, number=1
        )
        for committed in (True, False)
    ]
    assert [end.frees_space for end in ends] == [False, True]
    assert SetConfigs(configs={"retention.ms": "1"}).frees_space
