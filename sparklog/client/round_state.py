"""What is known on this machine of a root's rounds, whoever runs them: a small file in the system's directory
for temporary ones, by user and root.

A streaming sink that looks after its root may be another process with each micro-batch
(spark.python.worker.reuse=false), and one round may be ended by the end of whoever started it. So when to
look again, what came of the last rounds, and which partitions cannot be rewritten, outlives them all.

Invariants: nothing but the pace depends on it: a file that is lost, damaged, or cannot be had is as one of
    nothing known, and so is a time that is further away than it can be (a clock was set back).
    Only a directory and a file of our own are used, whatever somebody else has put in their place.
Not here: what follows from it (round_pace.py); one round at a time (`hold_round`, and maintenance/alone.py).
Concurrency: any number of processes of a user: each change is made under a lock on the file. A sink asks in
    the midst of a commit, and the holder may have been stopped with it: so nobody waits for the lock who has
    not said for how long, and who does not get it goes by what it knew last.
After a crash in the midst of a write: nothing known.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sparklog.clock import Clock
from sparklog.maintenance import Remembered
from sparklog.storage.base import Hold
from sparklog.storage.holding import hold_file, machine_directory
from sparklog.storage.local_files import open_regular

PATIENCE_MS = 1_000  # of who waits; the lock is held for a small file's writing, by a niced process at worst
_TRY_MS = 5
_MAX_BYTES = 4 << 20


class RoundState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one root.

    Fields:
        in_vain: so many rounds, one after the other, came to nothing, or have not come back.
        look_ms: nobody looks before, in Unix time.
        expiry_ms: nobody looks before for what is only past its retention.
        told: what went wrong, as it was last reported.
        uncleanable: partitions that are left out.
    """

    in_vain: int = 0
    look_ms: int = 0
    expiry_ms: int = 0
    told: str = ""
    uncleanable: tuple[Remembered, ...] = ()


UNKNOWN = RoundState()
Change = Callable[[RoundState], RoundState]


class RoundStates:
    """The file of one root; where there can be none, this process's memory."""

    def __init__(self, url: str, cluster_id: str, *, patience: Clock | None = None) -> None:
        """`patience`: by this clock, others are waited for, for PATIENCE_MS; None: nobody is."""
        directory = machine_directory()
        name = hashlib.sha256(f"{url}\n{cluster_id}".encode()).hexdigest()[:32]
        self._path = None if directory is None else directory / f"{name}.json"
        self._patience = patience
        self._memory = UNKNOWN

    @property
    def outlives_us(self) -> bool:
        """Do other processes see it?"""
        return self._path is not None

    def read(self) -> RoundState:
        """As of now."""
        return self.change(lambda state: state)

    def change(self, change: Change) -> RoundState:
        """Replace it by what `change` makes of it; returns that."""
        if self._path is not None:
            with contextlib.suppress(OSError), _locked(self._path, self._patience) as descriptor:
                before = _decoded(os.pread(descriptor, _MAX_BYTES, 0))
                after = change(before)
                if after is not before:
                    data = msgspec.json.encode(after)
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, data, 0)
                self._memory = after
                return after
        self._memory = change(self._memory)
        return self._memory

    def hold_round(self) -> Hold:
        """One round of this root on this machine, on whatever store it is; `holder`: another has it."""
        if self._path is None:
            return Hold()
        return hold_file(str(self._path.with_suffix(".lock")), f"process {os.getpid()}".encode())


@contextlib.contextmanager
def _locked(path: Path, patience: Clock | None) -> Iterator[int]:
    """Raises: OSError, BlockingIOError if another has it."""
    descriptor = open_regular(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, patience)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, patience: Clock | None) -> None:
    tries = 0 if patience is None else PATIENCE_MS // _TRY_MS
    for _ in range(tries):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        assert patience is not None
        patience.sleep_ms(_TRY_MS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _decoded(data: bytes) -> RoundState:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(data, type=RoundState)
    return UNKNOWN
