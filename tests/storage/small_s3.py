"""A small S3 store in this process, which answers what a test wants it to.

It keeps objects and uploads in memory, knows the requests that sparklog makes, and is as strict as stores
other than AWS: several objects are deleted only with Content-MD5. `odd` is asked first with every
request: what it returns is the answer; None: the right one.
Concurrency: one thread a connection, one request at a time.
"""

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET

from sparklog.clock import ManualClock
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import parse_storage_options

DATE = "2020-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Asked:
    """A request: its operation as botocore names it, and what it says."""

    operation: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What is sent back. `length`: what Content-Length says; None: the truth."""

    status: int = 200
    body: str | bytes = ""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


Odd = Callable[[Asked], Answer | None]


def refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


class SmallS3:
    """See the module's docstring. A context manager."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.odd: Odd = lambda _: None
        self.counts: Counter[str] = Counter()
        self.page = 1000  # keys of one, at most
        self._lock = threading.Lock()
        small = self

        class Handler(_Handler):
            def __init__(self, *arguments: Any) -> None:
                self.small = small
                super().__init__(*arguments)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": "small-key",
            "secret": "small-secret",
            "endpoint_url": f"http://127.0.0.1:{self._server.server_address[1]}",
            "cache_bytes": 0,
            "retry_timeout": 1,
        }

    def store(self) -> S3Store:
        """One that waits without waiting."""
        return S3Store("s3://bucket/root", parse_storage_options(self.storage_options, {}), ManualClock())

    def answer(self, asked: Asked) -> Answer:
        with self._lock:
            self.counts[asked.operation] += 1
            odd = self.odd(asked)
            if odd is not None:
                return odd
            return getattr(self, asked.operation)(asked)  # type: ignore[no-any-return]

    # --- operations ----------------------------------------------------------------------------------

    def put_object(self, asked: Asked) -> Answer:
        if "if-none-match" in asked.headers and asked.key in self.objects:
            return refusal(412, "PreconditionFailed")
        self.objects[asked.key] = asked.body
        return Answer(headers={"ETag": _etag(asked.body)})

    def get_object(self, asked: Asked) -> Answer:
        data = self.objects.get(asked.key)
        if data is None:
            return refusal(404, "NoSuchKey")
        first, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)) + 1, len(data))
        if start >= len(data):
            return Answer(416, refusal(416, "InvalidRange").body, {"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def list_objects_v2(self, asked: Asked) -> Answer:
        prefix, delimiter = asked.query.get("prefix", ""), asked.query.get("delimiter")
        after = asked.query.get("continuation-token") or asked.query.get("start-after", "")
        names = set()
        for key in self.objects:
            if key.startswith(prefix):
                cut = key.find("/", len(prefix)) + 1 if delimiter else 0
                names.add(key[:cut] if cut else key)
        names = {name for name in names if name > after}
        most = min(self.page, int(asked.query.get("max-keys", 1000)))
        page = sorted(names)[:most]
        contents = "".join(self.entry(name) for name in page if name in self.objects)
        contents += "".join(
            f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
            for name in page
            if name not in self.objects
        )
        return listing(contents, token=page[-1] if len(names) > most else None)

    def entry(self, key: str) -> str:
        return entry(key, size=len(self.objects[key]))

    def list_multipart_uploads(self, asked: Asked) -> Answer:
        found = [
            upload_entry(key, upload)
            for upload, (key, _) in sorted(self.uploads.items(), key=lambda one: one[1][0])
            if key.startswith(asked.query.get("prefix", ""))
        ]
        return uploads("".join(found))

    def create_multipart_upload(self, asked: Asked) -> Answer:
        upload = f"upload-{self.counts[asked.operation]}"
        self.uploads[upload] = (asked.key, {})
        body = f"<UploadId>{upload}</UploadId>"
        return Answer(body=f"<InitiateMultipartUploadResult>{body}</InitiateMultipartUploadResult>")

    def upload_part(self, asked: Asked) -> Answer:
        self.uploads[asked.query["uploadId"]][1][int(asked.query["partNumber"])] = asked.body
        return Answer(headers={"ETag": _etag(asked.body)})

    def complete_multipart_upload(self, asked: Asked) -> Answer:
        if asked.query["uploadId"] not in self.uploads:
            return refusal(404, "NoSuchUpload")
        key, parts = self.uploads.pop(asked.query["uploadId"])
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        body = f"<Key>{key}</Key><ETag>&quot;x-{len(parts)}&quot;</ETag>"
        return Answer(body=f"<CompleteMultipartUploadResult>{body}</CompleteMultipartUploadResult>")

    def abort_multipart_upload(self, asked: Asked) -> Answer:
        self.uploads.pop(asked.query["uploadId"], None)
        return Answer(204)

    def delete_object(self, asked: Asked) -> Answer:
        self.objects.pop(asked.key, None)
        return Answer(204)

    def delete_objects(self, asked: Asked) -> Answer:
        digest = base64.b64encode(hashlib.md5(asked.body, usedforsecurity=False).digest()).decode()
        if asked.headers.get("content-md5") != digest:
            return refusal(400, "MissingContentMD5")
        for element in ET.fromstring(asked.body).iter():
            if element.tag.endswith("Key"):
                self.objects.pop(element.text or "", None)
        return Answer(body="<DeleteResult></DeleteResult>")


def entry(key: str, *, size: object = 1, date: str | None = DATE) -> str:
    """Of a listing."""
    dated = f"<LastModified>{date}</LastModified>" if date is not None else ""
    sized = f"<Size>{size}</Size>" if size is not None else ""
    return f"<Contents><Key>{key}</Key>{dated}{sized}</Contents>"


def listing(contents: str = "", *, token: str | None = None, truncated: str | None = None) -> Answer:
    """A page of one."""
    said = truncated if truncated is not None else "true" if token else "false"
    next_ = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    flag = f"<IsTruncated>{said}</IsTruncated>" if said else ""
    return Answer(body=f"<ListBucketResult>{flag}{next_}{contents}</ListBucketResult>")


def upload_entry(key: str, upload: str, date: str = DATE) -> str:
    return f"<Upload><Key>{key}</Key><UploadId>{upload}</UploadId><Initiated>{date}</Initiated></Upload>"


def uploads(contents: str = "", markers: tuple[str, str] | None = None) -> Answer:
    """A page of a listing of uploads."""
    next_ = "<IsTruncated>false</IsTruncated>"
    if markers is not None:
        next_ = (
            f"<IsTruncated>true</IsTruncated><NextKeyMarker>{markers[0]}</NextKeyMarker>"
            f"<NextUploadIdMarker>{markers[1]}</NextUploadIdMarker>"
        )
    return Answer(body=f"<ListMultipartUploadsResult>{next_}{contents}</ListMultipartUploadsResult>")


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    small: SmallS3

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        key = unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        asked = Asked(_operation(self.command, query), key, query, headers, body)
        answer = self.small.answer(asked)
        data = answer.body.encode() if isinstance(answer.body, str) else answer.body
        self.send_response_only(answer.status)
        sent = {"Date": formatdate(usegmt=True), **answer.headers}
        for name, value in sent.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(data) if answer.length is None else answer.length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        if answer.length is not None:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _operation(method: str, query: dict[str, str]) -> str:
    if method == "POST":
        if "delete" in query:
            return "delete_objects"
        return "create_multipart_upload" if "uploads" in query else "complete_multipart_upload"
    if method == "PUT":
        return "upload_part" if "partNumber" in query else "put_object"
    if method == "DELETE":
        return "abort_multipart_upload" if "uploadId" in query else "delete_object"
    if "uploads" in query:
        return "list_multipart_uploads"
    return "list_objects_v2" if "list-type" in query else "get_object"
