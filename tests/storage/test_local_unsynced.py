"""Directories that are not synced though no fsync has failed: no descriptor was free, or they were swept."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import AlreadyExistsError, FatalStorageError, StorageError
from sparklog.storage import IndefinitePutError, LocalStore
from tests.storage.local_faults import failing

NO_DESCRIPTOR = pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])


@NO_DESCRIPTOR
@pytest.mark.parametrize("where", ["/d", ""])  # the directory itself, or one above it
def test_a_directory_that_could_not_be_opened_leaves_one_put_open_and_the_store_usable(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str], code: int, where: str
) -> None:
    """No fsync has failed: what is not durable is this name, and its second link says so."""
    with monkeypatch.context() as patch:
        cannot_open(patch, local.root + where, code)
        with pytest.raises(IndefinitePutError, match="linked, but not synced"):
            local.put_if_absent("d/a", b"x")
    assert [path.stat().st_nlink for path in (Path(local.root) / ".tmp").iterdir()] == [2]
    with pytest.raises(AlreadyExistsError):  # the definite answer to the same put
        local.put_if_absent("d/a", b"x")
    events.clear()
    local.sync_name("d/a")
    assert events == ["fsync d", "fsync root"]
    local.put_if_absent("d/b", b"x")


@NO_DESCRIPTOR
def test_a_directory_that_could_not_be_opened_leaves_an_append_file_to_sync_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, events: list[str], code: int
) -> None:
    with local.append_file("s/0.log") as file:
        file.write(b"x")
        with monkeypatch.context() as patch:
            cannot_open(patch, f"{local.root}/s", code)
            with pytest.raises(StorageError, match="open for fsync") as raised:
                file.sync()
        assert not isinstance(raised.value, FatalStorageError)
        events.clear()
        file.sync()
        assert events == ["fdatasync 0.log", "fsync s", "fsync root"]
    local.put_if_absent("a", b"x")


@NO_DESCRIPTOR
def test_a_name_of_others_that_could_not_be_synced_is_an_error_of_that_moment(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    LocalStore(Path(local.root)).put_if_absent("d/a", b"x")
    uses: list[Callable[[], None]] = [lambda: local.sync_name("d/a"), lambda: local.sync_directory("d")]
    for use in uses:
        with monkeypatch.context() as patch:
            cannot_open(patch, f"{local.root}/d", code)
            with pytest.raises(StorageError, match="open for fsync") as raised:
                use()
        assert not isinstance(raised.value, FatalStorageError)
        use()


def cannot_open(patch: pytest.MonkeyPatch, directory: str, code: int) -> None:
    """Exactly this directory."""
    real = os.open

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        if path == directory:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode)

    patch.setattr(os, "open", open_)


def test_a_put_whose_directory_was_swept_meanwhile_fails_alone(local: LocalStore) -> None:
    """
    1. A snapshot's writer is stopped between the link of a part and the sync of its directory.
    2. Others write newer snapshots, and clean.
    """
    swept = SweptBetween(Path(local.root))
    with pytest.raises(IndefinitePutError, match="No such file"):
        swept.put_if_absent("d/old/part", b"x")
    assert not swept.exists("d/old/part")
    swept.put_if_absent("d/new", b"x")


class SweptBetween(LocalStore):
    """A store whose puts lose their directory between the link and its sync."""

    def at_step(self, point: str, name: str) -> None:
        if point == "linked" and name.startswith("d/old/"):
            LocalStore(Path(self.root)).delete_directory("d/old")


def test_a_file_that_is_swept_while_its_name_is_synced_shows_as_removed(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: str, **keywords: bool) -> os.stat_result:
        found = real(path, **keywords)
        if path == f"{local.root}/s":
            LocalStore(Path(local.root)).delete_directory("s/w")
        return found

    with local.append_file("s/w/0.log") as file:
        file.write(b"x")
        monkeypatch.setattr(os, "stat", stat)
        file.sync()
        assert file.is_removed
    local.put_if_absent("a", b"x")


@pytest.mark.parametrize(
    ("code", "flags", "opens"),
    [
        (errno.EINVAL, os.ST_RDONLY, True),  # squashfs, erofs and iso9660 have no fsync
        (errno.EINVAL, 0, False),
        (errno.EROFS, os.ST_RDONLY, False),  # ext4 after a fault: what was not written back is lost
        (errno.EIO, os.ST_RDONLY, False),
    ],
)
def test_where_nothing_can_change_there_is_nothing_to_sync(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, flags: int, opens: bool
) -> None:
    real = os.fstatvfs

    def fstatvfs(fd: int) -> os.statvfs_result:
        found = real(fd)
        return os.statvfs_result((*found[:8], flags, found[9]))

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    (Path(local.root) / "d").mkdir()
    failing(monkeypatch, "fsync", code)
    for directory in ("", "d"):
        if opens:
            local.sync_directory(directory)
        else:
            with pytest.raises(FatalStorageError, match="DURABILITY_UNKNOWN"):
                local.sync_directory(directory)
