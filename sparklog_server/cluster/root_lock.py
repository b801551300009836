"""A courtesy to people who start a second broker on a root by mistake: it refuses, and names the first.

A lock on .broker.lock in the root, held by the running process and freed by the kernel with it. Nothing
depends on it: on storage without locks, or on another machine, the newer broker starts and fences the older
one (alone.py).

Concurrency: one per process.
After a crash: the kernel has released it; the file stays, and means nothing.
"""

import json
import os

from sparklog.errors import RetriableError
from sparklog.storage import Hold, Store

LOCK_NAME = ".broker.lock"


class RootLock:
    """Held from `acquire` to `release`; without effect where there are no locks."""

    def __init__(self, hold: Hold) -> None:
        self._hold: Hold | None = hold

    @classmethod
    def acquire(cls, store: Store, listeners: str) -> "RootLock":
        """Take the lock of a root. RetriableError BROKER_RUNNING: another process has it."""
        hold = store.hold(LOCK_NAME, json.dumps({"pid": os.getpid(), "listeners": listeners}).encode())
        if hold.holder is not None:
            raise RetriableError(
                "BROKER_RUNNING",
                f"root {store.url.removeprefix('file://')}: found a broker serving it already: "
                f"{holder_of(hold.holder)}",
                fix="use that one, or stop it first",
            )
        return cls(hold)

    def release(self) -> None:
        """Let others start; idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()


def holder_of(note: bytes) -> str:
    """Who wrote a note."""
    try:
        found = json.loads(note)
        return f"process {int(found['pid'])}, listening at {found['listeners']}"
    except (ValueError, TypeError, KeyError):
        return "an unknown process"
