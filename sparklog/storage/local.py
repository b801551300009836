"""A store in a directory of a local file system (ext4, xfs, ...).

The steps of put-if-absent, and their reasons:
    1. write a temporary file under <root>/.tmp and fsync it  (a linked name must never show torn bytes)
    2. ask the guard                                          (see abort_puts)
    3. os.link(temporary, name)                               (atomic: one winner; rename would overwrite)
    4. fsync the directory, and new parents up to the root    (else a power cut takes the name back)
    5. only now unlink the temporary file, and return         (a crash leaves it to sweep_temporary)
Since 5 follows 4, a file with one link is durable under its name; one with two may be durable or not. So
others learn from a stat whether they must sync the directory before they build on it (sync_name).

abort_puts unlinks the temporary files of a name, so that step 3 of a stalled put fails (ENOENT) whenever it
resumes. The temporary directory is small and separate, so that this costs a few microseconds whatever the
size of the log.

Invariants: see base.py. After a failed fsync the store refuses every further write ("poisoned").
A link error is not trusted: a retransmitted LINK may report EEXIST for its own success. Device and inode
show whose file has the name.
Not here: which file systems are suitable (filesystems.py). NFS caches negative lookups, so that a follower
can miss a commit.
Concurrency: any number of threads and processes; no open files are kept, so fork is harmless.
Sources: link(2), fsync(2); Pillai et al., All File Systems Are Not Created Equal; KAFKA-3968.
"""

import binascii
import contextlib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparklog.errors import (
    AlreadyExistsError,
    FatalStorageError,
    NotFoundError,
    RetriableError,
    SparklogError,
    StorageError,
)
from sparklog.failpoints import failpoint
from sparklog.storage.base import (
    TEMPORARY_DIRECTORY,
    UNFINISHED_MS,
    BytesLike,
    Hold,
    IndefinitePutError,
    OnFailed,
    StoredFile,
    StoreTraits,
    WholeFiles,
    raise_it,
    validate_name,
    validate_prefix,
)
from sparklog.storage.filesystems import Trust, judge, mount_of
from sparklog.storage.local_files import (
    MISSING,
    PAGE_BYTES,
    DirectoryLock,
    DurableNames,
    LocalAppendFile,
    LocalReadFile,
    fatal_error,
    hold_file,
    indefinite_error,
    is_full,
    open_regular,
    read_page,
    storage_error,
    write_all,
)

# --- local tree --------------------------------------------------------------------------------------
#
# Directory trees of a local store: listing, walking and removing.
#
# Concurrency: files may come and go during a listing. One that vanishes is left out; one that exists
# throughout is found.


PORTION = 4096  # files in a portion of a walk


def list_files(
    root: str, prefix: str, *, recursive: bool, start_after: str | None = None
) -> list[StoredFile]:
    """Return the regular files in a directory, sorted by name; [] if it does not exist."""
    found: list[StoredFile] = []
    pending = [prefix]
    while pending:
        directory = pending.pop()
        path = f"{root}/{directory}" if directory else root
        try:
            for entry in _names_after(os.listdir(path), directory, start_after):
                name = f"{directory}/{entry}" if directory else entry
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(f"{path}/{entry}")
                    if stat.S_ISDIR(status.st_mode):
                        if recursive and entry != TEMPORARY_DIRECTORY:
                            pending.append(name)
                    elif stat.S_ISREG(status.st_mode) and (start_after is None or name > start_after):
                        found.append(StoredFile(name, status.st_size, status.st_mtime_ns // 1_000_000))
        except OSError as error:
            if error.errno not in MISSING:
                raise storage_error("list", path, error) from error
    found.sort()
    return found


def _names_after(names: list[str], directory: str, start_after: str | None) -> list[str]:
    """Return the names in a directory that are greater, and directories that may hold such names.

    The others cost no stat and no call: the metadata log may have 100,000 commits in a directory. Opening
    lists from the newest snapshot on; so opening a root with 150,000 commits takes a ninth of the time
    (0.05 to 0.12 of it, five interleaved runs on a busy machine).
    """
    prefix = f"{directory}/" if directory else ""
    if start_after is None or start_after < prefix:
        return names
    if not start_after.startswith(prefix):
        return []
    after = start_after[len(prefix) :]
    beginnings = frozenset(after[:size] for size in range(1, len(after) + 1))
    return [name for name in names if name > after or name in beginnings]


def walk_files(
    root: str, enters: Callable[[str], bool], failed: OnFailed = raise_it
) -> Iterator[Sequence[StoredFile]]:
    """Yield regular files, in portions; see Store.walk."""
    portion: list[StoredFile] = []
    for stored in _files_of(root, "", enters, failed):
        portion.append(stored)
        if len(portion) == PORTION:
            yield portion
            portion = []
    if portion:
        yield portion


def _files_of(
    root: str, directory: str, enters: Callable[[str], bool], failed: OnFailed
) -> Iterator[StoredFile]:
    path = f"{root}/{directory}" if directory else root
    is_empty = True
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                is_empty = False
                name = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != TEMPORARY_DIRECTORY and enters(name):
                        yield from _files_of(root, name, enters, failed)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield StoredFile(name, status.st_size, status.st_mtime_ns // 1_000_000)
        if is_empty and directory:
            modified_ns = os.stat(path).st_mtime_ns
            yield StoredFile(f"{directory}/", 0, modified_ns // 1_000_000)
    except OSError as error:
        if error.errno not in MISSING:
            failed(directory, storage_error("list", path, error))


def remove_empty(path: str) -> bool:
    """Remove a directory; false if it is not empty, or missing."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno in {*MISSING, errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise storage_error("remove", path, error) from error
    return True


def top_names(root: str, limit: int) -> list[str]:
    """Return the first `limit` names of any kind in a directory, which may be foreign, and huge."""
    try:
        with os.scandir(root) as entries:
            return [
                f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in itertools.islice(entries, limit)
            ]
    except OSError as error:
        raise storage_error("list", root, error) from error


def remove_tree(path: str) -> None:
    """Remove a directory and its files; no error if some of them are missing."""
    try:
        for directory, _, files in os.walk(path, topdown=False):
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{directory}/{file}")
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(directory)
    except OSError as error:
        raise storage_error("remove", path, error) from error


# --- local temporary ---------------------------------------------------------------------------------
#
# Temporary files of a local store: their names, the remains of killed puts, and a reserve of space.
#
# The reserve is a file of RESERVE_BYTES without content. An operation that frees space first writes a commit,
# which would fail on a full disk. So each such commit, and no other, truncates the reserve by a step. The
# reserve is created with the root, and restored by maintenance when there is room.
#
# Invariants: a put whose temporary file is removed fails with an error that says so, and changes nothing. A
#     name that was linked and not synced is durable before its second link is removed, since one link means
#     durable. Correctness never depends on the reserve: it may be missing, or shorter, at any time.
# Concurrency: any number of processes; files may vanish at any time.


RESERVE_BYTES = 2 << 20
_RESERVE = "reserve"
_RESERVE_STEP = 128 << 10  # a commit, its temporary name, and the growth of a directory
_ROOM_FACTOR = 16  # free space needed to create the reserve, in reserves


def put_key(name: str) -> str:
    """Return the prefix of the temporary files of a name. A collision would abort a foreign put, once."""
    return f"{binascii.crc32(name.encode()):08x}-{len(name)}"


def has_two_links(fd: int) -> bool:
    """Called right after a put's link: true if this file system counts links."""
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_nlink > 1
    return False


def sweep_temporary_files(directory: str, limit_ns: int, *, dry_run: bool) -> int:
    """Remove files last changed at `limit_ns` or before; return how many (with `dry_run`: would be)."""
    removed = 0
    for stored in list_files(directory, "", recursive=False):
        if stored.name == _RESERVE:
            continue
        path = f"{directory}/{stored.name}"
        failpoint("sweep.temporary")
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_mtime_ns <= limit_ns:
                if not dry_run:
                    _remove(directory, path)
                removed += 1
    return removed


def _remove(directory: str, path: str) -> None:
    # Renamed first: its put may continue at any moment, and must not link it after the links are counted.
    aside = f"{directory}/swept.{os.getpid()}.{secrets.token_hex(8)}"
    os.rename(path, aside)
    if os.stat(aside).st_nlink > 1:  # its put was stopped between two steps
        os.sync()  # one link means that the name is durable, and the name is unknown
    os.unlink(aside)


def is_reserve(name: str) -> bool:
    """True if this name in the temporary directory is the reserve's, and not a put's."""
    return name == _RESERVE


def release_reserve(directory: str) -> bool:
    """Truncate the reserve by a step; False if nothing is left of it."""
    try:
        fd = os.open(f"{directory}/{_RESERVE}", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        size = os.fstat(fd).st_size
        os.ftruncate(fd, max(0, size - _RESERVE_STEP))
        os.fsync(fd)  # some file systems free blocks only then
    except OSError:
        return False
    finally:
        os.close(fd)
    return size > 0


def restore_reserve(directory: str) -> None:
    """Make the reserve whole, if there is enough room; no error if that fails."""
    with contextlib.suppress(OSError):
        space = os.statvfs(directory)
        if space.f_bavail * space.f_frsize < _ROOM_FACTOR * RESERVE_BYTES:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(f"{directory}/{_RESERVE}", flags, 0o666)
        try:
            size = os.fstat(fd).st_size
            for start in range(size, RESERVE_BYTES, _RESERVE_STEP):  # a hole would reserve nothing
                os.pwrite(fd, os.urandom(min(_RESERVE_STEP, RESERVE_BYTES - start)), start)
        finally:
            os.close(fd)


# --- local -------------------------------------------------------------------------------------------


_FILE_MODE = 0o666  # the umask decides
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_MAX_REMOVALS = 3  # of a file's directory, while the file is created
_TRAITS = StoreTraits()


class LocalStore(WholeFiles):
    """See Store. `root` must exist; open_store creates it."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._temporary = f"{self._root}/{TEMPORARY_DIRECTORY}"
        self._names = DurableNames(self._root, self._set_poison)
        self._counts_links = False  # set by a put: not every file system does
        self._poison: FatalStorageError | None = None

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    @property
    def traits(self) -> StoreTraits:
        return _TRAITS

    @property
    def root(self) -> str:
        """Absolute path of the root."""
        return self._root

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    # --- put-if-absent -------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        path = self._path(name)
        self._refuse_if_poisoned()
        if self.exists(name):  # saves the loser of a race its fsync
            raise self._taken(path)
        self._names.make_parents(path)
        temporary, fd = self._create_temporary(put_key(name))
        may_unlink = True
        try:
            self._write_durably(path, fd, data)
            self.at_step("temporary_synced", name)
            if guard is not None and not guard():
                raise RetriableError(
                    "PUT_REFUSED", f"{path}: overtaken while writing", fix="Refresh and try again"
                )
            self.at_step("guard_passed", name)
            may_unlink = False  # until the name is durable, or known not to exist
            try:
                self._link(temporary, path, fd)
            except IndefinitePutError:
                raise
            except SparklogError:
                may_unlink = True
                raise
            self.at_step("linked", name)
            self._counts_links = has_two_links(fd)
            self._sync_linked(path)
            may_unlink = True
            self.at_step("directory_synced", name)
        finally:
            os.close(fd)
            if may_unlink:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def abort_puts(self, name: str) -> None:
        prefix = put_key(validate_name(name)) + "."
        try:
            with os.scandir(self._temporary) as entries:
                aimed = [entry.path for entry in entries if entry.name.startswith(prefix)]
            for path in aimed:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("abort unfinished puts", self._temporary, error) from error

    def space(self) -> tuple[int, int]:
        found = os.statvfs(self._root)
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    def put_lifetime_ms(self) -> int:
        return 0

    def storage_now_ms(self, here_ms: int) -> int:  # noqa: ARG002 - the kernel dates files
        return self._now_ns() // 1_000_000

    def release_reserve(self) -> bool:
        return release_reserve(self._temporary)

    def restore_reserve(self) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self._temporary, exist_ok=True)
        restore_reserve(self._temporary)

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        del unfinished_older_than_ms  # files being written have their final names
        limit_ns = self._now_ns() - older_than_ms * 1_000_000
        return sweep_temporary_files(self._temporary, limit_ns, dry_run=dry_run)

    def _now_ns(self) -> int:
        """Return the time of the file system, which may differ from this machine's, by a new file."""
        probe, fd = self._create_temporary("probe")
        try:
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(probe)

    def at_step(self, point: str, name: str) -> None:  # noqa: ARG002 - for tests
        """A failpoint for each step of a put; tests may override it."""
        failpoint(f"put.{point}")

    def _create_temporary(self, key: str) -> tuple[str, int]:
        path = f"{self._temporary}/{key}.{os.getpid()}.{secrets.token_hex(8)}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        try:
            try:
                return path, os.open(path, flags, _FILE_MODE)
            except FileNotFoundError:
                os.makedirs(self._temporary, exist_ok=True)
                return path, os.open(path, flags, _FILE_MODE)
        except OSError as error:
            raise storage_error("create a temporary file", path, error) from error

    def _write_durably(self, path: str, fd: int, data: bytes) -> None:
        try:
            write_all(fd, [memoryview(data)], 0)
        except OSError as error:
            raise storage_error("write", path, error) from error
        try:
            failpoint("put.sync")
            os.fsync(fd)
        except OSError as error:
            if is_full(error):  # delayed allocation; these bytes have no name and never get one
                raise storage_error("write", path, error) from error
            raise self._poisoned("fsync", path, error) from error

    def _link(self, temporary: str, path: str, fd: int) -> None:
        try:
            os.link(temporary, path)
        except OSError as error:
            # The file that has the name decides, not the count of links: a copy of the root by hard links
            # (`cp -al root backup`) also links our temporary file, and raises the count.
            found = self._stat_or_none(path, error)
            if found is not None:
                if os.path.samestat(found, self._own(fd, path, error)):
                    return  # the link exists: only the answer was lost
                raise self._taken(path) from error
            if error.errno == errno.EEXIST:  # removed again since: the number was used
                raise self._taken(path) from error
            if self._stat_or_none(temporary, error) is None:
                raise RetriableError(
                    "PUT_ABORTED", f"{path}: stopped by a cleaner or a sweep", fix="Refresh and try again"
                ) from error
            raise storage_error("link", path, error) from error

    def _sync_linked(self, path: str) -> None:
        try:
            self._names.sync(os.path.dirname(path))
        except FatalStorageError:
            raise
        except StorageError as error:  # not synced: the name exists, perhaps not for good
            raise IndefinitePutError(
                "PUT_INDEFINITE",
                f"{path}: linked, but not synced: {error.message}",
                fix="Repeat the same put",
            ) from error

    def _stat_or_none(self, path: str, cause: OSError) -> os.stat_result | None:
        """Return the status of the file with this name after a failed link; None if there is none."""
        try:
            return os.stat(path)
        except OSError as error:
            if error.errno in MISSING:
                return None
            raise indefinite_error(path, cause, error) from error

    def _own(self, fd: int, path: str, cause: OSError) -> os.stat_result:
        try:
            return os.fstat(fd)
        except OSError as error:
            raise indefinite_error(path, cause, error) from error

    def _taken(self, path: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            "FILE_EXISTS", f"{path}: exists, expected no such file", fix="Use another name"
        )

    def advisory_lock(self, prefix: str) -> DirectoryLock:
        return DirectoryLock(self._directory(prefix))

    def hold(self, name: str, note: bytes) -> Hold:
        trust, _ = judge(mount_of(self._root))
        return hold_file(f"{self._root}/{name}", note, is_local=trust is Trust.TRUSTED)

    # --- durable names -------------------------------------------------------------------------------

    def sync_directory(self, prefix: str) -> None:
        self._refuse_if_poisoned()
        self._names.sync(self._directory(prefix))

    def sync_name(self, name: str) -> None:
        path = self._path(name)
        self._refuse_if_poisoned()
        if self._counts_links:
            try:
                if os.stat(path).st_nlink == 1:
                    return
            except OSError as error:
                raise storage_error("look up", path, error) from error
        self._names.sync(os.path.dirname(path))

    def _poisoned(self, action: str, path: str, error: OSError) -> FatalStorageError:
        fatal = fatal_error(action, path, error)
        self._set_poison(fatal)
        return fatal

    def _set_poison(self, error: FatalStorageError) -> None:
        self._poison = error

    def _refuse_if_poisoned(self) -> None:
        if self._poison is not None:
            raise self._poison

    # --- plain files ---------------------------------------------------------------------------------

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        if position or size is None or size > PAGE_BYTES:
            return super().read(name, position, size)
        return read_page(self._path(name), size)

    def _path(self, name: str) -> str:
        return f"{self._root}/{validate_name(name)}"

    def _directory(self, prefix: str) -> str:
        return f"{self._root}/{validate_prefix(prefix)}".rstrip("/") or "/"

    def exists(self, name: str) -> bool:
        path = self._path(name)
        try:
            # Path.exists returns False for any error.
            return stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode)
        except OSError as error:
            if error.errno in MISSING:
                return False
            raise storage_error("look up", path, error) from error

    def top_names(self, limit: int) -> list[str]:
        return top_names(self._root, limit)

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        del within_ms
        return list_files(self._root, validate_prefix(prefix), recursive=recursive, start_after=start_after)

    def walk(
        self, enters: Callable[[str], bool], failed: OnFailed = raise_it
    ) -> Iterator[Sequence[StoredFile]]:
        return walk_files(self._root, enters, failed)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            os.unlink(path)
        except OSError as error:
            if error.errno not in MISSING:
                raise storage_error("delete", path, error) from error

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def remove_directory(self, prefix: str) -> bool:
        return remove_empty(f"{self._root}/{validate_name(prefix)}")

    def delete_directory(self, prefix: str) -> None:
        remove_tree(f"{self._root}/{validate_name(prefix)}")

    def append_file(self, name: str, *, mapped: bool = False) -> LocalAppendFile:
        path = self._path(name)
        self._refuse_if_poisoned()
        try:
            fd = self._create(path)
        except FileExistsError as error:
            raise self._taken(path) from error
        except OSError as error:
            raise storage_error("create", path, error) from error
        directory = os.path.dirname(path)
        return LocalAppendFile(
            name,
            path,
            fd,
            may_shrink=not mapped,
            sync_names=lambda: self._sync_name_of(fd, directory),
            poison_store=self._set_poison,
        )

    def _sync_name_of(self, fd: int, directory: str) -> None:
        if os.fstat(fd).st_nlink:  # else it was swept: it has no name, and perhaps no directory
            try:
                self._names.sync(directory)
            except NotFoundError:
                if os.fstat(fd).st_nlink:  # not swept since
                    raise

    def _create(self, path: str) -> int:
        for _ in range(_MAX_REMOVALS):
            self._names.make_parents(path)
            with contextlib.suppress(FileNotFoundError):  # a sweep has removed the empty directory
                return os.open(path, _NEW_FILE, _FILE_MODE)
        self._names.make_parents(path)
        return os.open(path, _NEW_FILE, _FILE_MODE)

    def put_hint(self, name: str, data: BytesLike) -> None:
        path = self._path(name)
        self._names.make_parents(path)
        temporary, fd = self._create_temporary("hint")
        try:
            write_all(fd, [memoryview(data).cast("B")], 0)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise storage_error("write", path, error) from error
        finally:
            os.close(fd)

    def open_read(self, name: str) -> LocalReadFile:
        path = self._path(name)
        try:
            fd = open_regular(path, os.O_RDONLY)
        except OSError as error:
            raise storage_error("open", path, error) from error
        try:
            return LocalReadFile(name, path, fd)
        except OSError as error:
            os.close(fd)
            raise storage_error("open", path, error) from error
