"""Files on a local file system: one exclusive appender, any number of readers.

Invariants:
    - bytes are written at explicit positions, so a failed or short write never shifts later ones;
    - `position` moves only over bytes that were written whole: after a failed write the file is cut back
      to it, or refuses further use;
    - a file that readers map is never cut back: who touches a mapped page that is gone is killed (SIGBUS);
    - after a failed fsync the file refuses further use for ever (the kernel has dropped the pages and a
      second fsync would report success).
Concurrency: an append file belongs to one thread at a time and to the process that created it: after a
fork the child's copy refuses to write, since both would write to the same positions.
After a crash: bytes past the last sync may be there, torn, or not; nothing refers to them.
"""

import errno
import mmap
import os
import stat
import threading
from collections.abc import Callable

from sparklog.closing import Closing
from sparklog.errors import FatalStorageError, StorageError
from sparklog.failpoints import failpoint, torn
from sparklog.storage.base import BytesLike
from sparklog.storage.os_errors import fatal_error, storage_error

# After so many bytes a first fsync runs beside the writing, so that the one before a commit finds little
# left to do. Measured with 480 MB at 6 ms of computing per 4 MB, interleaved: 0.87 to 0.95 s instead of
# 1.07 to 1.20 s until all is durable. sync_file_range halves the speed: it waits for the disk's queue.
EARLY_SYNC_BYTES = 32 << 20
PAGE_BYTES = 4096  # the most that one call surely reads
_MAX_VECTORS = 512  # Linux takes 1024; half leaves room for other systems


def open_regular(path: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file, and of nothing else.

    Whoever may write to a directory of the root could put a link there that leads out of it, or a FIFO, whose
    opening waits for ever.

    Raises: OSError.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, "not a regular file", path)
    return fd


def read_page(path: str, size: int) -> bytes:
    """Of a file's first PAGE_BYTES, with half the work of a LocalReadFile: each publish asks for them."""
    try:
        fd = open_regular(path, os.O_RDONLY)
        try:
            return os.pread(fd, size, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error("read", path, error) from error


def write_all(fd: int, chunks: list[memoryview], position: int) -> int:
    """Pwritev until everything is written; returns the number of bytes."""
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
    """See AppendFile. Made by LocalStore.append_file only."""

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
        # A copy by hard links keeps the count up: then it is seen where the bytes are published.
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
            # Linux reports a failed write-back once: the next fsync would succeed, and the data be gone.
            self._fatal(error)

    def _fatal(self, error: OSError) -> FatalStorageError:
        """The process must not go on with another file as if nothing had happened (invariant 5)."""
        self._broken = fatal = fatal_error("fsync", self._path, error)
        self._poison_store(fatal)
        return fatal

    def _join_early_sync(self) -> None:
        """Wait for it; in a forked child the thread does not exist, and the file may not be used."""
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
            broken = storage_error("cut back after a failed write", self._path, second)
            self._broken = self._broken or broken  # an early fsync may have failed meanwhile: that is worse
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
        """The kernel reads ahead by itself."""

    @property
    def descriptor(self) -> int:
        self._refuse_if_closed()
        return self._fd

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        # The size on disk bounds the allocation, whatever the caller was told to ask for.
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
