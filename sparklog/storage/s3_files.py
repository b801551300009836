"""Objects as files: written whole by one PUT or a multipart upload, read by ranges fetched ahead.

Invariants:
    - an object is not there before sync() has finished it, and never changes afterwards;
    - memory of an append file: the part being filled, and a few parts on their way;
    - memory of a read file: what will_need announced and has not been read past.
Exclusive creation: a small object is put with If-None-Match. A large one is not, since multipart uploads
are not conditional in practice; its name holds the writer's unique id.
Concurrency: one user at a time; parts and ranges travel in the client's threads.
After a crash: nothing is there, but for the parts of a multipart upload; see S3Store.sweep_temporary.
"""

import contextlib
import os
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from sparklog.errors import AlreadyExistsError, NotFoundError, StorageError
from sparklog.storage.base import BytesLike, IndefinitePutError
from sparklog.storage.s3_client import S3Client

PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 3
FETCH_BYTES = 4 << 20


class S3AppendFile:
    """See AppendFile. Finished by its first sync."""

    def __init__(self, client: S3Client, name: str, key: str, url: str) -> None:
        self._client = client
        self._name, self._key, self._url = name, key, url
        self._buffer = bytearray()
        self._position = 0
        self._upload: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._state = "open"
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self._name

    @property
    def position(self) -> int:
        return self._position

    def write(self, *chunks: BytesLike) -> int:
        self._refuse_unless_open()
        start = self._position
        for chunk in chunks:
            self._buffer += memoryview(chunk).cast("B")
        self._position = start + sum(memoryview(chunk).nbytes for chunk in chunks)
        while len(self._buffer) >= 2 * PART_BYTES:  # so that a small object stays a single PUT
            self._send_part(bytes(memoryview(self._buffer)[:PART_BYTES]))
            del self._buffer[:PART_BYTES]
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
        self._buffer.clear()
        self._parts.clear()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        if self._state in {"open", "failed"} and self._upload is not None:
            for part in self._parts:
                part.cancel()
            with contextlib.suppress(StorageError):
                self._client.call("abort_multipart_upload", self._url, Key=self._key, UploadId=self._upload)
        self._state = "closed"
        self._buffer.clear()
        self._parts.clear()

    def _put(self) -> None:
        """Until it is known whether the object is there; then it is ours if its bytes are ours."""
        data = bytes(self._buffer)
        unsure: IndefinitePutError | None = None

        def attempt() -> None:
            nonlocal unsure
            try:
                self._client.put_once(self._url, self._key, data, None)
            except AlreadyExistsError:
                if unsure is None or self._client.get(self._url, self._key, 0, None)[0] != data:
                    raise
            except IndefinitePutError as error:
                unsure = error
                raise

        self._client.resolve(attempt)

    def _complete(self, upload: str) -> None:
        self._send_part(bytes(self._buffer))
        parts = [part.result() for part in self._parts]
        try:
            self._client.call(
                "complete_multipart_upload",
                self._url,
                Key=self._key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except NotFoundError:
            # An attempt whose answer was lost has completed it; or it was swept, and nothing is there.
            if self._client.get(self._url, self._key, 0, 1)[1] != self._position:
                raise

    def _send_part(self, data: bytes) -> None:
        if self._upload is None:
            created = self._client.call("create_multipart_upload", self._url, Key=self._key)
            self._upload = str(created["UploadId"])
        number, upload = len(self._parts) + 1, self._upload
        if number > PARTS_IN_FLIGHT:
            self._parts[number - 1 - PARTS_IN_FLIGHT].result()

        def send() -> dict[str, Any]:
            answer = self._client.call(
                "upload_part", self._url, Key=self._key, UploadId=upload, PartNumber=number, Body=data
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        self._parts.append(self._client.submit(send))

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class S3ReadFile:
    """See ReadFile. Opening asks nothing; the first answer tells the size."""

    def __init__(self, client: S3Client, name: str, key: str, url: str) -> None:
        self._client = client
        self._name, self._key, self._url = name, key, url
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

    def will_need(self, position: int, size: int) -> None:
        self._refuse_if_closed()
        end = position + size
        for start, stop, _ in self._ahead:
            if start <= position < stop:
                position = stop
        while position < end:
            stop = min(position + FETCH_BYTES, end)
            self._ahead.append((position, stop, self._client.submit(self._fetcher(position, stop))))
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
        return memoryview(self.read())

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
