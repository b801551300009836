"""Holding a name: a lock that a process keeps for as long as it lives, with a note that says who it is. And
turns: a lock on a directory, for as long as one piece of work takes.

A courtesy to people, for processes of one machine; nothing may depend on it.

Concurrency: a forked child has a copy of the descriptor; the lock is released explicitly.
After a crash: the kernel has released it; the file stays, and means nothing.
"""

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from sparklog.storage.base import Hold
from sparklog.storage.durable_names import DIRECTORY_FLAGS
from sparklog.storage.local_files import open_regular
from sparklog.storage.os_errors import storage_error

_MAX_NOTE_BYTES = 4096


def hold_file(path: str, note: bytes, *, is_local: bool = False) -> Hold:
    """Hold a file, which is made if it is missing.

    Args:
        is_local: its file system is this machine's alone, so that the lock proves something.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno == errno.ELOOP:  # to be written to, whatever it leads to? Not by us
            raise storage_error("lock", path, error) from None
        return Hold()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = b""
        with contextlib.suppress(OSError):
            holder = os.pread(descriptor, _MAX_NOTE_BYTES, 0)
        os.close(descriptor)
        return Hold(holder=holder)
    except OSError:  # a file system without locks
        os.close(descriptor)
        return Hold()
    before = b""
    with contextlib.suppress(OSError):
        before = os.pread(descriptor, _MAX_NOTE_BYTES, 0)

    def write(data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)

    write(note)

    def release() -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    return Hold(release=release, is_proof=is_local, before=before, write=write)


def machine_directory() -> Path | None:
    """A directory of this machine, and of this user alone, for what means nothing elsewhere, or later; None
    if there is none to be had.
    """
    path = Path(tempfile.gettempdir()) / f"sparklog-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        found = path.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return path if is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


class DirectoryTurn:
    """See Turn. The lock is that of a descriptor, which is noted before it is locked: whatever interrupts
    `take`, `release` finds it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: list[int] = []  # while it is had, or asked for

    def take(self) -> bool:
        self.release()
        try:
            # Opened and noted between two instructions, where no signal is handled.
            self._descriptor[:] = map(os.open, (self._path,), (DIRECTORY_FLAGS,))
        except OSError:  # not there yet: no competitors either
            return True
        try:
            fcntl.flock(self._descriptor[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            return False
        except OSError:  # a file system without locks
            self._close()
        return True

    def release(self) -> None:
        if self._descriptor:
            # Unlock explicitly: a child forked meanwhile has a copy of the descriptor, and closing ours
            # would leave the lock with it. Of a file system that is away for a moment others wait for it, for
            # a while (turns.py); the commit is made.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor[0], fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor.pop())

    def __del__(self) -> None:
        """In a forked child that forgets its parent's turn: the copy only."""
        if self._descriptor:
            self._close()
