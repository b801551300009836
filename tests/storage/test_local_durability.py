"""The order in which the local store talks to the disk: what a power cut may take, and what not."""

import errno
import os
import stat
from pathlib import Path

import pytest

from sparklog.errors import (
    FatalStorageError,
    NotFoundError,
    StorageError,
)
from sparklog.storage import LocalStore, open_store
from tests.storage.local_faults import failing


def test_put_is_durable_before_it_is_visible(local: LocalStore, events: list[str]) -> None:
    local.put_if_absent("d/a", b"x")
    assert events == [
        "pwritev temporary",
        "fsync temporary",
        "link temporary a",
        "fsync d",
        "fsync root",  # `d` is new
        "unlink temporary",
    ]


def test_later_puts_sync_only_their_directory(local: LocalStore, events: list[str]) -> None:
    local.put_if_absent("d/e/a", b"x")
    events.clear()
    local.put_if_absent("d/e/b", b"x")
    assert [event for event in events if event.startswith("fsync")] == [
        "fsync temporary",
        "fsync e",
        "fsync d",
    ][:2]


def test_directory_made_by_another_process_is_synced_too(local: LocalStore, events: list[str]) -> None:
    (Path(local.root) / "d" / "e").mkdir(parents=True)
    local.put_if_absent("d/e/a", b"x")
    assert [event for event in events if event.startswith("fsync")] == [
        "fsync temporary",
        "fsync e",
        "fsync d",
        "fsync root",
    ]


def test_directory_that_was_replaced_is_synced_again(local: LocalStore, events: list[str]) -> None:
    local.put_if_absent("d/e/a", b"x")
    keep = Path(local.root) / "d" / "e"
    keep.rename(keep.with_name("old"))  # keeps its inode busy, so that the new directory gets another
    events.clear()
    local.put_if_absent("d/e/a", b"x")
    assert "fsync d" in events


def test_a_directory_made_anew_with_the_same_inode_is_synced_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    """ext4 gives the number of a removed directory to the next one."""
    same_inodes(monkeypatch)
    with local.append_file("s/w/0.log") as file:
        file.sync()
    parent = Path(local.root) / "s"
    before = parent.stat()
    local.delete("s/w/0.log")
    (parent / "w").rmdir()
    with local.append_file("s/w/1.log") as file:
        os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))  # all in one tick of its clock
        events.clear()
        file.sync()
    assert events == ["fdatasync 1.log", "fsync w", "fsync s", "fsync root"]


def test_a_directory_that_somebody_else_made_anew_is_synced_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    same_inodes(monkeypatch)
    local.put_if_absent("s/w/a", b"x")
    parent = Path(local.root) / "s"
    local.delete("s/w/a")
    (parent / "w").rmdir()
    (parent / "w").mkdir()
    os.utime(parent, ns=(0, 0))  # another tick
    events.clear()
    local.put_if_absent("s/w/b", b"x")
    assert events[3:5] == ["fsync w", "fsync s"]


def test_a_directory_is_durable_when_its_parent_is_synced_and_not_before(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread must not rest on what the first one is about to sync."""
    real, seen = os.fsync, list[str]()

    def fsync(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        seen.append(name)
        if seen.count("d") == 1 and name == "root":
            local.sync_directory("d")  # what another thread does at this moment
        real(fd)

    (Path(local.root) / "d").mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    local.sync_directory("d")
    assert seen == ["d", "root", "d", "root"]


def same_inodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all directories have the same number."""
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        return os.stat_result((found.st_mode, 7, *found[2:])) if stat.S_ISDIR(found.st_mode) else found

    monkeypatch.setattr(os, "fstat", fstat)


def test_append_is_synced_with_its_name(local: LocalStore, events: list[str]) -> None:
    file = local.append_file("s/w/0.log")
    file.write(b"x")
    assert not any("sync" in event for event in events)
    file.sync()
    file.write(b"y")
    file.sync()
    file.close()
    assert [event for event in events if "sync" in event] == [
        "fdatasync 0.log",
        "fsync w",
        "fsync s",
        "fsync root",
        "fdatasync 0.log",
    ]


def test_new_root_is_synced_into_its_parents(tmp_path: Path, events: list[str]) -> None:
    open_store(tmp_path / "new" / "root", create=True)
    assert events == ["fsync new", f"fsync {tmp_path.name}"]


@pytest.mark.parametrize("where", ["/.tmp/", "/root/d"])
def test_failed_fsync_poisons_the_store(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.EIO, when=where)
        with pytest.raises(FatalStorageError, match="fsync failed"):
            local.put_if_absent("d/a", b"x")
    # The disk is well again, but nobody knows what it has lost.
    for use in (
        lambda: local.put_if_absent("d/b", b"x"),
        lambda: local.append_file("d/c"),
        lambda: local.sync_directory("d"),
    ):
        with pytest.raises(FatalStorageError, match="fsync failed"):
            use()
    assert not local.exists("d/b")
    left = [path.stat().st_nlink for path in (Path(local.root) / ".tmp").iterdir()]
    assert left == ([2] if where == "/root/d" else [])  # the name is there, perhaps not durable


@pytest.mark.parametrize("function", ["fdatasync", "fsync"])
def test_failed_fsync_poisons_an_append_file(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    file = local.append_file("s/0.log")
    file.write(b"x")
    with monkeypatch.context() as patch:
        failing(patch, function, errno.EIO)
        with pytest.raises(FatalStorageError):
            file.sync()
    # Nor does the process go on with another file.
    for use in (file.sync, lambda: file.write(b"y"), lambda: local.append_file("s/1.log")):
        with pytest.raises(FatalStorageError):
            use()
    file.close()


def test_full_disk_at_fsync_is_not_fatal_for_an_unnamed_file(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.ENOSPC, when="/.tmp/")
        with pytest.raises(StorageError, match="No space left") as raised:
            local.put_if_absent("a", b"x")
    assert raised.value.code == "STORAGE_FULL"
    local.put_if_absent("a", b"x")


class Killed(LocalStore):
    """A store whose puts end between the link and the sync of the directory, as by SIGKILL."""

    def at_step(self, point: str, name: str) -> None:
        if point == "linked":
            raise KeyboardInterrupt


def test_a_name_is_synced_unless_its_put_was_done(local: LocalStore, events: list[str]) -> None:
    local.put_if_absent("d/a", b"x")
    local.put_if_absent("d/b", b"x")
    with pytest.raises(KeyboardInterrupt):
        Killed(Path(local.root)).put_if_absent("d/c", b"x")
    events.clear()
    local.sync_name("d/b")
    assert events == []
    local.sync_name("d/c")
    assert events == ["fsync d"]


def test_a_name_is_synced_where_links_are_not_counted(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    """Not known before the first put; some file systems say 1 forever."""
    other = LocalStore(Path(local.root))
    other.put_if_absent("d/a", b"x")
    events.clear()
    local.sync_name("d/a")
    assert events == ["fsync d", "fsync root"]
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        return os.stat_result((*found[:3], 1, *found[4:]))

    monkeypatch.setattr(os, "fstat", fstat)
    local.put_if_absent("d/b", b"x")
    events.clear()
    local.sync_name("d/a")
    assert events == ["fsync d"]


def test_a_name_that_cannot_be_looked_up_is_an_error(local: LocalStore) -> None:
    local.put_if_absent("d/a", b"x")
    with pytest.raises(NotFoundError, match="d/b"):
        local.sync_name("d/b")


def test_a_sweep_makes_durable_what_it_lets_look_so(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Killed(Path(local.root)).put_if_absent("d/a", b"x")
    monkeypatch.setattr(os, "sync", lambda: events.append("sync"))
    events.clear()
    assert local.sweep_temporary(older_than_ms=0) == 1
    assert events[-2:] == ["sync", "unlink temporary"]


def test_a_sweep_makes_durable_what_is_linked_while_it_looks(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    """
    1. A put is suspended before its link, for longer than a sweep waits.
    2. The sweep finds a file with one link; the put goes on, links it, and is killed before its fsync.
    3. The sweep unlinks the file: the name has one link, and looks durable.
    """
    left = Path(local.root) / ".tmp" / "put"
    local.put_if_absent("a", b"x")
    left.write_bytes(b"x")
    real = os.stat

    def stat(path: str, *, follow_symlinks: bool = True) -> os.stat_result:
        found = real(path, follow_symlinks=follow_symlinks)
        if path == str(left):
            os.link(path, f"{local.root}/b")
        return found

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "sync", lambda: events.append("sync"))
    events.clear()
    assert local.sweep_temporary(older_than_ms=0) == 1
    assert events[-2:] == ["sync", "unlink temporary"]


def test_sweep_removes_what_crashes_left(local: LocalStore) -> None:
    class Crashed(LocalStore):
        def at_step(self, point: str, name: str) -> None:
            if point == "temporary_synced":
                os.link(next((Path(self.root) / ".tmp").iterdir()), Path(self.root) / "copy")
                raise KeyboardInterrupt

    temporary = Path(local.root) / ".tmp"
    with pytest.raises(KeyboardInterrupt):
        Crashed(Path(local.root)).put_if_absent("a", b"x")
    assert list(temporary.iterdir()) == []  # an exception cleans up; a crash would not have
    (temporary / "left-behind").write_bytes(b"x")
    os.utime(temporary / "left-behind", (0, 0))
    (temporary / "young").write_bytes(b"x")
    assert local.sweep_temporary(older_than_ms=3_600_000) == 1
    assert [path.name for path in temporary.iterdir()] == ["young"]
    assert local.sweep_temporary(older_than_ms=0) == 1


def test_temporary_files_are_not_listed(local: LocalStore) -> None:
    local.put_if_absent("a", b"x")
    (Path(local.root) / ".tmp" / "x").write_bytes(b"")
    assert [file.name for file in local.list("", recursive=True)] == ["a"]
