"""Memory as on a machine in use: the page cache is full, and a page that a write needs has been used before.

On a virtual machine the first touch of memory is the host's work, and is charged to whoever writes: 2.4 ms of
CPU a MB, where a page that was used before takes 0.2 (measured: a file of 2 GB, written twice). After a topic
was deleted its pages go back to the host, so whoever wrote next would pay; one side's rate moved by 40 % with
it. So a file of junk fills the cache once, and after each deletion as much of it is read again.
"""

import os
from pathlib import Path

import psutil

MB = 1 << 20
_STEP_BYTES = 256 * MB
_LEAST_GROWTH = 32 * MB  # a step that adds less finds the cache full
_TOLERANCE_BYTES = 256 * MB
_DISK_SHARE = 0.4  # of what is free


class PageCache:
    """Fills the page cache with a file in `directory`, and keeps it full."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "page-cache-filler"
        self._size = self._at = self._level = 0

    def fill(self) -> str:
        """Write the file until the cache grows no more, or the disk's share is used; what came of it."""
        junk = os.urandom(MB)
        most = int(psutil.disk_usage(str(self._path.parent)).free * _DISK_SHARE)
        is_full = False
        with self._path.open("wb", buffering=0) as file:
            while self._size + _STEP_BYTES <= most and not is_full:
                before = _cached()
                for _ in range(_STEP_BYTES // MB):
                    file.write(junk)
                self._size += _STEP_BYTES
                is_full = _cached() - before < _LEAST_GROWTH
            os.fsync(file.fileno())
        self._level = _cached()
        return f"page cache {'filled' if is_full else 'not filled, for want of disk'}: {self._level >> 20} MB"

    def top_up(self) -> None:
        """Read as much of the file as was freed since the last time; the oldest part of it comes first."""
        missing = self._level - _cached()
        if not self._size or missing < _TOLERANCE_BYTES:
            return
        buffer = bytearray(MB)
        with self._path.open("rb", buffering=0) as file:
            for _ in range(2 * missing // MB):
                os.preadv(file.fileno(), [buffer], self._at)
                self._at = (self._at + MB) % self._size
                if self._at % (64 * MB) == 0 and _cached() >= self._level - _TOLERANCE_BYTES // 2:
                    break
        self._level = max(_cached(), self._level - missing // 8)  # processes have grown meanwhile


def _cached() -> int:
    found: int = psutil.virtual_memory().cached
    return found
