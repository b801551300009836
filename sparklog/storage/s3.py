"""A store in a bucket of S3, or of anything that speaks its protocol with conditional writes.

What each operation is here:
    put_if_absent   one PUT with If-None-Match: *, one attempt. 412: taken. Anything that is not an answer:
                    IndefinitePutError, and the caller puts the same bytes to the same key again
    append_file     gathers bytes; sync() finishes the object (one PUT, or a multipart upload)
    sync_directory  nothing: an answered PUT is durable with its name
    turn            always given: there are no locks
    abort_puts      nothing: a put under way cannot be stopped. put_lifetime_ms says how late it may land
    sweep_temporary aborts old multipart uploads of segments, and removes what probes left

Invariants: see base.py. Before the first conditional put of a process the store is raced (s3_probe.py).
Not here: s3fs; docs/adr/0009 says why.
Concurrency: any number of threads; after a fork the child connects anew.
Sources: docs/design.md; S3's consistency model and conditional writes.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sparklog.clock import Clock, SystemClock
from sparklog.errors import NotFoundError, StorageError
from sparklog.storage.base import UNFINISHED_MS, BytesLike, FreeTurn, Hold, StoredFile, StoreTraits
from sparklog.storage.names import TEMPORARY_DIRECTORY, first_left_out, validate_name, validate_prefix
from sparklog.storage.root_urls import parse_s3_url
from sparklog.storage.s3_append import S3AppendFile
from sparklog.storage.s3_cache import DiskCache
from sparklog.storage.s3_client import S3Client
from sparklog.storage.s3_dates import put_lifetime_ms
from sparklog.storage.s3_options import S3Options
from sparklog.storage.s3_probe import probe_put_if_absent, try_requests
from sparklog.storage.s3_read import S3ReadFile
from sparklog.storage.s3_uploads import sweep_uploads

_DELETE_KEYS = 1000
LIST_KEYS = 1000


class S3Store:
    """See Store."""

    def __init__(self, url: str, options: S3Options, clock: Clock | None = None) -> None:
        self._bucket, prefix = parse_s3_url(url)
        self._prefix = f"{prefix}/" if prefix else ""
        self._traits = StoreTraits(
            is_remote=True, appends_after_sync=False, refresh_interval_ms=options.refresh_interval_ms
        )
        self.client = S3Client(self._bucket, options, clock or SystemClock())
        self._cache = _open_cache(options)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def traits(self) -> StoreTraits:
        return self._traits

    @property
    def key_prefix(self) -> str:
        """What the keys of the root's objects begin with: "", or a path with a slash at its end."""
        return self._prefix

    @property
    def requests(self) -> dict[str, int]:
        """Requests so far by operation, every attempt counted, and bytes: "sent_bytes", "received_bytes"."""
        return self.client.counts()

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    # --- putting -------------------------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        key, url = self._key(name), self._url(name)
        probe_put_if_absent(self.client, self._prefix, self.url)
        self.client.put_once(url, key, data, guard)

    def abort_puts(self, name: str) -> None:
        validate_name(name)

    def hold(self, name: str, note: bytes) -> Hold:  # noqa: ARG002 - no locks
        return Hold()

    def space(self) -> None:
        return None

    def try_requests(self) -> None:
        try_requests(self.client, self._prefix, self.url)

    def put_lifetime_ms(self) -> int | None:
        return put_lifetime_ms(self.client, self._prefix)

    def storage_now_ms(self, here_ms: int) -> int:
        return self.client.storage_now_ms(here_ms)

    def release_reserve(self) -> bool:
        return False

    def restore_reserve(self) -> None:
        """Nobody counts the space here."""

    def turn(self, prefix: str) -> FreeTurn:
        validate_prefix(prefix)
        return FreeTurn()

    def sync_directory(self, prefix: str) -> None:
        validate_prefix(prefix)

    def sync_name(self, name: str) -> None:
        validate_name(name)

    def append_file(self, name: str, *, mapped: bool = False) -> S3AppendFile:  # noqa: ARG002 - nothing to map
        return S3AppendFile(self.client, name, self._key(name), self._url(name))

    def put_hint(self, name: str, data: BytesLike) -> None:
        self.client.call("put_object", self._url(name), Key=self._key(name), Body=bytes(data))

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
        # Not HEAD: its 404 does not tell a missing object from a missing bucket.
        return self._read_if_there(name, 1) is not None

    def top_names(self, limit: int) -> list[str]:
        answer = self.client.call(
            "list_objects_v2", self.url, Prefix=self._prefix, Delimiter="/", MaxKeys=limit
        )
        keys = [str(entry["Key"]) for entry in answer.get("Contents", ())]
        keys += [str(entry["Prefix"]) for entry in answer.get("CommonPrefixes", ())]
        # The key of the prefix itself is how consoles show an empty folder.
        return [key[len(self._prefix) :] for key in keys if key != self._prefix]

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        prefix = validate_prefix(prefix)
        start = f"{self._prefix}{prefix}/" if prefix else self._prefix
        arguments: dict[str, Any] = {"Prefix": start, "MaxKeys": LIST_KEYS}
        if not recursive:
            arguments["Delimiter"] = "/"
        if start_after is not None:
            arguments["StartAfter"] = self._prefix + start_after
        found: list[StoredFile] = []
        for answer in self.client.pages(f"{self.url}/{prefix}", within_ms=within_ms, **arguments):
            for entry in answer.get("Contents", ()):
                stored = self._stored(entry)
                if not stored.name.endswith("/") and not stored.name.startswith(f"{TEMPORARY_DIRECTORY}/"):
                    found.append(stored)
        return sorted(found)

    def walk(self, enters: Callable[[str], bool]) -> Iterator[Sequence[StoredFile]]:
        arguments: dict[str, Any] = {"Prefix": self._prefix, "MaxKeys": LIST_KEYS}
        is_done = False
        while not is_done:
            is_done = True
            for answer in self.client.pages(self.url, **arguments):
                portion: list[StoredFile] = []
                left_out: str | None = None
                for entry in answer.get("Contents", ()):
                    stored = self._stored(entry)
                    left_out = first_left_out(stored.name, _and_not_ours(enters))
                    if left_out is None and stored.name and not stored.name.endswith("/"):
                        portion.append(stored)
                if portion:
                    yield portion
                if answer["IsTruncated"] and left_out is not None:
                    # It may go on for thousands: list anew behind it ("0" comes after "/").
                    arguments["StartAfter"] = f"{self._prefix}{left_out}0"
                    is_done = False
                    break

    def open_read(self, name: str) -> S3ReadFile:
        return S3ReadFile(self.client, name, self._key(name), self._url(name), self._cache)

    # --- deleting ------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        self.client.call("delete_object", self._url(name), Key=self._key(name))

    def delete_many(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _DELETE_KEYS):
            keys = [{"Key": self._key(name)} for name in names[first : first + _DELETE_KEYS]]
            answer = self.client.call("delete_objects", self.url, Delete={"Objects": keys, "Quiet": True})
            for refused in answer.get("Errors", ()):
                if refused.get("Code") != "NoSuchKey":
                    raise _not_deleted(self.url, refused)

    def remove_directory(self, prefix: str) -> bool:
        validate_name(prefix)
        return False

    def delete_directory(self, prefix: str) -> None:
        self.delete_many([file.name for file in self.list(validate_name(prefix), recursive=True)])

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        """Multipart uploads that nobody finished cost money until they are aborted; and what probes left."""
        now_ms = self.client.storage_now_ms(self.client.now_ms())
        began_s, limit_s = (now_ms - unfinished_older_than_ms) / 1000, (now_ms - older_than_ms) / 1000
        uploads = sweep_uploads(self.client, self.url, self._prefix, began_s, dry_run=dry_run)
        temporary = f"{self._prefix}{TEMPORARY_DIRECTORY}/"
        found = self.client.call("list_objects_v2", self.url, Prefix=temporary).get("Contents", ())
        old_objects = [one for one in found if one["LastModified"].timestamp() <= limit_s]
        for one in () if dry_run else old_objects:
            self.client.call("delete_object", self.url, Key=one["Key"])
        return uploads + len(old_objects)

    def _stored(self, entry: dict[str, Any]) -> StoredFile:
        modified: datetime = entry["LastModified"]
        name = str(entry["Key"])[len(self._prefix) :]
        return StoredFile(name, int(entry["Size"]), round(modified.timestamp() * 1000))

    def _key(self, name: str) -> str:
        return self._prefix + validate_name(name)

    def _url(self, name: str) -> str:
        return f"{self.url}/{name}"


def _open_cache(options: S3Options) -> DiskCache | None:
    if not options.cache_bytes:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(options.cache_dir) if options.cache_dir else Path(home).expanduser() / "sparklog"
    return DiskCache(directory, options.cache_bytes)


def _and_not_ours(enters: Callable[[str], bool]) -> Callable[[str], bool]:
    """But for the directory of what is temporary."""
    return lambda name: name != TEMPORARY_DIRECTORY and enters(name)


def _not_deleted(url: str, refused: dict[str, Any]) -> StorageError:
    found = f"{url}: cannot delete {refused.get('Key')}: the store answered {refused.get('Code')}"
    if refused.get("Code") == "AccessDenied":
        return StorageError("STORAGE_REFUSED", found, fix="Allow s3:DeleteObject, or keep the files")
    return StorageError("STORAGE_FAILED", found, fix="Try again; what was deleted before is gone")


__all__ = ["S3Store"]
