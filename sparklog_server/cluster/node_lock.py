"""One process a node id, where the storage has locks; and what a lock that is free says of the one before.

A lock on .broker.<node id>.lock in the root, held by the running process and freed by the kernel with it. So
a second broker of a node id is refused before it has done anything. And on a file system of this machine
alone, whoever gets the lock knows that no process of this node id is left: what is registered for it is over,
and need not be watched for the length of a session before that is believed (joining.py).

Invariants: safety does not depend on it: two processes of a node id have different registrations, and commits
    say whose they are. A lock that is free proves nothing on NFS and its like, where another machine's may
    not be seen, nor where there are no locks.
Concurrency: one per process.
After a crash: the kernel has released it; the file stays, and means nothing.
"""

import json
import os

from sparklog.errors import FencedError
from sparklog.storage import Hold, Store
from sparklog_server.cluster.root_lock import holder_of


class NodeLock:
    """Held from `acquire` to `release`; without effect where there are no locks."""

    def __init__(self, hold: Hold) -> None:
        self._hold: Hold | None = hold
        self.proves_death = hold.is_proof

    @classmethod
    def acquire(cls, store: Store, node_id: int, listeners: str) -> "NodeLock":
        """Take the lock of a node id. FencedError DUPLICATE_BROKER: another process has it."""
        note = json.dumps({"pid": os.getpid(), "listeners": listeners}).encode()
        hold = store.hold(lock_name(node_id), note)
        if hold.holder is not None:
            raise FencedError(
                "DUPLICATE_BROKER",
                f"root {store.url.removeprefix('file://')}: found a running broker {node_id}: "
                f"{holder_of(hold.holder)}, expected no other one of this node id",
                fix="give each broker a node.id of its own; or use that one, or stop it first",
            )
        return cls(hold)

    def release(self) -> None:
        """Let another process be this node; idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()


def lock_name(node_id: int) -> str:
    """The file of a node id."""
    return f".broker.{node_id}.lock"
