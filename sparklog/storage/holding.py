"""Holding a name: a lock that a process keeps for as long as it lives, with a note that says who it is.

A courtesy to people, for processes of one machine; nothing may depend on it.

Concurrency: a forked child has a copy of the descriptor; the lock is released explicitly.
After a crash: the kernel has released it; the file stays, and means nothing.
"""

import contextlib
import errno
import fcntl
import os

from sparklog.storage.base import Hold
from sparklog.storage.local_files import open_regular
from sparklog.storage.os_errors import storage_error

_MAX_NOTE_BYTES = 4096


def hold_file(path: str, note: bytes) -> Hold:
    """Hold a file of a local file system, which is made if it is missing."""
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
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)

    def release() -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    return Hold(release=release)
