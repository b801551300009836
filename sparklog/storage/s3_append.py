"""An object that is written piece by piece: one PUT if it is small, a multipart upload if not.

Invariants:
    - an object is not there before sync() has finished it, and never changes afterwards;
    - memory: the part being filled, the one before it, and a few on their way; each byte is copied once.
Exclusive creation: a small object is put with If-None-Match, a large one is completed with it. Stores differ
in how well they keep the latter: AWS does, SeaweedFS lets several win that complete at the same moment,
others do not know it. So a large object is no put-if-absent; its name holds the writer's unique id, which
only clones of a process image share. Who finds its name taken compares: an answer may have been lost.
Concurrency: one user at a time; parts travel in the client's threads.
After a crash: nothing is there, but for the parts of a multipart upload; see S3Store.sweep_temporary.
"""

import contextlib
import os
from concurrent.futures import Future
from typing import Any

from crc32c import crc32c

from sparklog.closing import Closing
from sparklog.errors import AlreadyExistsError, NotFoundError, StorageError
from sparklog.storage.base import BytesLike
from sparklog.storage.s3_client import S3Client

PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 3


class S3AppendFile(Closing):
    """See AppendFile. Finished by its first sync."""

    def __init__(self, client: S3Client, name: str, key: str, url: str) -> None:
        self._client = client
        self._name, self._key, self._url = name, key, url
        self._buffer = bytearray()
        self._full: bytearray | None = None  # kept back until another is full: less than two make one PUT
        self._position = 0
        self._upload: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
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
        return False  # it is not there before it is finished, and is left alone then

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
                self._client.call("abort_multipart_upload", self._url, Key=self._key, UploadId=self._upload)
        self._state = "closed"
        self._forget()

    def _put(self) -> None:
        """Until it is known whether the object is there; then it is ours if its bytes are ours."""
        data = b"".join((self._full or b"", self._buffer))

        def attempt() -> None:
            try:
                self._client.put_once(self._url, self._key, data, None)
            except AlreadyExistsError:
                # Also after a first attempt: a network may deliver a request twice, and tell of the second.
                if self._client.get(self._url, self._key, 0, None)[0] != data:
                    raise

        self._client.resolve(attempt)

    def _complete(self, upload: str) -> None:
        self._send_full()
        if self._buffer:
            self._send_part(self._buffer)
        arguments = {
            "Key": self._key,
            "UploadId": upload,
            "MultipartUpload": {"Parts": [part.result() for part in self._parts]},
        }
        try:
            self._client.complete_upload(self._url, arguments)
        except (AlreadyExistsError, NotFoundError):
            # An attempt whose answer was lost has completed it; or the upload was swept, and nothing is
            # there; or the object is a clone's.
            if not self._is_ours():
                raise

    def _is_ours(self) -> bool:
        """Does the object hold what was written? Large ones are read back in pieces."""
        position, crc = 0, 0
        while True:
            data, size = self._client.get(self._url, self._key, position, position + PART_BYTES)
            if size != self._position:
                return False
            position, crc = position + len(data), crc32c(data, crc)
            if position == size:
                return crc == self._parts_crc

    def _send_full(self) -> None:
        if self._full is not None:
            self._send_part(self._full)
            self._full = None

    def _send_part(self, data: bytearray) -> None:
        if self._upload is None:
            created = self._client.call("create_multipart_upload", self._url, Key=self._key)
            self._upload = str(created["UploadId"])
        self._parts_crc = crc32c(data, self._parts_crc)
        number, upload = len(self._parts) + 1, self._upload
        if number > PARTS_IN_FLIGHT:
            self._parts[number - 1 - PARTS_IN_FLIGHT].result()

        def send() -> dict[str, Any]:
            answer = self._client.call(
                "upload_part", self._url, Key=self._key, UploadId=upload, PartNumber=number, Body=data
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        self._parts.append(self._client.submit(send))

    def _forget(self) -> None:
        self._full, self._buffer = None, bytearray()  # not cleared: a part under way may hold them
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
