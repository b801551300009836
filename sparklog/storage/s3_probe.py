"""Probes of an S3 store: the requests that maintenance needs, and the lifetime of puts.

`try_requests` runs when a root is created, and in `sparklog doctor`: it makes each kind of later request, and
checks its effect. Without it, a store that refuses to delete several objects, say, would be found by the
first vacuum, a week later, when the root is full of data.
`put_lifetime_ms` checks whether the store refuses requests that were signed long ago.
Not here: the race for conditional writes (object_probe.py).
After a crash: an object or an upload under .tmp/ may be left, without meaning; a vacuum removes it.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth

from sparklog.errors import NotFoundError, StorageError
from sparklog.storage.base import TEMPORARY_DIRECTORY
from sparklog.storage.object_client import Outcome, WrongAnswerError
from sparklog.storage.object_probe import run_trial, trial_key
from sparklog.storage.s3_client import (
    FAILURES,
    S3Client,
    connect,
    error_code,
    outcome_of,
    storage_error,
)

# --- s3 uploads --------------------------------------------------------------------------------------
#
# Abandoned multipart uploads, which cost money until they are aborted.
#
# Only segments and their indexes are uploaded in parts (s3.py). A root may share its bucket, or its prefix,
# with other data: an upload with any other key is foreign.
# Invariants: an upload is aborted only if FORMAT.md has its key's form for segments. An upload that has ended
#     since it was listed is no error.
# Not here: the age limit (maintenance/sweep.py).
#     It cannot be seen whether an upload's writer is alive: a task sends a part when it is full, which may
#     take days, and completes the upload at its end. So uploads are kept as long as unreferenced segments.
# Concurrency: any; concurrent writers have younger uploads.
# After a crash: listed again.
# Sources: FORMAT.md#layout-of-a-root; S3 ListMultipartUploads, AbortMultipartUpload.


# The same forms as in log/segment_file.py, which this layer cannot import; a test compares them.
_OF_SEGMENTS = re.compile(
    r"(?:(?:isolated/[A-Za-z0-9._-]{1,249}/)?(?:segments/[0-9a-f]{32}/\d{8}(?:[.-]\d{1,18})?"
    r"|[A-Za-z0-9._-]{1,249}-(?:0|[1-9]\d{0,5})/\d{20}(?:[.-]\d{1,18})?-[A-Za-z0-9_-]{22}))"
    r"\.(?:log|index|timeindex)"
    rf"|{re.escape(TEMPORARY_DIRECTORY)}/probe-[0-9a-f]{{16}}/1",
    re.ASCII,
)


def is_of_segment(name: str) -> bool:
    """True if sparklog may have begun an upload with this name, relative to the root."""
    return _OF_SEGMENTS.fullmatch(name) is not None


def sweep_uploads(client: S3Client, url: str, prefix: str, limit_s: float, *, dry_run: bool) -> int:
    """Abort uploads of segments that began by `limit_s`, in Unix time; return how many."""
    count = 0
    for upload in _uploads(client, url, prefix):
        key = str(upload["Key"])
        is_ours = key.startswith(prefix) and is_of_segment(key[len(prefix) :])
        if not is_ours or upload["Initiated"].timestamp() > limit_s:
            continue
        count += 1
        if not dry_run:
            with contextlib.suppress(NotFoundError):
                client.call("abort_multipart_upload", url, Key=key, UploadId=upload["UploadId"])
    return count


def _uploads(client: S3Client, url: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Raises StorageError, also if the pages repeat."""
    arguments: dict[str, Any] = {"Prefix": prefix}
    pages = set[tuple[str, str]]()  # the last upload of each
    while True:
        answer = client.call("list_multipart_uploads", url, **arguments)
        uploads = answer.get("Uploads", [])
        yield from uploads
        if not answer["IsTruncated"]:
            return
        last = (uploads[-1]["Key"], uploads[-1]["UploadId"]) if uploads else ("", "")
        if last in pages:
            problem = WrongAnswerError(f"a page of uploads twice, up to {last[0]!r}")
            raise storage_error("list_multipart_uploads", url, problem, client.options)
        pages.add(last)
        arguments["KeyMarker"] = answer["NextKeyMarker"]
        arguments["UploadIdMarker"] = answer["NextUploadIdMarker"]


# --- s3 probe ----------------------------------------------------------------------------------------


def try_requests(client: S3Client, prefix: str, url: str) -> None:
    """Make each kind of request once, TRIED_REQUESTS in all.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: the store refuses a request, or ignores it. STORAGE_REFUSED: a
            permission is missing. STORE_UNAVAILABLE, STORE_ANSWER_WRONG, ...: as for every request.
    """
    run_trial(_Trial(client, url, trial_key(prefix)), url, "docs/s3.md has the list of requests")


TRIED_REQUESTS = 16  # of a store that supports them all


class _Trial:
    """Three small objects, the second uploaded in parts, and an aborted upload.

    Fields:
        purpose: of the request in progress.
    """

    def __init__(self, client: S3Client, url: str, key: str) -> None:
        self._client, self._url = client, url
        self._keys = [f"{key}/{number}" for number in range(3)]
        self._uploads: list[dict[str, str]] = []
        self.purpose = ""

    def run(self) -> None:
        first, second, third = self._keys
        self.purpose = "to write an object"
        for key in (first, third):
            self._call("put_object", Key=key, Body=b"probe")
        self.purpose = "to upload an object in parts"
        upload = self._begin(second)
        part = self._call("upload_part", **upload, PartNumber=1, Body=b"0123456789")
        self.purpose = "to list unfinished uploads"
        self._call("list_multipart_uploads", Prefix=second)
        self.purpose = "to finish an upload"
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        self._client.complete_multipart(self._url, {**upload, "MultipartUpload": parts})
        self._uploads.remove(upload)
        self.purpose = "to abort an upload"
        given_up = self._begin(second)
        self._call("abort_multipart_upload", **given_up)
        self._uploads.remove(given_up)
        self.purpose = "to read a part of an object"
        self._expect(self._client.get(self._url, second, 2, 5) == (b"234", 10))
        self._expect(self._client.get(self._url, second, 10, 11)[0] == b"")
        self._list()
        self.purpose = "to delete an object"
        self._call("delete_object", Key=first)
        self.purpose = "to delete several objects in one request, as vacuum does"
        self._delete(second, third)
        self._expect(list(self._listed()) == [])

    def _list(self) -> None:
        self.purpose = "to list objects in pages"
        self._expect(list(self._listed(MaxKeys=2)) == self._keys)
        self.purpose = "to list objects after a name (StartAfter)"
        self._expect(list(self._listed(StartAfter=self._keys[1])) == self._keys[2:])

    def _listed(self, **arguments: Any) -> Iterator[str]:
        prefix = self._keys[0].rpartition("/")[0] + "/"
        for answer in self._client.pages(self._url, Prefix=prefix, **arguments):
            yield from (entry["Key"] for entry in answer.get("Contents", ()))

    def _begin(self, key: str) -> dict[str, str]:
        created = self._call("create_multipart_upload", Key=key)
        upload = {"Key": key, "UploadId": str(created["UploadId"])}
        self._uploads.append(upload)
        return upload

    def _delete(self, *keys: str) -> None:
        answer = self._call(
            "delete_objects", Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
        )
        self._expect(not answer.get("Errors"), f"{answer.get('Errors')}")

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._client.call(operation, self._url, **arguments)

    def _expect(self, is_right: bool, found: str = "the store confirmed the request without effect") -> None:
        if not is_right:
            raise StorageError("STORAGE_UNSUPPORTED", found, fix="Use another store")

    def clean(self) -> None:
        """Best effort."""
        for upload in self._uploads:
            with contextlib.suppress(StorageError):
                self._call("abort_multipart_upload", **upload)
        for key in self._keys:
            with contextlib.suppress(StorageError):
                self._call("delete_object", Key=key)


# --- s3 dates ----------------------------------------------------------------------------------------
#
# The lifetime of a signed PUT: whether this store refuses requests that were signed long ago.
#
# S3 refuses requests dated more than 15 minutes before or after its own time. So half an hour after it was
# signed, a PUT cannot take effect any more. The probe is a request dated 20 minutes before the store's time.
# Not here: the use of it (metadata/cleaning.py).
# Sources: RequestTimeTooSkewed in S3's list of error codes; SigV4.


# A request's date may be 15 minutes ahead of the store, and is valid for 15 minutes from then on.
PUT_LIFETIME_MS = 30 * 60_000
_OLD_MS = 20 * 60_000
_REFUSALS = {"RequestTimeTooSkewed", "RequestExpired"}
_TAKEN = {Outcome.MISSING, Outcome.RANGE}
_SIGNATURE = "sparklog-s3v4-old"
_answers: dict[str, bool] = {}


def put_lifetime_ms(client: S3Client, prefix: str) -> int | None:
    """Return how long a signed put may take effect; None if there is no bound, or it is unknown."""
    if client.options.anon:
        return None  # only signed requests have a date
    bucket = client.identity
    if bucket not in _answers:
        now_ms = client.storage_now_ms(client.now_ms())
        is_refused = _is_refused(client, f"{prefix}{TEMPORARY_DIRECTORY}/old", now_ms - _OLD_MS)
        if is_refused is None:
            return None
        _answers[bucket] = is_refused
    return PUT_LIFETIME_MS if _answers[bucket] else None


def _is_refused(client: S3Client, key: str, date_ms: int) -> bool | None:
    """Return None if the answer does not decide it: a busy or denying store is probed again later."""
    signer = type("_DatedAuth", (_DatedAuth,), {"date": datetime.fromtimestamp(date_ms / 1000, UTC)})
    AUTH_TYPE_MAPS[_SIGNATURE] = signer
    old: Any = connect(client.bucket, client.options, signature_version=_SIGNATURE)
    try:
        old.get_object(Bucket=client.bucket, Key=key, Range="bytes=0-0")
    except FAILURES as error:
        if error_code(error) in _REFUSALS:
            return True
        return False if outcome_of(error) in _TAKEN else None
    return False


class _DatedAuth(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """SigV4 with a given date; otherwise as its parent's add_auth."""

    date: datetime

    def add_auth(self, request: Any) -> None:
        request.context["timestamp"] = self.date.strftime(SIGV4_TIMESTAMP)
        self._modify_request_before_signing(request)
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(text, request))
