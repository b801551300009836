"""The store interface: named, immutable or append-only files, and one atomic primitive, put-if-absent.

Invariants every store keeps:
    - put_if_absent lets exactly one of any number of racing callers win; when it returns, the file and its
      name are durable;
    - a file made by put_if_absent never changes; a file made by append_file only grows, and only by the
      process that created it, except that the bytes of a failed write may be cut off;
    - RetriableError, AlreadyExistsError and plain StorageError prove that nothing happened.
      IndefinitePutError does not (repeat the same bytes to the same name), nor does FatalStorageError
      (durability unknown: stop the process).
Not here: what the files mean (metadata/, log/).
Concurrency: stores may be used from any thread; append files have one user at a time.
Sources: docs/design.md.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from sparklog.errors import InvalidRequestError, NotFoundError, StorageError

# --- names -------------------------------------------------------------------------------------------
#
# Names in a store: '/'-separated relative paths that cannot leave the root.
#
# Invariants: a validated name has no empty, '.' or '..' part, no NUL, and never enters the store's own
# temporary directory. Names are compared byte for byte.
# Not here: topic names (metadata/model/image.py), which are stricter.
# Sources: FORMAT.md#layout-of-a-root.


# Unfinished puts live here, within the root; no name may reach into it.
TEMPORARY_DIRECTORY = ".tmp"
# Linux limits of one part of a path, and of a whole path (less room for the root itself).
MAX_PART_BYTES = 255
MAX_NAME_BYTES = 2048


@functools.lru_cache(maxsize=8192)
def validate_name(name: str) -> str:
    """Return `name`; raise InvalidRequestError if it breaks a rule."""
    reason = _why_illegal(name)
    if reason is not None:
        raise InvalidRequestError(
            "ILLEGAL_FILE_NAME",
            f"file name {name!r}: {reason}, expected a relative path such as 'segments/w1/0.log'",
            fix="Use a name made of plain parts separated by '/'",
        )
    return name


def validate_prefix(prefix: str) -> str:
    """As `validate_name`, for a directory; the empty string is the root."""
    return prefix if prefix == "" else validate_name(prefix.rstrip("/"))


def first_left_out(name: str, enters: Callable[[str], bool]) -> str | None:
    """Return the first directory of a file's path that a walk does not enter (Store.walk), or None."""
    end = name.find("/")
    while end >= 0:
        if not enters(name[:end]):
            return name[:end]
        end = name.find("/", end + 1)
    return None


def _why_illegal(name: str) -> str | None:
    if not name:
        return "it is empty"
    if "\0" in name:
        return "it contains a NUL character"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"it is {len(encoded)} bytes long, at most {MAX_NAME_BYTES} are allowed"
    for part in name.split("/"):
        if part == "":
            return "it has an empty part or starts or ends with '/'"
        if part in {".", ".."}:
            return f"the part {part!r} could leave the root"
        if part == TEMPORARY_DIRECTORY:
            return f"the part {part!r} is reserved"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"a part is longer than {MAX_PART_BYTES} bytes"
    return None


# --- base --------------------------------------------------------------------------------------------


__all__ = [
    "UNFINISHED_MS",
    "AppendFile",
    "BytesLike",
    "IndefinitePutError",
    "ReadFile",
    "Store",
    "StoreTraits",
    "StoredFile",
]

# The time that a vacuum leaves to written, unpublished data (maintenance/sweep.py).
UNFINISHED_MS = 7 * 24 * 3_600_000

# Anything with contiguous bytes; also pyarrow buffers, which are untyped. Python 3.11 has no type for it.
BytesLike = bytes | bytearray | memoryview


# Called with the name of a directory that cannot be listed, and the error.
OnFailed = Callable[[str, StorageError], None]


def raise_it(_directory: str, error: StorageError) -> None:
    """End the walk."""
    raise error


class IndefinitePutError(StorageError):
    """The put may or may not have happened, or may still happen.

    Repeat the same bytes to the same name until the outcome is definite, then compare the file's content.
    Never go on to another name before.
    """


class StoredFile(NamedTuple):
    """An entry of a listing."""

    name: str
    size: int
    modified_ms: int  # by the storage's clock; for display and for ages, never for ordering


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTraits:
    """Properties of a kind of store that the layers above need.

    Fields:
        is_remote: each access costs a request and a round trip: access it seldom, prefetch, in parallel.
        appends_after_sync: if false, sync() finishes a file, and writing continues in a new one.
        refresh_interval_ms: the minimum time between two polls of a follower.
    """

    is_remote: bool = False
    appends_after_sync: bool = True
    refresh_interval_ms: int = 0


class AppendFile(Protocol):
    """A file that only this process appends to. Not for sharing across threads or forks."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> int:
        """The number of bytes written so far, where the next write begins."""
        ...

    @property
    def is_removed(self) -> bool:
        """True if the file was deleted while it was open here. False where that cannot be detected."""
        ...

    def write(self, *chunks: BytesLike) -> int:
        """Append all chunks; return the position of the first byte. All or nothing (but not durable).

        After a failed write the file continues at the position before it, or refuses further use.
        """
        ...

    def sync(self) -> None:
        """Make every byte written so far, and the file's name, durable. FatalStorageError: never retry.

        Where the store's traits say not appends_after_sync, this finishes the file.
        """
        ...

    def close(self) -> None:
        """Release the file without syncing; idempotent."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ReadFile(Protocol):
    """A file opened for reading."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int:
        """The size as of opening; a remote store learns it at the first read, or requests it."""
        ...

    @property
    def descriptor(self) -> int | None:
        """The descriptor, for os.sendfile; None where the storage has none. `close` closes it."""
        ...

    def will_need(self, position: int, size: int) -> None:
        """Announce a read, in reading order: a remote store fetches the bytes in the background."""
        ...

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        """Return the bytes from `position`; fewer than `size` only at the end of the file."""
        ...

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes, fewer only at the end of the file."""
        ...

    def map(self) -> memoryview:
        """Return the first `size` bytes, read-only, without copying where possible; outlives close().

        Only for files that never get shorter: access to a truncated page kills the process (SIGBUS).
        """
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _nothing() -> None:
    pass


def _note_nothing(_note: bytes) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The result of an attempt to hold a lock file.

    Fields:
        release: releases the lock, if this process holds it.
        holder: the note of the process that holds it; None: this process holds it, or there are no locks.
        is_proof: this process holds it, and the previous holder is dead: both ran under this kernel.
        before: the note of the previous holder, if it did not release the lock.
        write: replaces this process's note.
    """

    release: Callable[[], None] = _nothing
    holder: bytes | None = None
    is_proof: bool = False
    before: bytes = b""
    write: Callable[[bytes], None] = _note_nothing


class AdvisoryLock(Protocol):
    """A lock that spares racing processes futile work; correctness must not depend on it."""

    def acquire(self) -> bool:
        """Return false if another holds it, without waiting; always true where the store has no locks."""
        ...

    def release(self) -> None:
        """Release it if it is held. May be called after an `acquire` or `release` that was interrupted."""
        ...


class NoLock:
    """The advisory lock of a store without locks: always acquired."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Store(Protocol):
    """A flat set of named files under one root."""

    @property
    def url(self) -> str: ...
    @property
    def traits(self) -> StoreTraits: ...

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        """Create `name` with `data`, durably, unless it exists.

        Args:
            guard: called once abort_puts(name) can stop this put; if it returns false, nothing is created.

        Raises:
            AlreadyExistsError: the name is taken; nothing was changed by this call.
            RetriableError: the guard returned false, or abort_puts stopped the put; nothing was changed.
            IndefinitePutError, FatalStorageError: see the module's docstring.
            StorageError: nothing was changed (disk full, read-only, ...).
        """
        ...

    def abort_puts(self, name: str) -> None:
        """When it returns, every put of `name` whose guard was called before has ended or will fail."""
        ...

    def try_requests(self) -> None:
        """Make each kind of request that writing and maintenance need, once; for new roots and `doctor`.

        Raises:
            StorageError: the storage refuses one, which the message names; nothing was left behind.
        """
        ...

    def put_lifetime_ms(self) -> int | None:
        """Return how long a put may take effect after its guard was called, in ms.

        0 if abort_puts stops it; None if there is no bound, so that names must never be reused.
        """
        ...

    def storage_now_ms(self, here_ms: int) -> int:
        """Return the time of the clock that stamps modified_ms; `here_ms` is this machine's time."""
        ...

    def space(self) -> tuple[int, int] | None:
        """Return the capacity and the free space in bytes; None if the storage does not report them."""
        ...

    def release_reserve(self) -> bool:
        """Free a part of the space reserved for commits that free space; False if none is left."""
        ...

    def restore_reserve(self) -> None:
        """Reserve space for such commits, if the storage has limited space and enough of it is free."""
        ...

    def advisory_lock(self, prefix: str) -> AdvisoryLock:
        """Return a new handle for the advisory lock on directory `prefix`."""
        ...

    def hold(self, name: str, note: bytes) -> Hold:
        """Try to hold a lock file under the root until it is released, or the process ends.

        Advisory, between processes of one machine; stores without locks always grant it.

        Args:
            note: identifies the holder to other processes.
        """
        ...

    def sync_directory(self, prefix: str) -> None:
        """Make the names in directory `prefix` durable, also those that other processes created."""
        ...

    def sync_name(self, name: str) -> None:
        """Make a name from put_if_absent durable, of any process, and all earlier ones in its directory.

        Costs almost nothing if the put has completed.
        """
        ...

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        """Return bytes of a file, fewer than `size` only at its end. Raises NotFoundError."""
        ...

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        """Return the first `max_bytes` of each file, None if it is missing; in parallel where that helps."""
        ...

    def exists(self, name: str) -> bool:
        """True if the file exists. Raises an error if that cannot be determined."""
        ...

    def top_names(self, limit: int) -> list[str]:
        """Return at most `limit` names at the top of the root, of any origin; directories end with '/'."""
        ...

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        """Return the files in directory `prefix` ('' is the root), by name; empty if it does not exist.

        Args:
            start_after: only names greater than this.
            within_ms: raise StorageError if a remote store takes longer; 0: the usual timeouts. For optional
                listings.
        """
        ...

    def walk(
        self, enters: Callable[[str], bool], failed: OnFailed = raise_it
    ) -> Iterator[Sequence[StoredFile]]:
        """Yield the files of the root in portions of some thousand, unordered: a root may have millions.

        Args:
            enters: returns whether to descend into a directory, by its name; parents are asked first.
            failed: called with the name of a directory that cannot be listed, and the error; unless it raises
                the error, the walk goes on with the others. Object stores list all of a root in one.

        Files that exist throughout are found; those created or removed concurrently, perhaps. A name with a
        final '/' is an empty directory.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file; no error if it is missing. Not synced: it may come back after a power cut."""
        ...

    def delete_many(self, names: Sequence[str]) -> None:
        """Delete files in as few requests as the storage allows. After an error some are deleted."""
        ...

    def remove_directory(self, prefix: str) -> bool:
        """Remove a directory if it is empty; return whether. Concurrent writers create it again."""
        ...

    def delete_directory(self, prefix: str) -> None:
        """Remove every file under `prefix`, and the directory. No process may create files in it any more."""
        ...

    def append_file(self, name: str, *, mapped: bool = False) -> AppendFile:
        """Create `name` exclusively for appending. Raises AlreadyExistsError, here or (remote) at its sync.

        Args:
            mapped: readers may map the file while it grows, so it never gets shorter: after a failed write
                its torn bytes stay, and the file accepts no more.
        """
        ...

    def put_hint(self, name: str, data: BytesLike) -> None:
        """Create or replace a derived file atomically; not durable, and nothing may depend on it."""
        ...

    def open_read(self, name: str) -> ReadFile:
        """Open for reading. Raises NotFoundError, here or (remote) at the first read."""
        ...

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        """Remove the remains of interrupted puts; return the number of files.

        Safe with running puts: one whose file is removed fails with RetriableError.

        Args:
            older_than_ms: by the storage's clock.
            unfinished_older_than_ms: the same for an object store's uploads, which may be in progress: a
                task may write for days before it completes them.
            dry_run: only count.
        """
        ...


# --- whole files -------------------------------------------------------------------------------------
#
# Reading whole files by opening them, for stores where opening costs no request.
#
# Not here: several requests at a time, for remote stores (s3.py).


class WholeFiles(ABC):
    """`read` and `read_many` of a Store, by its `open_read`."""

    @abstractmethod
    def open_read(self, name: str) -> ReadFile:
        """See Store."""

    def try_requests(self) -> None:  # noqa: B027 - filesystems.py has checked it
        """See Store."""

    def release_reserve(self) -> bool:
        """See Store."""
        return False

    def restore_reserve(self) -> None:  # noqa: B027 - only a disk has a reserve
        """See Store."""

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        """See Store."""
        with self.open_read(name) as file:
            return file.read(position, size)

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        """See Store."""
        return [self._read_if_there(name, max_bytes) for name in names]

    def _read_if_there(self, name: str, max_bytes: int) -> bytes | None:
        try:
            return self.read(name, 0, max_bytes)
        except NotFoundError:
            return None
