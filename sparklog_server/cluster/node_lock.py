"""One process a node id, where there are locks; and what a lock that is free says of the one before.

On a directory: a lock on .broker.<node id>.lock in the root, held by the running process and freed by the
kernel with it. So a second broker of a node id is refused before it has done anything. And on a file system
of this machine alone, a process that gets the lock knows that no other of this node id is left: what is
registered for it is over, and need not be watched for the length of a session before that is believed
(membership.py).

An object store has no locks, and other machines may serve the root. There the lock is in a directory of this
machine, and its note says which registration the process had:
1. broker 1 joins, and notes the incarnation of its registration; it is killed, and started again;
2. the lock is free, so that the process which wrote the note is dead;
3. if the registration that stands is the one of the note, it is that process's, and over. If it is another
   one, another process has joined since, maybe on another machine, and has to be watched.
The note counts in the same run of the kernel only: a machine that was copied has the note, and no process.

Invariants: safety does not depend on it: two processes of a node id have different registrations, and commits
    say whose they are. A lock that is free proves nothing on NFS and its like, where another machine's may
    not be seen, nor where there are no locks.
Concurrency: one per process.
After a crash: the kernel has released it; the file stays, and on a directory means nothing.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from sparklog.errors import FencedError
from sparklog.metadata import RegisteredBroker
from sparklog.storage import Hold, Store
from sparklog.storage.filesystems import Trust, judge, mount_of
from sparklog.storage.local_files import hold_file, machine_directory

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NodeLock:
    """Held from `acquire` to `release`; without effect where there are no locks."""

    def __init__(self, hold: Hold, listeners: str, *, is_of_root: bool) -> None:
        """`is_of_root`: every process that could be this node would hold it."""
        self._hold: Hold | None = hold
        self._listeners = listeners
        self._is_proof = hold.is_proof
        self._is_of_root = is_of_root
        self._boot = _boot_id()
        self._before = hold.before

    @classmethod
    def acquire(cls, store: Store, node_id: int, listeners: str, *, cluster_id: str) -> "NodeLock":
        """Take the lock of a node id. FencedError DUPLICATE_BROKER: another process has it."""
        note = json.dumps({"pid": os.getpid(), "listeners": listeners}).encode()
        is_remote = store.traits.is_remote
        if is_remote:
            hold = _hold_here(f"{store.url}\n{cluster_id}\n{node_id}", note)
        else:
            hold = store.hold(lock_name(node_id), note)
        if hold.holder is not None:
            raise FencedError(
                "DUPLICATE_BROKER",
                f"root {store.url.removeprefix('file://')}: found a running broker {node_id}: "
                f"{_holder_of(hold.holder)}, expected no other one of this node id",
                fix="give each broker a node.id of its own; or use that one, or stop it first",
            )
        return cls(hold, listeners, is_of_root=not is_remote)

    def proves_death_of(self, known: RegisteredBroker) -> bool:
        """True if the process is gone whose registration this is, of our node id."""
        if self._is_of_root or not self._is_proof:
            return self._is_proof
        with contextlib.suppress(ValueError, TypeError, KeyError):
            note = json.loads(self._before)
            return bool(self._boot) and (note["incarnation"], note["boot"]) == (
                known.incarnation_id,
                self._boot,
            )
        return False

    def note(self, incarnation_id: str) -> None:
        """Whose registration is ours from now on."""
        words = {
            "pid": os.getpid(),
            "listeners": self._listeners,
            "incarnation": incarnation_id,
            "boot": self._boot,
        }
        if self._hold is not None:
            self._hold.write(json.dumps(words).encode())

    def release(self) -> None:
        """Let another process be this node; idempotent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()


def lock_name(node_id: int) -> str:
    """The file of a node id."""
    return f".broker.{node_id}.lock"


def _hold_here(identity: str, note: bytes) -> Hold:
    directory = machine_directory()
    if directory is None:
        return Hold()
    trust, _ = judge(mount_of(str(directory)))
    name = f"broker-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.lock"
    return hold_file(str(directory / name), note, is_local=trust is Trust.TRUSTED)


def _holder_of(note: bytes) -> str:
    """The process that wrote a note."""
    try:
        found = json.loads(note)
        return f"process {int(found['pid'])}, listening at {found['listeners']}"
    except (ValueError, TypeError, KeyError):
        return "an unknown process"


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
