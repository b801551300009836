"""Names that a power cut cannot take back: directories of a local store, made and synced.

A file is durable when its bytes are, its name in its directory, and every directory's name up to the root.
A directory's own name is synced once, and then again only when it may be another directory: we have made it
just now; its inode is another; or something has been made or removed beside it since, as its parent's
modification time says. Inode numbers alone do not tell: ext4 gives the number of a removed directory to
the next one. The time alone does not either: it goes in ticks of some milliseconds.

Invariants:
    - only what this process has synced itself counts as durable: a directory that exists may be one that
      another process made a moment ago and has not synced;
    - it counts when the sync of its parent has returned, not before;
    - only a failed fsync is fatal. A directory that cannot be opened (no descriptor is free, or it was swept)
      was not synced: whoever asked must not rest on it, and nothing else is in doubt;
    - a removed root is never brought back to life.
Concurrency: any thread. What is remembered only ever spares an fsync; no open files are kept.
After a crash: a new process remembers nothing, and syncs all of them once.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from sparklog.errors import FatalStorageError, StorageError
from sparklog.failpoints import failpoint
from sparklog.storage.os_errors import fatal_error, storage_error

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# How a directory was when its name was made durable: its inode, and its parent's modification time.
_Seen = tuple[int, int]


class DurableNames:
    """The directories below one root.

    Args:
        poison: told of a failed fsync, after which nobody knows what is durable.
    """

    def __init__(self, root: str, poison: Callable[[FatalStorageError], None]) -> None:
        self._root = root
        self._poison = poison
        self._durable: dict[str, _Seen] = {}

    def make_parents(self, path: str) -> None:
        """Make the directory of `path`, and those above it."""
        parent = os.path.dirname(path)
        try:
            if not os.path.isdir(parent):
                if not os.path.isdir(self._root):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                os.makedirs(parent, exist_ok=True)
                self._durable.clear()
        except OSError as error:
            raise storage_error("create the directory", parent, error) from error

    def sync(self, directory: str) -> None:
        """Make the names in `directory` durable, and its own, up to the root.

        Raises: FatalStorageError, an fsync failed; another StorageError, it could not be tried.
        """
        synced: list[tuple[str, _Seen]] = []
        while True:
            parent = os.path.dirname(directory)
            beside_ns = 0 if directory == self._root else self._modified_ns(parent)
            seen = (self._fsync(directory), beside_ns)
            if directory == self._root or self._durable.get(directory) == seen:
                break
            synced.append((directory, seen))
            directory = parent
        self._durable.update(synced)

    def _modified_ns(self, directory: str) -> int:
        """Asked before the directory is synced: what changes later shows."""
        try:
            return os.stat(directory).st_mtime_ns
        except OSError as error:
            raise storage_error("look up for fsync", directory, error) from error

    def _fsync(self, directory: str) -> int:
        try:
            fd = os.open(directory, DIRECTORY_FLAGS)
        except OSError as error:
            raise storage_error("open for fsync", directory, error) from error
        try:
            failpoint("directory.sync")
            os.fsync(fd)
            return os.fstat(fd).st_ino
        except OSError as error:
            if _never_changes(fd, error):
                return os.fstat(fd).st_ino
            fatal = fatal_error("fsync", directory, error)
            self._poison(fatal)
            raise fatal from error
        finally:
            os.close(fd)


def _never_changes(fd: int, error: OSError) -> bool:
    """Has a file system no fsync because it is only read (squashfs, erofs, iso9660)?

    EROFS does not say so: ext4 answers it where it has stopped writing after a fault, and lost what was not
    written back.
    """
    return error.errno == errno.EINVAL and bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def create_root(root: Path) -> None:
    """Make a root directory, durably; no error when it exists."""
    missing = root
    created: list[Path] = []
    while not missing.exists():
        created.append(missing)
        missing = missing.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        for path in created:
            fd = os.open(path.parent, DIRECTORY_FLAGS)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        raise StorageError(
            "STORAGE_FAILED",
            f"{root}: cannot create the root: {error.strerror}",
            fix="Create the directory yourself, or choose another place",
        ) from error
