"""An object that is read by ranges: on demand, or announced and fetched ahead in parallel.

Invariants: memory is what will_need announced and has not been read past.
Not here: how much to announce (log/reader.py).
Concurrency: one user at a time; ranges travel in the client's threads for it.
"""

import os
from concurrent.futures import Future
from typing import Any

from sparklog.closing import Closing
from sparklog.errors import StorageError
from sparklog.storage.s3_cache import DiskCache
from sparklog.storage.s3_client import S3Client

FETCH_BYTES = 4 << 20
# Derived files of segments, whose names are never used twice: worth keeping on the local disk.
_KEPT_SUFFIXES = (".index", ".timeindex")


class S3ReadFile(Closing):
    """See ReadFile. Opening asks nothing; the first answer tells the size."""

    def __init__(self, client: S3Client, name: str, key: str, url: str, cache: DiskCache | None) -> None:
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
            # Not HEAD: its 404 does not tell a missing object from a missing bucket.
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
        """The bytes, if they have been announced; what lies before them is let go."""
        if self._pid != os.getpid():  # the parent's threads are not here
            self._ahead, self._pid = [], os.getpid()
        self._ahead = [one for one in self._ahead if one[1] > position]
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
