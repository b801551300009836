"""Files on a local file system: one exclusive appender, any number of readers.

Invariants:
    - bytes are written at explicit positions, so a failed or short write never shifts later ones;
    - `position` moves only past bytes that were written completely: after a failed write the file is
      truncated to it, or refuses further use;
    - a mapped file is never truncated: access to a mapped page beyond the end kills the process (SIGBUS);
    - after a failed fsync the file refuses further use: the kernel has dropped the pages, and a second fsync
      would report success.
Concurrency: an append file belongs to one thread at a time and to the process that created it: after a
fork the child's copy refuses to write, since both would write to the same positions.
After a crash: bytes past the last sync may exist, torn, or not; nothing refers to them.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from sparklog.closing import Closing
from sparklog.errors import AlreadyExistsError, FatalStorageError, NotFoundError, StorageError
from sparklog.failpoints import failpoint, torn
from sparklog.storage.base import BytesLike, Hold, IndefinitePutError

# --- os errors ---------------------------------------------------------------------------------------
#
# Errors of the operating system, mapped to sparklog's.
#
# Not here: errors of fsync, which are always fatal and raised where they occur.


_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_FREE_SPACE = (
    "Free space or raise the quota, then try again. A full disk has a reserve for commits that free space: "
    "delete a topic, or give it a shorter retention (sparklog topics), then `sparklog maintain`, or "
    "`sparklog vacuum --retain 0 --force` if nothing else writes to the root"
)
_READING = {"list", "look up", "map", "open", "read"}
_LET_READ = "Let this user read the file, and search the directories that lead to it"
_LET_WRITE = "Make the directory writable for this user, and the mount read-write"
_TOO_MANY = {errno.EMFILE, errno.ENFILE}
# vfat and exfat answer EPERM to link(2), as file systems without hard links should.
_LINK_REFUSED = {errno.EPERM}
_NO_LINKS = {errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
MISSING = {errno.ENOENT, errno.ENOTDIR}


def is_full(error: OSError) -> bool:
    """True if the disk or the quota is full: a later attempt with fresh bytes is safe."""
    return error.errno in _FULL


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the StorageError for `action` on `path`, which failed with `error`."""
    found = f"{path}: cannot {action}: {error.strerror or error} (errno {error.errno})"
    code = error.errno
    if code in _FULL:
        return StorageError("STORAGE_FULL", found, fix=_FREE_SPACE)
    if code in _NO_LINKS or (action == "link" and code in _LINK_REFUSED):
        return StorageError(
            "STORAGE_UNSUPPORTED",
            found,
            fix="Use a file system with hard links and durable directories (ext4, xfs, ...)",
        )
    if code in _REFUSED:
        return StorageError(
            "STORAGE_REFUSED",
            found,
            fix=_LET_READ if action in _READING else _LET_WRITE,
        )
    if code in MISSING:
        return NotFoundError(
            "FILE_NOT_FOUND", found, fix="Check the path, and that no process deletes files of this root"
        )
    if code == errno.EEXIST:
        return AlreadyExistsError("FILE_EXISTS", found, fix="Use another name")
    if code == errno.EFBIG:
        return StorageError(
            "FILE_TOO_LARGE", found, fix="Raise the file size limit (ulimit -f), or lower segment.bytes"
        )
    if code in _TOO_MANY:
        return StorageError("TOO_MANY_OPEN_FILES", found, fix="Raise the open files limit (ulimit -n)")
    if code == errno.ELOOP:
        return StorageError(
            "STORAGE_REFUSED",
            f"{found}, expected a regular file of the root",
            fix="Remove it, and find out where it comes from: symbolic links and pipes are not followed",
        )
    return StorageError("STORAGE_FAILED", found, fix="Check the disk and the kernel log, then try again")


def fatal_error(action: str, path: str, error: OSError) -> FatalStorageError:
    """Durability is unknown: the kernel may have dropped the pages, and a retry would report success."""
    return FatalStorageError(
        "DURABILITY_UNKNOWN",
        f"{path}: {action} failed: {error.strerror or error} (errno {error.errno})",
        fix="Stop this process, check the disk, and restart; no acknowledged data is lost by that",
    )


def indefinite_error(path: str, cause: OSError, error: OSError) -> IndefinitePutError:
    """The outcome of a failed link is unknown: the lookup of the name failed, too."""
    return IndefinitePutError(
        "PUT_INDEFINITE",
        f"{path}: link failed ({cause.strerror}), and the lookup of the name, too ({error.strerror})",
        fix="Repeat the same put",
    )


# --- durable names -----------------------------------------------------------------------------------
#
# Names that survive a power cut: directories of a local store, created and synced.
#
# A file is durable when its bytes are, its name in its directory, and the name of every directory up to the
# root. A directory's name is synced once, and again only if it may be another directory: this process has
# just created it; its inode differs; or its parent's modification time does, because an entry was created or
# removed there. Inode numbers alone are not enough: ext4 reuses those of removed directories. The time alone
# is not, either: it has a resolution of some milliseconds.
#
# Invariants:
#     - only a directory that this process has synced counts as durable: another process may have created an
#       existing one a moment ago, without a sync yet;
#     - it counts from when the sync of its parent has returned;
#     - only a failed fsync is fatal. A directory that cannot be opened (too many open files, or it was swept)
#       was not synced: the caller must not rely on it, and nothing else is in doubt;
#     - a removed root is never created again.
# Concurrency: any thread. The memory only saves fsyncs; no open files are kept.
# After a crash: a new process syncs all directories once.


DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# The state of a directory when its name was synced: its inode, and its parent's modification time.
_Seen = tuple[int, int]


class DurableNames:
    """The directories below one root.

    Args:
        poison: called after a failed fsync, when durability is unknown.
    """

    def __init__(self, root: str, poison: Callable[[FatalStorageError], None]) -> None:
        self._root = root
        self._poison = poison
        self._durable: dict[str, _Seen] = {}

    def make_parents(self, path: str) -> None:
        """Create the parent directories of `path`."""
        parent = os.path.dirname(path)
        try:
            if not os.path.isdir(parent):
                if not os.path.isdir(self._root):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                try:
                    os.makedirs(parent, exist_ok=True)
                except FileNotFoundError:  # a sweep has removed a directory that was just made
                    os.makedirs(parent, exist_ok=True)
                self._durable.clear()
        except OSError as error:
            raise storage_error("create the directory", parent, error) from error

    def sync(self, directory: str) -> None:
        """Make the names in `directory` durable, and the directory's own, up to the root.

        Raises: FatalStorageError, an fsync failed; another StorageError, the fsync could not be tried.
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
        """Read before the directory is synced, so that later changes show."""
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
    """True if a file system has no fsync because it is read-only by nature (squashfs, erofs, iso9660).

    EROFS does not prove it: ext4 returns it after a fault, when it has stopped writing and lost the data that
    was not written back.
    """
    return error.errno == errno.EINVAL and bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def create_root(root: Path) -> None:
    """Create a root directory, durably; no error if it exists."""
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


# --- local files -------------------------------------------------------------------------------------


# After this many bytes a first fsync runs concurrently, so that the one before a commit finds little left to
# do. Measured with 480 MB at 6 ms of computing per 4 MB, interleaved: 0.87 to 0.95 s instead of 1.07 to
# 1.20 s until all is durable. sync_file_range halves the speed: it waits for the disk's queue.
EARLY_SYNC_BYTES = 32 << 20
PAGE_BYTES = 4096  # one call always reads this much
_MAX_VECTORS = 512  # Linux takes 1024; half leaves room for other systems


def open_regular(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, and nothing else; return the descriptor.

    Users who may write to a directory of the root could put a link there that leads out of it, or a FIFO,
    which would block the open.

    Raises: OSError.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, "not a regular file", path)
    return fd


def read_page(path: str, size: int) -> bytes:
    """Read a file's first PAGE_BYTES with half the work of a LocalReadFile; each publish needs it."""
    try:
        fd = open_regular(path, os.O_RDONLY)
        try:
            return os.pread(fd, size, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error("read", path, error) from error


def write_all(fd: int, chunks: list[memoryview], position: int) -> int:
    """Write all chunks (pwritev); return the number of bytes."""
    pending = [chunk for chunk in chunks if chunk.nbytes]
    start = position
    while pending:
        written = os.pwritev(fd, torn("file.write.middle", pending[:_MAX_VECTORS]), position)
        position += written
        failpoint("file.write.middle")
        done = 0
        while done < len(pending) and written >= pending[done].nbytes:
            written -= pending[done].nbytes
            done += 1
        del pending[:done]
        if pending and written:
            pending[0] = pending[0][written:]
    return position - start


class LocalAppendFile(Closing):
    """See AppendFile. Created by LocalStore.append_file only."""

    def __init__(
        self,
        name: str,
        path: str,
        fd: int,
        *,
        may_shrink: bool,
        sync_names: Callable[[], None],
        poison_store: Callable[[FatalStorageError], None],
    ) -> None:
        self._name = name
        self._path = path
        self._fd = fd
        self._may_shrink = may_shrink
        self._poison_store = poison_store
        self._pid = os.getpid()
        self._position = 0
        self._early_position = 0
        self._early_sync: threading.Thread | None = None
        self._sync_names: Callable[[], None] | None = sync_names
        self._broken: StorageError | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def position(self) -> int:
        return self._position

    @property
    def is_removed(self) -> bool:
        # A copy by hard links keeps the count up; then the removal shows when the bytes are published.
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def write(self, *chunks: BytesLike) -> int:
        self._refuse_if_unusable()
        start = self._position
        views = [memoryview(chunk).cast("B") for chunk in chunks]
        try:
            self._position += write_all(self._fd, views, start)
        except OSError as error:
            raise self._cut_back(start, error) from error
        if self._position - self._early_position >= EARLY_SYNC_BYTES:
            self._start_early_sync()
        return start

    def sync(self) -> None:
        self._join_early_sync()
        self._refuse_if_unusable()
        try:
            failpoint("file.sync")
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._fatal(error) from error
        if self._sync_names is not None:
            try:
                self._sync_names()
            except FatalStorageError as error:
                self._broken = error
                raise
            self._sync_names = None

    def close(self) -> None:
        self._join_early_sync()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _start_early_sync(self) -> None:
        if self._early_sync is not None and self._early_sync.is_alive():
            return
        self._early_position = self._position
        self._early_sync = threading.Thread(target=self._sync_early, name="sparklog-sync", daemon=True)
        self._early_sync.start()

    def _sync_early(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            # Linux reports a failed write-back once: the next fsync would succeed, without the data.
            self._fatal(error)

    def _fatal(self, error: OSError) -> FatalStorageError:
        """The process must not continue with another file as if nothing had happened (invariant 5)."""
        self._broken = fatal = fatal_error("fsync", self._path, error)
        self._poison_store(fatal)
        return fatal

    def _join_early_sync(self) -> None:
        """Wait for the early fsync. In a forked child its thread is missing, and the file unusable."""
        if self._early_sync is not None and self._pid == os.getpid():
            self._early_sync.join()
        self._early_sync = None

    def _cut_back(self, start: int, error: OSError) -> StorageError:
        if not self._may_shrink:
            torn = storage_error("write", self._path, error)
            self._broken = self._broken or torn
            return torn
        try:
            os.ftruncate(self._fd, start)
        except OSError as second:
            broken = storage_error("truncate after a failed write", self._path, second)
            self._broken = self._broken or broken  # an early fsync that has failed since is worse
            return broken
        return storage_error("write", self._path, error)

    def _refuse_if_unusable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._fd < 0:
            raise StorageError(
                "FILE_CLOSED", f"{self._path}: the file is closed", fix="Open a new append file"
            )
        if self._pid != os.getpid():
            raise StorageError(
                "FILE_FORKED",
                f"{self._path}: opened by process {self._pid}, used by its child {os.getpid()}",
                fix="Open a new append file after the fork; two writers would overwrite each other",
            )

    def __del__(self) -> None:
        self.close()


class LocalReadFile(Closing):
    """See ReadFile. Reads carry their position (pread), so threads and forks may share it."""

    def __init__(self, name: str, path: str, fd: int) -> None:
        self._name = name
        self._path = path
        self._fd = fd
        self._size = os.fstat(fd).st_size

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._size

    def will_need(self, position: int, size: int) -> None:
        """No-op: the kernel reads ahead by itself."""

    @property
    def descriptor(self) -> int:
        self._refuse_if_closed()
        return self._fd

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        # The size on disk bounds the allocation, whatever size the caller requests.
        wanted = max(0, self._size - position)
        buffer = bytearray(wanted if size is None else min(size, wanted))
        count = self.read_into(memoryview(buffer), position)
        return bytes(buffer[:count]) if count < len(buffer) else bytes(buffer)

    def read_into(self, buffer: memoryview, position: int) -> int:
        self._refuse_if_closed()
        view = buffer.cast("B")
        done = 0
        try:
            while done < view.nbytes:
                count = os.preadv(self._fd, [view[done:]], position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        return done

    def map(self) -> memoryview:
        self._refuse_if_closed()
        if self._size == 0:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(self._fd, self._size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise storage_error("map", self._path, error) from error

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _refuse_if_closed(self) -> None:
        if self._fd < 0:
            raise StorageError("FILE_CLOSED", f"{self._path}: the file is closed", fix="Open it again")

    def __del__(self) -> None:
        self.close()


# --- holding -----------------------------------------------------------------------------------------
#
# Locks: on a file, for the life of a process, with a note that identifies the process; and on a directory,
# for the duration of one operation.
#
# Advisory, for processes of one machine; correctness must not depend on them.
#
# Concurrency: a forked child has a copy of the descriptor; the lock is released explicitly.
# After a crash: the kernel has released it; the file stays, without meaning.


_MAX_NOTE_BYTES = 4096


def hold_file(path: str, note: bytes, *, is_local: bool = False) -> Hold:
    """Lock a file, which is created if it is missing.

    Args:
        is_local: the file system belongs to this machine alone, so that the lock is proof.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symbolic link: never write to its target
            raise storage_error("lock", path, error) from None
        return Hold()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = b""
        with contextlib.suppress(OSError):
            holder = os.pread(descriptor, _MAX_NOTE_BYTES, 0)
        os.close(descriptor)
        return Hold(holder=holder)
    except OSError:  # a file system without locks
        os.close(descriptor)
        return Hold()
    before = b""
    with contextlib.suppress(OSError):
        before = os.pread(descriptor, _MAX_NOTE_BYTES, 0)

    def write(data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, data, 0)

    write(note)

    def release() -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    return Hold(release=release, is_proof=is_local, before=before, write=write)


def machine_directory() -> Path | None:
    """Return a directory of this machine and this user alone, for local state, or None."""
    path = Path(tempfile.gettempdir()) / f"sparklog-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        found = path.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return path if is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


class DirectoryLock:
    """See AdvisoryLock. A lock on a descriptor, which is recorded before it is locked, so that `release`
    finds it wherever `acquire` is interrupted.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: list[int] = []  # from `acquire` to `release`

    def acquire(self) -> bool:
        self.release()
        try:
            # Opened and recorded between two instructions, where no signal is handled.
            self._descriptor[:] = map(os.open, (self._path,), (DIRECTORY_FLAGS,))
        except OSError:  # the directory is missing: there are no competitors
            return True
        try:
            fcntl.flock(self._descriptor[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            return False
        except OSError:  # a file system without locks
            self._close()
        return True

    def release(self) -> None:
        if self._descriptor:
            # Unlock explicitly: a child forked since has a copy of the descriptor, which keeps the lock after
            # ours is closed. If the file system is unavailable, the others time out (metadata/log.py); the
            # commit is not affected.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor[0], fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor.pop())

    def __del__(self) -> None:
        """In a forked child that drops its parent's lock: close the copy only."""
        if self._descriptor:
            self._close()
