"""Small objects that are read again and again (indexes), kept on the local disk and memory-mapped.

Invariants:
    - only objects whose names are never used twice are kept, so nothing is ever out of date;
    - what is kept are hints: a file cut short by a power cut is no harm;
    - the directory belongs to this user alone (0700), or nothing is kept;
    - about `limit_bytes` at most: what was used longest ago goes first.
Not here: what is worth keeping (s3_read.py).
Concurrency: any thread and process; files appear whole, by rename. A mapping outlives its file.
"""

import contextlib
import hashlib
import logging
import mmap
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)
# Freeing so much at once spares the next puts a look through the directory.
_KEPT_SHARE = 0.75


class DiskCache:
    """A directory of files named after what they hold."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._usable: bool | None = None
        self._written_bytes = 0

    def get(self, identity: str, fetch: Callable[[], bytes]) -> memoryview:
        """The object's bytes, mapped if they are kept; else fetched, and kept if that is possible."""
        path = self._directory / hashlib.sha256(identity.encode()).hexdigest()
        if self._is_usable():
            with contextlib.suppress(OSError, ValueError):  # ValueError: empty
                mapped = _map(path)
                os.utime(path)
                return mapped
        data = fetch()
        if data and len(data) <= self._limit_bytes and self._is_usable():
            with contextlib.suppress(OSError):
                self._put(path, data)
                return _map(path)
        return memoryview(data)

    def _put(self, path: Path, data: bytes) -> None:
        if not self._written_bytes or self._written_bytes > self._limit_bytes * (1 - _KEPT_SHARE):
            self._make_room()
        self._written_bytes += len(data)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Remove what was used longest ago, until a share of the limit is left."""
        self._written_bytes = 0
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit_bytes * _KEPT_SHARE:
                return
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            total -= size

    def _is_usable(self) -> bool:
        if self._usable is None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = self._directory.lstat()
                self._usable = (
                    stat.S_ISDIR(status.st_mode)
                    and status.st_uid == os.getuid()
                    and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                )
            except OSError:
                self._usable = False
            if not self._usable:
                _log.info("nothing is cached: %s cannot be a directory of this user alone", self._directory)
        return self._usable


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
