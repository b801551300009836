"""What a store must do: named, immutable or append-only files, and one atomic primitive, put-if-absent.

Invariants every store keeps:
    - put_if_absent lets exactly one of any number of racing callers win, and has made the file durable
      (with its name) when it returns;
    - a file made by put_if_absent never changes; a file made by append_file only grows, and only by
      the process that created it, but for the bytes of a failed write, which may go again;
    - an error that proves nothing happened is a RetriableError, AlreadyExistsError or plain StorageError;
      one that does not is IndefinitePutError (resolve by the same bytes to the same name) or
      FatalStorageError (durability unknown: stop the process).
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


# Unfinished puts live here, beside everything else under the root; no name may reach into it.
TEMPORARY_DIRECTORY = ".tmp"
# Linux limits: one part of a path, and a whole path (less room for the root itself).
MAX_PART_BYTES = 255
MAX_NAME_BYTES = 2048


@functools.lru_cache(maxsize=8192)
def validate_name(name: str) -> str:
    """Return `name`, or raise InvalidRequestError saying which rule it breaks."""
    reason = _why_illegal(name)
    if reason is not None:
        raise InvalidRequestError(
            "ILLEGAL_FILE_NAME",
            f"file name {name!r}: {reason}, expected a relative path such as 'segments/w1/0.log'",
            fix="Use a name made of plain parts separated by '/'",
        )
    return name


def validate_prefix(prefix: str) -> str:
    """A directory name, where the empty string is the root itself."""
    return prefix if prefix == "" else validate_name(prefix.rstrip("/"))


def first_left_out(name: str, enters: Callable[[str], bool]) -> str | None:
    """The first directory on the way to a file that a walk does not enter (Store.walk); None: no such."""
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

# As long as a vacuum leaves to what was written and not published yet (maintenance/sweep.py).
UNFINISHED_MS = 7 * 24 * 3_600_000

# Anything with contiguous bytes; pyarrow buffers qualify too (they are untyped). 3.11 has no word for it.
BytesLike = bytes | bytearray | memoryview


class IndefinitePutError(StorageError):
    """The put may or may not have happened, or may still happen. Repeat the same bytes to the same name
    until the answer is definite, then compare what is there; never go on to another name before.
    """


class StoredFile(NamedTuple):
    """One entry of a listing."""

    name: str
    size: int
    modified_ms: int  # by the clock of the storage; for display and for ages, never for ordering


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTraits:
    """What the layers above must know about a kind of store.

    Fields:
        is_remote: every look costs a request and a round trip: ask seldom, fetch ahead, in parallel.
        appends_after_sync: false: sync() finishes a file, and writing goes on in a new one.
        refresh_interval_ms: following the log looks for news no more often than this.
    """

    is_remote: bool = False
    appends_after_sync: bool = True
    refresh_interval_ms: int = 0


class AppendFile(Protocol):
    """A file that this process alone appends to. Not for sharing across threads or fork."""

    @property
    def name(self) -> str: ...
    @property
    def position(self) -> int:
        """Bytes written so far; where the next write lands."""
        ...

    @property
    def is_removed(self) -> bool:
        """Has somebody deleted the file while it was open here? False where that cannot be seen."""
        ...

    def write(self, *chunks: BytesLike) -> int:
        """Append all chunks; returns the position of the first byte. All or nothing (but not durable).

        After a failed write the file goes on at the position before it, or refuses further use.
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
    """A file opened for reading; `size` is as of opening."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int:
        """As of opening; remote stores learn it with the first read, or ask."""
        ...

    @property
    def descriptor(self) -> int | None:
        """The open file's descriptor, for os.sendfile; None where the storage has none. Closed by `close`."""
        ...

    def will_need(self, position: int, size: int) -> None:
        """These bytes will be read soon, in this order: a remote store fetches them in the background."""
        ...

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        """Bytes from `position`; fewer than `size` only at the end of the file."""
        ...

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; returns the bytes read, fewer only at the end of the file."""
        ...

    def map(self) -> memoryview:
        """The first `size` bytes, read-only and without copying where possible; outlives close().

        Only of files that never get shorter: touching what is gone would end the process (SIGBUS).
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
    """What came of an attempt to hold a name: without a holder it is ours until `release`, or nobody's.

    Fields:
        holder: the note of who has it instead.
        is_proof: it is ours, and whoever held it before is dead: one kernel runs all who could have it.
        before: the note of who held it before, if that one did not release it.
        write: replaces our note.
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
            guard: asked once abort_puts(name) can stop this put; when false, nothing is created.

        Raises:
            AlreadyExistsError: the name is taken; nothing was changed by this call.
            RetriableError: guard was false, or abort_puts stopped it; nothing was changed.
            IndefinitePutError, FatalStorageError: see the module's docstring.
            StorageError: nothing was changed (disk full, read-only, ...).
        """
        ...

    def abort_puts(self, name: str) -> None:
        """After this, every put of `name` that asked its guard before this call has ended or will fail."""
        ...

    def try_requests(self) -> None:
        """Make each kind of request once that writing and maintenance will make; for new roots and doctors.

        Raises:
            StorageError: the storage refuses one, which is named; nothing was left behind.
        """
        ...

    def put_lifetime_ms(self) -> int | None:
        """How long a put may still take effect after its guard was asked: 0 if abort_puts really stops it,
        None if there is no bound, and so no name may ever become free again.
        """
        ...

    def storage_now_ms(self, here_ms: int) -> int:
        """The time by the clock that stamps modified_ms; `here_ms` is what this machine's clock says."""
        ...

    def space(self) -> tuple[int, int] | None:
        """Bytes that the storage has in all, and that we may still fill; None where nobody counts them."""
        ...

    def release_reserve(self) -> bool:
        """Give up a part of what is kept free for commits that free space; False if there is none left."""
        ...

    def restore_reserve(self) -> None:
        """Keep some space free for such commits, where that makes sense and there is much more of it."""
        ...

    def advisory_lock(self, prefix: str) -> AdvisoryLock:
        """Return a new handle for the advisory lock on directory `prefix`."""
        ...

    def hold(self, name: str, note: bytes) -> Hold:
        """Try to keep a lock under the root until it is released, or the process ends. A courtesy between
        processes of one machine; stores without locks always give it.

        Args:
            note: tells others who holds it.
        """
        ...

    def sync_directory(self, prefix: str) -> None:
        """Make the names in directory `prefix` durable, whoever created them."""
        ...

    def sync_name(self, name: str) -> None:
        """Make a name durable that somebody created by put_if_absent, and all that came before it in its
        directory. Costs next to nothing when its creator has come to the end of that.
        """
        ...

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file; fewer than `size` only at its end. NotFoundError."""
        ...

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        """The first `max_bytes` of each file, None where there is none; in parallel where that pays."""
        ...

    def exists(self, name: str) -> bool:
        """Is there a file of this name? An unanswerable question is an error, never False."""
        ...

    def top_names(self, limit: int) -> list[str]:
        """Whatever is at the top of the root, ours or not: at most `limit` names, directories with a '/'."""
        ...

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        """Files in directory `prefix` ('' = the root), by name; empty when it does not exist.

        Args:
            start_after: only names greater than this.
            within_ms: of a remote store that takes longer for an answer, that is an error (StorageError); 0:
                it is waited for, as ever. For looks that nothing depends on.
        """
        ...

    def walk(self, enters: Callable[[str], bool]) -> Iterator[Sequence[StoredFile]]:
        """The files of the root in portions of some thousand, in no order: a root may have millions.

        Args:
            enters: by its name, whether to look into a directory; asked of one at the top first.

        What is there all the time is found; what comes or goes meanwhile, perhaps. An empty directory, where
        there are such, is one whose name ends with a '/'.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file; no error when it is gone already. Not synced: it may come back after a power cut."""
        ...

    def delete_many(self, names: Sequence[str]) -> None:
        """As `delete`, each of them, in as few requests as the storage allows. On an error some are gone."""
        ...

    def remove_directory(self, prefix: str) -> bool:
        """Remove a directory if it is empty; false if not. Who makes a file in it meanwhile makes it anew."""
        ...

    def delete_directory(self, prefix: str) -> None:
        """Remove every file under `prefix`, and the directory. Nobody may still create files in it."""
        ...

    def append_file(self, name: str, *, mapped: bool = False) -> AppendFile:
        """Create `name` exclusively for appending. AlreadyExistsError, here or (remote) at its sync.

        Args:
            mapped: readers may map the file while it grows, so it never gets shorter: a failed write
                leaves its torn bytes there, and is the last.
        """
        ...

    def put_hint(self, name: str, data: BytesLike) -> None:
        """Create or replace a derived file atomically; not durable, and nothing may depend on it."""
        ...

    def open_read(self, name: str) -> ReadFile:
        """Open for reading. NotFoundError, here or (remote stores) when it is first read."""
        ...

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        """Remove what interrupted puts left behind; returns how many files. Harmless to running puts:
        one that is swept fails with RetriableError.

        Args:
            older_than_ms: by the storage's clock.
            unfinished_older_than_ms: likewise, of files that are still being written, for all that can be
                seen: an object store's uploads. A task may write for days, and complete them then.
            dry_run: only count.
        """
        ...


# --- whole files -------------------------------------------------------------------------------------
#
# Reading whole files by opening them, for stores where opening costs no request.
#
# Not here: a remote store's way, several requests at once (s3.py).


class WholeFiles(ABC):
    """`read` and `read_many` of a Store, made of its `open_read`."""

    @abstractmethod
    def open_read(self, name: str) -> ReadFile:
        """See Store."""

    def try_requests(self) -> None:  # noqa: B027 - nothing to try: filesystems.py has judged it
        """See Store."""

    def release_reserve(self) -> bool:
        """See Store."""
        return False

    def restore_reserve(self) -> None:  # noqa: B027 - nothing to keep, but on a disk
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
