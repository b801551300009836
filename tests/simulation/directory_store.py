"""A directory in memory, with the steps of a real one, and power cuts.

What survives a power cut: the names of a directory as of its last sync, and the bytes of a file as of its
last sync; of everything later, any part. What survives SIGKILL: everything, as with a page cache.

Put-if-absent is made of the steps of storage/local.py: temporary file, fsync, guard, link, directory
fsync. Others can act between any two of them.
Concurrency: processes of one world; each has its own DirectoryStore over one Disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from sparklog.errors import (
    AlreadyExistsError,
    FatalStorageError,
    NotFoundError,
    RetriableError,
    StorageError,
)
from sparklog.metadata.documents.properties import commit_of
from sparklog.storage import BytesLike, StoredFile
from sparklog.storage.base import (
    UNFINISHED_MS,
    Hold,
    OnFailed,
    StoreTraits,
    WholeFiles,
    first_left_out,
    raise_it,
)
from sparklog.storage.memory import MemoryReadFile
from tests.simulation.world import START_MS, SimProcess, World

_TRAITS = StoreTraits()
_PORTION = 3  # of a walk
_CALL_US, _FSYNC_US, _SLOW_FSYNC_US = 20, 300, 20_000


@dataclass(slots=True, eq=False)
class SimFile:
    """An inode."""

    modified_us: int
    content: bytearray = field(default_factory=bytearray)
    synced: int = 0
    has_two_links: bool = False  # under its temporary name as well: its put is not done, or never was


@dataclass(slots=True, eq=False)
class TemporaryFile:
    """What a put links, unless somebody has removed it."""

    exists: bool = True
    file: SimFile | None = None

    def unlink(self) -> None:
        self.exists = False
        if self.file is not None:
            self.file.has_two_links = False


def directory_of(name: str) -> str:
    return name.rpartition("/")[0]


def _nothing(_: SimProcess) -> None:
    """Nobody waits for it."""


class Disk:
    """What all processes share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, SimFile] = {}
        self._durable: dict[str, SimFile] = {}
        self._unsynced: dict[str, set[str]] = {}  # directory -> names that changed since its last sync
        self.temporary: dict[str, list[TemporaryFile]] = {}  # puts under way, by name
        self.locks: dict[str, SimLock] = {}
        self.stalled_until_us = 0  # the disk is busy: an fsync takes until then
        # Called once, when a commit gets its name, with the process that made it.
        self.on_commit: Callable[[SimProcess], None] = _nothing
        self.on_put: Callable[[SimProcess], None] | None = None  # called once, in the midst of a commit's put
        self.violations: list[str] = []
        self.commits: dict[str, bytes] = {}  # every commit that was ever durable

    def link(self, name: str, file: SimFile, process: SimProcess) -> None:
        self.files[name] = file
        self._unsynced.setdefault(directory_of(name), set()).add(name)
        if commit_of(name) is not None:
            self.on_commit, act = _nothing, self.on_commit
            act(process)

    def unlink(self, name: str) -> None:
        if self.files.pop(name, None) is not None:
            self._unsynced.setdefault(directory_of(name), set()).add(name)

    def sync_directory(self, directory: str) -> None:
        for name in self._unsynced.pop(directory, ()):
            file = self.files.get(name)
            if file is None:
                self._durable.pop(name, None)
            else:
                self._durable[name] = file
                if commit_of(name) is not None:
                    content = self.commits.setdefault(name, bytes(file.content))
                    if content != file.content:
                        self.violations.append(f"{name}: another commit took a number that had been used")

    def damage(self, name: str, content: bytearray) -> None:
        """The disk gives back something else."""
        self.files[name].content[:] = content
        self.files[name].synced = len(content)

    def heal(self) -> None:
        """Nobody waits for a put any more, and the disk is idle."""
        self.on_commit, self.on_put, self.stalled_until_us = _nothing, None, 0

    def cut_power(self) -> None:
        """All processes are dead by now. Of what was not synced, the dice decide."""
        dice = self.world.dice
        for names in self._unsynced.values():
            for name in sorted(names):
                if dice.random() < 0.5:
                    continue  # this change had reached the disk
                old = self._durable.get(name)
                if old is None:
                    self.files.pop(name, None)
                else:
                    self.files[name] = old
        self._unsynced.clear()
        for file in {id(file): file for file in self.files.values()}.values():
            kept = dice.randint(file.synced, len(file.content))
            torn = len(file.content) - kept
            del file.content[kept:]
            if torn and dice.random() < 0.5:
                file.content += bytes(torn)  # the length had reached the disk, the bytes had not
            file.synced = len(file.content)
        self._durable = dict(self.files)
        for name, file in self.files.items():
            if commit_of(name) is not None:
                self.commits.setdefault(name, bytes(file.content))
        self.temporary.clear()
        self.locks.clear()


class DirectoryStore(WholeFiles):
    """See Store."""

    def __init__(self, disk: Disk, process: SimProcess) -> None:
        self.url = "sim:directory"
        self.traits = _TRAITS
        self._disk = disk
        self._world = disk.world
        self._process = process
        self._poison: FatalStorageError | None = None

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        self._refuse_if_poisoned()
        if self.exists(name):
            raise self._taken(name)
        self._maybe_full(name)
        temporary = TemporaryFile()
        self._disk.temporary.setdefault(name, []).append(temporary)
        try:
            self._fsync(name)
            if guard is not None and not guard():
                raise RetriableError("PUT_REFUSED", f"{name}: overtaken while writing", fix="Try again")
            if self._disk.on_put is not None and commit_of(name) is not None:
                act, self._disk.on_put = self._disk.on_put, None
                act(self._process)
            self._step()
            if not temporary.exists:
                raise RetriableError("PUT_ABORTED", f"{name}: stopped by a cleaner", fix="Try again")
            if name in self._disk.files:
                raise self._taken(name)
            file = SimFile(self._world.now_us, bytearray(data), len(data))
            file.has_two_links, temporary.file = True, file
            self._disk.link(name, file, self._process)
            self._fsync(name)
            self._disk.sync_directory(directory_of(name))
            file.has_two_links = False
        finally:
            under_way = self._disk.temporary.get(name, [])
            is_done = temporary.file is None or not temporary.file.has_two_links
            if not self._process.dead and is_done and temporary in under_way:
                under_way.remove(temporary)

    def abort_puts(self, name: str) -> None:
        self._step()
        for temporary in self._disk.temporary.pop(name, ()):
            temporary.unlink()

    def hold(self, name: str, note: bytes) -> Hold:
        return Hold()

    def space(self) -> None:
        return None

    def put_lifetime_ms(self) -> int:
        return 0

    def storage_now_ms(self, here_ms: int) -> int:
        del here_ms
        return START_MS + self._world.now_us // 1000

    def advisory_lock(self, prefix: str) -> "SimLock":
        return SimLock(self, self._process, prefix)

    def acquire_lock(self, lock: "SimLock") -> bool:
        self._step()
        holder = self._disk.locks.get(lock.prefix)
        if holder is not None and not holder.process.dead:
            return False
        self._disk.locks[lock.prefix] = lock
        return True

    def release_lock(self, lock: "SimLock") -> None:
        if self._disk.locks.get(lock.prefix) is lock:
            del self._disk.locks[lock.prefix]

    def sync_directory(self, prefix: str) -> None:
        self._refuse_if_poisoned()
        self._fsync(prefix)
        self._disk.sync_directory(prefix)

    def sync_name(self, name: str) -> None:
        self._refuse_if_poisoned()
        self._step()
        file = self._disk.files.get(name)
        if file is None or file.has_two_links:
            self.sync_directory(directory_of(name))

    def exists(self, name: str) -> bool:
        self._step()
        return name in self._disk.files

    def top_names(self, limit: int) -> list[str]:
        return sorted({"".join(name.partition("/")[:2]) for name in self._disk.files})[:limit]

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        del within_ms
        self._step()
        start = f"{prefix}/" if prefix else ""
        return sorted(
            StoredFile(name, len(file.content), START_MS + file.modified_us // 1000)
            for name, file in self._disk.files.items()
            if name.startswith(start)
            and (recursive or "/" not in name[len(start) :])
            and (start_after is None or name > start_after)
        )

    def walk(
        self,
        enters: Callable[[str], bool],
        failed: OnFailed = raise_it,
    ) -> Iterator[Sequence[StoredFile]]:
        """In portions, so that others act between them."""
        found = [file for file in self.list("", recursive=True) if first_left_out(file.name, enters) is None]
        for start in range(0, len(found), _PORTION):
            self._step()
            yield [file for file in found[start : start + _PORTION] if file.name in self._disk.files]

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def remove_directory(self, prefix: str) -> bool:
        return False

    def delete(self, name: str) -> None:
        self._step()
        self._disk.unlink(name)

    def delete_directory(self, prefix: str) -> None:
        for name in sorted(name for name in self._disk.files if name.startswith(f"{prefix}/")):
            self.delete(name)

    def append_file(self, name: str, *, mapped: bool = False) -> "DirectoryAppendFile":
        self._refuse_if_poisoned()
        self._step()
        if name in self._disk.files:
            raise self._taken(name)
        file = SimFile(self._world.now_us)
        self._disk.link(name, file, self._process)
        return DirectoryAppendFile(self, name, file)

    def put_hint(self, name: str, data: BytesLike) -> None:
        self._step()
        self._disk.link(name, SimFile(self._world.now_us, bytearray(data)), self._process)

    def open_read(self, name: str) -> MemoryReadFile:
        self._step()
        file = self._disk.files.get(name)
        if file is None:
            raise NotFoundError("FILE_NOT_FOUND", f"{name}: not found", fix="Look again")
        return MemoryReadFile(name, bytes(file.content))

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        """All of them, whatever their age: running puts must survive even that."""
        del older_than_ms, unfinished_older_than_ms, dry_run
        removed = 0
        for directory in sorted({directory_of(name) for name in self._disk.temporary}):
            self._disk.sync_directory(directory)
        for name in sorted(self._disk.temporary):
            self.abort_puts(name)
            removed += 1
        return removed

    # --- steps and faults ----------------------------------------------------------------------------

    def _step(self) -> None:
        self._process.wait_us(self._world.dice.randrange(_CALL_US))

    def _fsync(self, name: str) -> None:
        self._process.wait_us(self._world.dice.randrange(_FSYNC_US))
        if self._world.chance(0.02, "slow fsync"):
            self._process.wait_us(_SLOW_FSYNC_US)
        if self._world.now_us < self._disk.stalled_until_us:
            self._process.wait_us(self._disk.stalled_until_us - self._world.now_us)
        if self._world.chance(0.0005, "fsync failed"):
            self._poison = FatalStorageError("DURABILITY_UNKNOWN", f"{name}: fsync: EIO", fix="Stop")
            raise self._poison

    def _maybe_full(self, name: str) -> None:
        if self._world.chance(0.002, "disk full"):
            raise StorageError("STORAGE_FULL", f"{name}: no space left", fix="Free space")

    def _refuse_if_poisoned(self) -> None:
        self._process.refuse_if_dead()
        if self._poison is not None:
            raise self._poison

    def _taken(self, name: str) -> AlreadyExistsError:
        return AlreadyExistsError("FILE_EXISTS", f"{name}: exists", fix="Use another name")


@dataclass(frozen=True, eq=False)
class SimLock:
    """One competitor for the lock of a directory."""

    store: DirectoryStore
    process: SimProcess
    prefix: str

    def acquire(self) -> bool:
        return self.store.acquire_lock(self)

    def release(self) -> None:
        self.store.release_lock(self)


class DirectoryAppendFile:
    """See AppendFile."""

    def __init__(self, store: DirectoryStore, name: str, file: SimFile) -> None:
        self.name = name
        self._store = store
        self._file = file

    @property
    def position(self) -> int:
        return len(self._file.content)

    @property
    def is_removed(self) -> bool:
        return self._store._disk.files.get(self.name) is not self._file

    def write(self, *chunks: BytesLike) -> int:
        self._store._refuse_if_poisoned()
        self._store._maybe_full(self.name)
        start = self.position
        self._file.content += b"".join(chunks)
        self._file.modified_us = self._store._world.now_us
        return start

    def sync(self) -> None:
        self._store._refuse_if_poisoned()
        end = self.position
        self._store._fsync(self.name)
        self.keep_bytes(end)
        self._store._disk.sync_directory(directory_of(self.name))

    def keep_bytes(self, end: int) -> None:
        """What fsync does: the disk has everything up to there."""
        self._file.synced = max(self._file.synced, end)

    def close(self) -> None:
        """Nothing is kept open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
