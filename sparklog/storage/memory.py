"""A store in this process's memory, for tests: the same semantics, with faults on demand.

Invariants: as base.py; one lock makes every operation atomic, so abort_puts has nothing to abort.
With the traits of an object store it behaves as one: a file exists once its sync has finished it, and
grows no more, and there are no locks. Then each hook except "write" stands for a request.
Faults: `hook(operation, name)` is called before every operation, and once more as "<operation>:done" after a
put; an exception of the hook goes to the caller. crash() drops everything that was not synced.
Concurrency: any thread. Not shared with other processes; after a fork each has its own copy.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

from sparklog.clock import Clock, SystemClock
from sparklog.closing import Closing
from sparklog.errors import AlreadyExistsError, NotFoundError, RetriableError, StorageError
from sparklog.storage.base import (
    UNFINISHED_MS,
    AdvisoryLock,
    BytesLike,
    Hold,
    OnFailed,
    StoredFile,
    StoreTraits,
    WholeFiles,
    first_left_out,
    raise_it,
    validate_name,
    validate_prefix,
)

_PORTION = 3  # of a walk: small, so that tests have several


class _File:
    def __init__(self, modified_ms: int, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.modified_ms = modified_ms
        self.synced = 0
        self.durable = False


class MemoryStore(WholeFiles):
    """See Store."""

    def __init__(
        self,
        name: str = "",
        *,
        clock: Clock | None = None,
        traits: StoreTraits | None = None,
        put_lifetime_ms: int | None = 0,
    ) -> None:
        self.url = f"memory://{name}"
        self._put_lifetime_ms = put_lifetime_ms
        self.traits = traits if traits is not None else StoreTraits()
        self.hook: Callable[[str, str], None] | None = None
        self._clock = clock if clock is not None else SystemClock()
        self._files: dict[str, _File] = {}
        self._held: dict[str, AdvisoryLock] = {}
        self._lock = threading.RLock()

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        self._call("put_if_absent", validate_name(name))
        with self._lock:
            if name in self._files:
                raise self._taken(name)
            if guard is not None and not guard():
                raise RetriableError(
                    "PUT_REFUSED", f"{self.url}/{name}: overtaken while writing", fix="Refresh and try again"
                )
            file = _File(self._clock.now_ms(), data)
            file.synced, file.durable = len(data), True
            self._files[name] = file
        self._call("put_if_absent:done", name)

    def abort_puts(self, name: str) -> None:
        self._call("abort_puts", validate_name(name))

    def hold(self, name: str, note: bytes) -> Hold:  # noqa: ARG002 - no locks
        return Hold()

    def space(self) -> None:
        return None

    def put_lifetime_ms(self) -> int | None:
        return self._put_lifetime_ms

    def storage_now_ms(self, here_ms: int) -> int:
        return here_ms

    def advisory_lock(self, prefix: str) -> AdvisoryLock:
        return _MemoryLock(self, validate_prefix(prefix))

    def acquire_lock(self, prefix: str, lock: AdvisoryLock) -> bool:
        """Return true if `lock` now holds the advisory lock on `prefix`."""
        self._call("acquire_lock", prefix)
        with self._lock:
            # Object stores have no locks.
            return self.traits.is_remote or self._held.setdefault(prefix, lock) is lock

    def release_lock(self, prefix: str, lock: AdvisoryLock) -> None:
        """No-op unless `lock` holds it."""
        with self._lock:
            if self._held.get(prefix) is lock:
                del self._held[prefix]

    def sync_directory(self, prefix: str) -> None:
        self._call("sync_directory", validate_prefix(prefix))

    def sync_name(self, name: str) -> None:
        self._call("sync_name", validate_name(name))

    def exists(self, name: str) -> bool:
        self._call("exists", validate_name(name))
        return name in self._files

    def top_names(self, limit: int) -> list[str]:
        self._call("list", "")
        with self._lock:
            tops = {first + slash for first, slash, _ in (name.partition("/") for name in self._files)}
        return sorted(tops)[:limit]

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        del within_ms
        prefix = validate_prefix(prefix)
        self._call("list", prefix)
        start = f"{prefix}/" if prefix else ""
        with self._lock:
            return sorted(
                StoredFile(name, len(file.content), file.modified_ms)
                for name, file in self._files.items()
                if name.startswith(start)
                and (recursive or "/" not in name[len(start) :])
                and (start_after is None or name > start_after)
            )

    def walk(
        self,
        enters: Callable[[str], bool],
        failed: OnFailed = raise_it,  # noqa: ARG002 - no directories
    ) -> Iterator[Sequence[StoredFile]]:
        found = self.list("", recursive=True)
        entered = [stored for stored in found if first_left_out(stored.name, enters) is None]
        for start in range(0, len(entered), _PORTION):
            yield entered[start : start + _PORTION]

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def remove_directory(self, prefix: str) -> bool:
        validate_name(prefix)
        return False

    def delete(self, name: str) -> None:
        self._call("delete", validate_name(name))
        with self._lock:
            self._files.pop(name, None)

    def delete_directory(self, prefix: str) -> None:
        prefix = validate_name(prefix)
        self._call("delete_directory", prefix)
        with self._lock:
            for name in [name for name in self._files if name.startswith(f"{prefix}/")]:
                del self._files[name]

    def append_file(self, name: str, *, mapped: bool = False) -> "MemoryAppendFile":  # noqa: ARG002 - nothing to map
        if not self.traits.appends_after_sync:
            return MemoryAppendFile(self, validate_name(name), _File(self._clock.now_ms()))
        self._call("append_file", validate_name(name))
        with self._lock:
            if name in self._files:
                raise self._taken(name)
            self._files[name] = file = _File(self._clock.now_ms())
        return MemoryAppendFile(self, name, file)

    def put_hint(self, name: str, data: BytesLike) -> None:
        self._call("put_hint", validate_name(name))
        with self._lock:
            self._files[name] = _File(self._clock.now_ms(), bytes(data))

    def open_read(self, name: str) -> "MemoryReadFile":
        self._call("open_read", validate_name(name))
        with self._lock:
            file = self._files.get(name)
            if file is None:
                raise NotFoundError(
                    "FILE_NOT_FOUND",
                    f"{self.url}/{name}: not found",
                    fix="Check the name, and which process deletes files",
                )
            return MemoryReadFile(name, bytes(file.content))

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        del older_than_ms, unfinished_older_than_ms, dry_run
        return 0

    def crash(self) -> None:
        """Keep what a power cut leaves in the worst case: synced bytes of files with synced names."""
        with self._lock:
            for name, file in list(self._files.items()):
                if file.durable:
                    del file.content[file.synced :]
                else:
                    del self._files[name]

    def holds(self, name: str, file: _File) -> bool:
        """True if this file still has its name."""
        return self._files.get(name) is file

    def _finish(self, name: str, file: _File) -> None:
        with self._lock:
            if name in self._files:
                raise self._taken(name)
            self._files[name] = file

    def _call(self, operation: str, name: str) -> None:
        if self.hook is not None:
            self.hook(operation, name)

    def _taken(self, name: str) -> AlreadyExistsError:
        return AlreadyExistsError(
            "FILE_EXISTS", f"{self.url}/{name}: exists, expected no such file", fix="Use another name"
        )


class _MemoryLock:
    def __init__(self, store: MemoryStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def acquire(self) -> bool:
        return self._store.acquire_lock(self._prefix, self)

    def release(self) -> None:
        self._store.release_lock(self._prefix, self)


class MemoryAppendFile(Closing):
    """See AppendFile."""

    def __init__(self, store: MemoryStore, name: str, file: _File) -> None:
        self.name = name
        self._store = store
        self._file = file
        self._closed = False

    @property
    def position(self) -> int:
        return len(self._file.content)

    @property
    def is_removed(self) -> bool:
        return self._store.traits.appends_after_sync and not self._store.holds(self.name, self._file)

    def write(self, *chunks: BytesLike) -> int:
        self._refuse_if_closed()
        self._store._call("write", self.name)
        start = self.position
        for chunk in chunks:
            self._file.content += memoryview(chunk).cast("B")
        return start

    def sync(self) -> None:
        self._refuse_if_closed()
        ends = self._closed = not self._store.traits.appends_after_sync  # also if this sync fails
        self._store._call("sync", self.name)
        self._file.synced, self._file.durable = self.position, True
        if ends:
            self._store._finish(self.name, self._file)

    def close(self) -> None:
        self._closed = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StorageError(
                "FILE_CLOSED", f"{self.name}: the file is closed", fix="Open a new append file"
            )


class MemoryReadFile(Closing):
    """See ReadFile."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.size = len(content)
        self._content: bytes | None = content

    @property
    def descriptor(self) -> None:
        return None

    def will_need(self, position: int, size: int) -> None:
        """No-op: the bytes are in memory."""

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        end = self.size if size is None else position + size
        return self._open_content()[position:end]

    def read_into(self, buffer: memoryview, position: int) -> int:
        view = buffer.cast("B")
        part = self._open_content()[position : position + view.nbytes]
        view[: len(part)] = part
        return len(part)

    def map(self) -> memoryview:
        return memoryview(self._open_content())

    def close(self) -> None:
        self._content = None

    def _open_content(self) -> bytes:
        if self._content is None:
            raise StorageError("FILE_CLOSED", f"{self.name}: the file is closed", fix="Open it again")
        return self._content
