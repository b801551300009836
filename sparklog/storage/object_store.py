"""A store in a bucket of any object store: the same operations over one client (object_client.py).

The operations:
    put_if_absent   one conditional request, one attempt. Taken, or without a definite answer:
                    IndefinitePutError, and the caller puts the same bytes to the same key again
    append_file     buffers bytes; sync() finishes the object (one put, or an upload in parts)
    sync_directory  no-op: an acknowledged put is durable with its name
    advisory_lock   always acquired: there are no locks
    abort_puts      no-op: a put in flight cannot be stopped. put_lifetime_ms bounds how late it may land
    sweep_temporary aborts old uploads of segments, and removes what probes left

Invariants: see base.py. The first conditional put of a process is preceded by a probe (object_probe.py).
Not here: one store's protocol: s3.py, gcs.py, azure.py.
Concurrency: any number of threads; after a fork the child opens new connections.
Sources: docs/design.md; ADR 0009 and 0036.
"""

import contextlib
import functools
import hashlib
import logging
import mmap
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from crc32c import crc32c

from sparklog.closing import Closing
from sparklog.errors import AlreadyExistsError, NotFoundError, StorageError
from sparklog.storage.base import (
    TEMPORARY_DIRECTORY,
    UNFINISHED_MS,
    BytesLike,
    Hold,
    NoLock,
    OnFailed,
    StoredFile,
    StoreTraits,
    first_left_out,
    raise_it,
    validate_name,
    validate_prefix,
)
from sparklog.storage.object_client import Listed, ObjectClient, Upload
from sparklog.storage.object_options import ObjectOptions
from sparklog.storage.object_probe import probe_put_if_absent

# --- append ------------------------------------------------------------------------------------------
#
# Writing an object in parts: one put if it is small, an upload in parts if not.
#
# Invariants:
#     - an object does not exist until sync() has finished it, and never changes afterwards;
#     - memory: the part being filled, the one before it, and a few in flight; each byte is copied once.
# Exclusive creation: a small object is put conditionally, a large one is completed with the same condition.
# Stores differ in the latter: AWS keeps it, SeaweedFS lets several win that complete at the same moment,
# others do not support it. So a large object is no put-if-absent; its name holds the writer's unique id,
# which only clones of a process share. A writer that finds its name taken compares: an answer may be lost.
# Concurrency: one user at a time; parts are sent by the client's threads.
# After a crash: only the parts of an upload may exist; see sweep_temporary.


PART_BYTES = 8 << 20


class ObjectAppendFile(Closing):
    """See AppendFile. Finished by its first sync."""

    def __init__(self, client: ObjectClient, name: str, key: str, url: str) -> None:
        self._client = client
        self._name, self._key, self._url = name, key, url
        self._buffer = bytearray()
        self._full: bytearray | None = None  # kept until another is full: less than two parts make one PUT
        self._position = 0
        self._upload: Upload | None = None
        self._parts: list[Future[None]] = []
        self._parts_crc = 0
        self._state = "open"
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self._name

    @property
    def position(self) -> int:
        return self._position

    @property
    def is_removed(self) -> bool:
        return False  # it does not exist before it is finished, and is not touched afterwards

    def write(self, *chunks: BytesLike) -> int:
        self._refuse_unless_open()
        start = self._position
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            self._position += len(rest)
            while len(rest):
                room = PART_BYTES - len(self._buffer)
                self._buffer += rest[:room]
                rest = rest[room:]
                if len(self._buffer) == PART_BYTES:
                    self._send_full()
                    self._full, self._buffer = self._buffer, bytearray()
        return start

    def sync(self) -> None:
        if self._state == "finished":
            return
        self._refuse_unless_open()
        self._state = "failed"
        if self._upload is None:
            self._put()
        else:
            self._complete(self._upload)
        self._state = "finished"
        self._forget()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        if self._state in {"open", "failed"} and self._upload is not None:
            for part in self._parts:
                part.cancel()
            with contextlib.suppress(StorageError):
                self._client.abort_upload(self._upload)
        self._state = "closed"
        self._forget()

    def _put(self) -> None:
        """Put the object until the outcome is known. An existing object with the same bytes is ours."""
        data = b"".join((self._full or b"", self._buffer))

        def attempt() -> None:
            try:
                self._client.put_once(self._url, self._key, data, None)
            except AlreadyExistsError:
                # Also after a first attempt: a network may deliver a request twice, and return the second
                # answer.
                if self._client.get(self._url, self._key, 0, None)[0] != data:
                    raise

        self._client.resolve(attempt)

    def _complete(self, upload: Upload) -> None:
        if self._buffer:
            self._send_full()
            self._full = self._buffer
        self._send_full(is_last=True)
        for part in self._parts:
            part.result()
        try:
            self._client.complete_upload(upload)
        except (AlreadyExistsError, NotFoundError):
            # An attempt whose answer was lost has completed it; or the upload was swept, and no object
            # exists; or the object is a clone's.
            if not self._is_ours():
                raise

    def _is_ours(self) -> bool:
        """True if the object holds the written bytes. Large ones are read back in ranges."""
        position, crc = 0, 0
        while True:
            data, size = self._client.get(self._url, self._key, position, position + PART_BYTES)
            if size != self._position:
                return False
            position, crc = position + len(data), crc32c(data, crc)
            if position == size:
                return crc == self._parts_crc

    def _send_full(self, *, is_last: bool = False) -> None:
        if self._full is not None:
            self._send_part(self._full, is_last=is_last)
            self._full = None

    def _send_part(self, data: bytearray, *, is_last: bool) -> None:
        if self._upload is None:
            self._upload = self._client.begin_upload(self._url, self._key)
        self._parts_crc = crc32c(data, self._parts_crc)
        number, upload, client = len(self._parts) + 1, self._upload, self._client
        if number > client.parts_in_flight:
            self._parts[number - 1 - client.parts_in_flight].result()
        position = (number - 1) * PART_BYTES

        def send() -> None:
            client.put_part(upload, number, position, data, is_last=is_last)

        self._parts.append(client.submit(send))

    def _forget(self) -> None:
        self._full, self._buffer = None, bytearray()  # not cleared: a part in flight may refer to them
        self._parts.clear()

    def _refuse_unless_open(self) -> None:
        if self._pid != os.getpid():
            raise StorageError(
                "FILE_FORKED",
                f"{self._url}: opened by process {self._pid}, used by its child {os.getpid()}",
                fix="Open a new append file after the fork",
            )
        if self._state != "open":
            problem = {"finished": "finished by sync, and objects cannot grow"}.get(self._state, "closed")
            raise StorageError(
                "FILE_CLOSED", f"{self._url}: the file is {problem}", fix="Open a new append file"
            )


# --- cache -------------------------------------------------------------------------------------------
#
# A cache for small objects that are read repeatedly (indexes), on the local disk and memory-mapped.
#
# Invariants:
#     - only objects whose names are never reused are cached, so no entry is ever stale;
#     - entries are hints: a file truncated by a power cut does no harm;
#     - the directory belongs to this user alone (0700), or nothing is cached;
#     - about `limit_bytes` at most: the least recently used entry is evicted first.
# Concurrency: any thread and process; files appear whole, by rename. A mapping outlives its file.


_log = logging.getLogger(__name__)
# Freeing this much in one scan saves the next puts a scan of the directory.
_KEPT_SHARE = 0.75


class DiskCache:
    """A directory of files named after their content's identity."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._usable: bool | None = None
        self._written_bytes = 0

    def get(self, identity: str, fetch: Callable[[], bytes]) -> memoryview:
        """Return the object's bytes, mapped if cached; else fetch them, and cache them if possible."""
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
        """Evict the least recently used files, down to a share of the limit."""
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
                _log.info("nothing is cached: %s is not a directory of this user alone", self._directory)
        return self._usable


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


# --- read --------------------------------------------------------------------------------------------
#
# Reading an object by ranges: on demand, or prefetched in parallel.
#
# Invariants: memory is what will_need announced and was not read yet.
# Not here: how much to announce (log/reader.py).
# Concurrency: one user at a time; the client's threads fetch the ranges.


FETCH_BYTES = 4 << 20
# Derived files of segments, whose names are never reused: worth caching on the local disk.
_KEPT_SUFFIXES = (".index", ".timeindex")


class ObjectReadFile(Closing):
    """See ReadFile. Opening makes no request; the first response has the size."""

    def __init__(self, client: ObjectClient, name: str, key: str, url: str, cache: DiskCache | None) -> None:
        self._client = client
        self._name, self._key, self._url = name, key, url
        self._cache = cache
        self._size: int | None = None
        # (position, end, (bytes, size of the object)), ascending
        self._ahead: list[tuple[int, int, Future[tuple[bytes, int]]]] = []
        self._closed = False
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        if self._size is None:
            self._refuse_if_closed()
            # Not HEAD: its 404 does not distinguish a missing object from a missing bucket.
            self._size = self._client.get(self._url, self._key, 0, 1)[1]
        return self._size

    @property
    def descriptor(self) -> None:
        return None

    def will_need(self, position: int, size: int) -> None:
        self._refuse_if_closed()
        end = position + size
        for start, stop, _ in self._ahead:
            if start <= position < stop:
                position = stop
        while position < end:
            stop = min(position + FETCH_BYTES, end)
            self._ahead.append((position, stop, self._client.submit_ahead(self._fetcher(position, stop))))
            position = stop

    def read(self, position: int = 0, size: int | None = None) -> bytes:
        self._refuse_if_closed()
        if size is not None:
            if size <= 0:
                return b""
            ready = self._from_ahead(position, position + size)
            if ready is not None:
                return ready
        data, self._size = self._client.get(
            self._url, self._key, position, None if size is None else position + size
        )
        return data

    def read_into(self, buffer: memoryview, position: int) -> int:
        view = buffer.cast("B")
        data = self.read(position, view.nbytes)
        view[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        self._refuse_if_closed()
        if self._cache is None or not self._name.endswith(_KEPT_SUFFIXES):
            return memoryview(self.read())
        return self._cache.get(f"{self._client.identity}/{self._key}", self.read)

    def close(self) -> None:
        self._closed = True
        for _, _, future in self._ahead:
            future.cancel()
        self._ahead.clear()

    def _fetcher(self, start: int, stop: int) -> Any:
        return lambda: self._client.get(self._url, self._key, start, stop)

    def _from_ahead(self, position: int, end: int) -> bytes | None:
        """Return the bytes if they were announced; drop the ranges before them."""
        if self._pid != os.getpid():  # a forked child has none of the parent's threads
            self._ahead, self._pid = [], os.getpid()
        self._ahead = [ranged for ranged in self._ahead if ranged[1] > position]
        pieces: list[memoryview | bytes] = []
        at = position
        for start, stop, future in self._ahead:
            if start <= at < min(stop, end):
                data, self._size = future.result()
                pieces.append(memoryview(data)[at - start : end - start])
                at = min(stop, end)
                if start + len(data) < at:  # the object ends here
                    return b"".join(pieces)
        return b"".join(pieces) if at >= end else None

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StorageError("FILE_CLOSED", f"{self._url}: the file is closed", fix="Open it again")


# --- store ----------------------------------------------------------------------------------------------


# Parts of large objects, where a store keeps them as objects.
PARTS = f"{TEMPORARY_DIRECTORY}/part-"


class ObjectStore(ABC):
    """See Store."""

    def __init__(self, client: ObjectClient, url: str, prefix: str, options: ObjectOptions) -> None:
        self.client = client
        self._url_of_root, self._prefix = url, f"{prefix}/" if prefix else ""
        self._traits = StoreTraits(
            is_remote=True, appends_after_sync=False, refresh_interval_ms=options.refresh_interval_ms
        )
        self._cache = _open_cache(options)

    @property
    def url(self) -> str:
        return self._url_of_root

    @property
    def traits(self) -> StoreTraits:
        return self._traits

    @property
    def key_prefix(self) -> str:
        """The prefix of the keys of the root's objects: "", or a path with a final slash."""
        return self._prefix

    @property
    def requests(self) -> dict[str, int]:
        """Requests so far by operation, including retries, and bytes: "sent_bytes", "received_bytes"."""
        return self.client.counts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # --- putting -------------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        key, url = self._key(name), self._url(name)
        probe_put_if_absent(self.client, self._prefix, self.url, self.fix_unconditional)
        self.client.put_once(url, key, data, guard)

    def abort_puts(self, name: str) -> None:
        validate_name(name)

    def hold(self, name: str, note: bytes) -> Hold:  # noqa: ARG002 - no locks
        return Hold()

    def space(self) -> None:
        return None

    @property
    @abstractmethod
    def fix_unconditional(self) -> str:
        """What to do about a store that lets two writers create one name."""

    @abstractmethod
    def try_requests(self) -> None:
        """See Store."""

    @abstractmethod
    def put_lifetime_ms(self) -> int | None:
        """See Store."""

    def storage_now_ms(self, here_ms: int) -> int:
        return self.client.storage_now_ms(here_ms)

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:  # noqa: B027 - only a disk has a reserve
        """No-op: the space is not limited."""

    def advisory_lock(self, prefix: str) -> NoLock:
        validate_prefix(prefix)
        return NoLock()

    def sync_directory(self, prefix: str) -> None:
        validate_prefix(prefix)

    def sync_name(self, name: str) -> None:
        validate_name(name)

    def append_file(self, name: str, *, mapped: bool = False) -> ObjectAppendFile:  # noqa: ARG002 - nothing to map
        return ObjectAppendFile(self.client, name, self._key(name), self._url(name))

    def put_hint(self, name: str, data: BytesLike) -> None:
        self.client.put(self._url(name), self._key(name), bytes(data))

    # --- reading -------------------------------------------------------------------------------------

    def read(self, name: str, position: int = 0, size: int | None = None) -> bytes:
        with self.open_read(name) as file:
            return file.read(position, size)

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes | None]:
        if len(names) == 1:
            return [self._read_if_there(names[0], max_bytes)]
        futures = [
            self.client.submit(functools.partial(self._read_if_there, name, max_bytes)) for name in names
        ]
        return [future.result() for future in futures]

    def _read_if_there(self, name: str, max_bytes: int) -> bytes | None:
        try:
            return self.read(name, 0, max_bytes)
        except NotFoundError:
            return None

    def exists(self, name: str) -> bool:
        # Not HEAD: its 404 does not distinguish a missing object from a missing bucket.
        return self._read_if_there(name, 1) is not None

    def top_names(self, limit: int) -> list[str]:
        names: list[str] = []
        for page in self.client.listed(self.url, self._prefix, by_directory=True, page_size=limit):
            keys = [listed.key for listed in page.objects] + list(page.directories)
            # The key of the prefix itself is how consoles show an empty folder.
            names += [key[len(self._prefix) :] for key in keys if key != self._prefix]
            if len(names) >= limit:  # a page may be empty, and not the last
                break
        return names[:limit]

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        prefix = validate_prefix(prefix)
        start = f"{self._prefix}{prefix}/" if prefix else self._prefix
        after = None if start_after is None else self._prefix + start_after
        found: list[StoredFile] = []
        for page in self.client.listed(
            f"{self.url}/{prefix}",
            start,
            by_directory=not recursive,
            start_after=after,
            within_ms=within_ms,
        ):
            for listed in page.objects:
                stored = self._stored(listed)
                if not stored.name.endswith("/") and not stored.name.startswith(f"{TEMPORARY_DIRECTORY}/"):
                    found.append(stored)
        return sorted(found)

    def walk(
        self,
        enters: Callable[[str], bool],
        failed: OnFailed = raise_it,  # noqa: ARG002 - no directories
    ) -> Iterator[Sequence[StoredFile]]:
        after: str | None = None
        is_done = False
        while not is_done:
            is_done = True
            for page in self.client.listed(self.url, self._prefix, start_after=after):
                portion: list[StoredFile] = []
                left_out: str | None = None
                for listed in page.objects:
                    stored = self._stored(listed)
                    left_out = first_left_out(stored.name, _except_temporary(enters))
                    if left_out is None and stored.name and not stored.name.endswith("/"):
                        portion.append(stored)
                if portion:
                    yield portion
                if not page.is_last and left_out is not None and self.client.starts_after:
                    # The directory may have thousands of keys: list again behind it ("0" comes after "/").
                    after = f"{self._prefix}{left_out}0"
                    is_done = False
                    break

    def open_read(self, name: str) -> ObjectReadFile:
        return ObjectReadFile(self.client, name, self._key(name), self._url(name), self._cache)

    # --- deleting ------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        self.client.delete(self._url(name), self._key(name))

    def delete_many(self, names: Sequence[str]) -> None:
        self.client.delete_many(self.url, [self._key(name) for name in names])

    def remove_directory(self, prefix: str) -> bool:
        validate_name(prefix)
        return False

    def delete_directory(self, prefix: str) -> None:
        self.delete_many([file.name for file in self.list(validate_name(prefix), recursive=True)])

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        """Abort unfinished uploads, which cost money, and remove what probes left."""
        client = self.client
        now_ms = client.storage_now_ms(client.now_ms())
        uploads = self._sweep_uploads(now_ms - unfinished_older_than_ms, dry_run=dry_run)
        limits = {True: now_ms - unfinished_older_than_ms, False: now_ms - older_than_ms}
        start = f"{self._prefix}{TEMPORARY_DIRECTORY}/"
        old = [
            listed.key
            for page in client.listed(self.url, start)
            for listed in page.objects
            if listed.modified_ms <= limits[listed.key.startswith(f"{self._prefix}{PARTS}")]
        ]
        for key in () if dry_run else old:
            client.delete(self.url, key)
        return uploads + len(old)

    def _sweep_uploads(self, began_by_ms: int, *, dry_run: bool) -> int:  # noqa: ARG002 - for stores that keep unfinished uploads
        """Abort uploads that began by `began_by_ms`; return how many."""
        return 0

    def _stored(self, listed: Listed) -> StoredFile:
        return StoredFile(listed.key[len(self._prefix) :], listed.size, listed.modified_ms)

    def _key(self, name: str) -> str:
        return self._prefix + validate_name(name)

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"


def _open_cache(options: ObjectOptions) -> DiskCache | None:
    if not options.cache_bytes:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(options.cache_dir) if options.cache_dir else Path(home).expanduser() / "sparklog"
    return DiskCache(directory, options.cache_bytes)


def _except_temporary(enters: Callable[[str], bool]) -> Callable[[str], bool]:
    """Exclude the temporary directory."""
    return lambda name: name != TEMPORARY_DIRECTORY and enters(name)
