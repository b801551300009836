"""Temporary files of a local store: how they are named, and what killed puts left; and a reserve of space.

The reserve is a file of RESERVE_BYTES that nobody reads. What frees space has to write a commit first, and on
a full disk it could not. So the reserve is made shorter, by a step for each such commit, and for no other. It
is made with the root, and made whole again by maintenance once there is room.

Invariants: a put whose file goes fails with an error that says so, and changes nothing; a name that was
    linked and not synced is durable before its second link goes, since one link means durable. The reserve
    is never needed for what is stored to be right: it may be missing, or shorter, at any time.
Not here: making them, and what they are for (local.py).
Concurrency: any number of processes; files may go meanwhile.
"""

import binascii
import contextlib
import os
import secrets

from sparklog.failpoints import failpoint
from sparklog.storage.local_tree import list_files

RESERVE_BYTES = 2 << 20
_RESERVE = "reserve"
_RESERVE_STEP = 128 << 10  # a commit, its temporary name, and what a directory may need to grow
_ROOM_FACTOR = 16  # it is made where so many of it are free


def put_key(name: str) -> str:
    """Starts the names of temporary files aimed at `name`. A collision would abort a stranger's put, once."""
    return f"{binascii.crc32(name.encode()):08x}-{len(name)}"


def has_two_links(fd: int) -> bool:
    """Of a put's file, right after its link: does this file system count links?"""
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_nlink > 1
    return False


def sweep_temporary_files(directory: str, limit_ns: int, *, dry_run: bool) -> int:
    """Remove those that were last changed at `limit_ns` or before; returns how many, or how many it would."""
    removed = 0
    for stored in list_files(directory, "", recursive=False):
        if stored.name == _RESERVE:
            continue
        path = f"{directory}/{stored.name}"
        failpoint("sweep.temporary")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_mtime_ns <= limit_ns:
                if not dry_run:
                    _remove(directory, path)
                removed += 1
    return removed


def _remove(directory: str, path: str) -> None:
    # Its put may go on any moment, and must not link it after we have looked at the links.
    aside = f"{directory}/swept.{os.getpid()}.{secrets.token_hex(8)}"
    os.rename(path, aside)
    if os.stat(aside).st_nlink > 1:  # its put was stopped between two steps
        os.sync()  # with one link, the name has to be durable, wherever it is
    os.unlink(aside)


def is_reserve(name: str) -> bool:
    """True for the name, in the temporary directory, of what no put has left."""
    return name == _RESERVE


def release_reserve(directory: str) -> bool:
    """Make the reserve shorter by a step; False if there is nothing left of it."""
    try:
        fd = os.open(f"{directory}/{_RESERVE}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        size = os.fstat(fd).st_size
        os.ftruncate(fd, max(0, size - _RESERVE_STEP))
        os.fsync(fd)  # some file systems give blocks back only then
    except OSError:
        return False
    finally:
        os.close(fd)
    return size > 0


def restore_reserve(directory: str) -> None:
    """Make the reserve whole, if there is room for much more than it; no error if that is not to be had."""
    with contextlib.suppress(OSError):
        space = os.statvfs(directory)
        if space.f_bavail * space.f_frsize < _ROOM_FACTOR * RESERVE_BYTES:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(f"{directory}/{_RESERVE}", flags, 0o666)
        try:
            size = os.fstat(fd).st_size
            for start in range(size, RESERVE_BYTES, _RESERVE_STEP):  # written: a hole would reserve nothing
                os.pwrite(fd, os.urandom(min(_RESERVE_STEP, RESERVE_BYTES - start)), start)
        finally:
            os.close(fd)
