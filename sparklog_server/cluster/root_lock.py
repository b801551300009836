"""A courtesy to people who start a second broker on a root by mistake: it refuses, and names the first.

A lock on the file .broker.lock in a local root, held by the running process and freed by the kernel with
it. Nothing depends on it: on storage without locks, or on another machine, the newer broker starts and
fences the older one (broker_epoch.py).

Concurrency: one per process. A forked child has a copy of the descriptor; the lock is released explicitly.
After a crash: the kernel has released it; the file stays, and means nothing.
"""

import contextlib
import errno
import fcntl
import json
import os

from sparklog.errors import RetriableError
from sparklog.storage import LocalStore, Store
from sparklog.storage.local_files import open_regular
from sparklog.storage.os_errors import storage_error

LOCK_NAME = ".broker.lock"
_MAX_BYTES = 4096


class RootLock:
    """Held from `acquire` to `release`; without effect where there are no locks."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, store: Store, listeners: str) -> "RootLock":
        """Take the lock of a local root. RetriableError BROKER_RUNNING: another process has it."""
        if not isinstance(store, LocalStore):
            return cls(None)
        path = f"{store.root}/{LOCK_NAME}"
        try:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno == errno.ELOOP:  # to be written to, whatever it leads to? Not by us
                raise storage_error("lock", path, error) from None
            return cls(None)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise RetriableError(
                "BROKER_RUNNING",
                f"root {store.root}: found a broker serving it already: {holder}",
                fix="use that one, or stop it first",
            ) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return cls(None)
        with contextlib.suppress(OSError):  # for people only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "listeners": listeners}).encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Let others start; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        return f"process {int(found['pid'])}, listening at {found['listeners']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "an unknown process"
