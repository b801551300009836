"""Can this store hold a root? Commits depend on one answer, and maintenance on many requests.

`probe_put_if_absent`, once per bucket and process, before its first conditional put: does the store let
exactly one of several racing writers create a name? Two threads put one key, then one puts it again. A store
that ignores If-None-Match fails the second part for sure.
`try_requests`, when a root is made, and by `sparklog doctor`: each kind of request that is made later, and
whether the store has done what it says. A store that refuses to delete several objects, say, would else be
found by the first vacuum, a week later, when the root is full of data.
Not here: races that a store loses once in a thousand; no probe that ends finds those.
`put_lifetime_ms`: does this store refuse requests that were signed long ago?
After a crash: an object or an upload under .tmp/ may be left; it means nothing, and a vacuum removes it.
"""

import contextlib
import re
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, S3SigV4Auth

from sparklog.errors import AlreadyExistsError, NotFoundError, SparklogError, StorageError
from sparklog.storage.base import TEMPORARY_DIRECTORY, IndefinitePutError
from sparklog.storage.s3_client import (
    FAILURES,
    Outcome,
    S3Client,
    WrongAnswerError,
    connect,
    error_code,
    outcome_of,
    storage_error,
)

# --- s3 uploads --------------------------------------------------------------------------------------
#
# Multipart uploads that nobody is going to finish: they cost money until they are aborted.
#
# Only segments are uploaded in parts (s3.py), and their indexes are of their names. A root may share its
# bucket, or its prefix, with whatever else there is: an upload whose key is none of these is somebody's.
# Invariants: an upload is aborted only if its key is of a form that FORMAT.md has for segments. What ended
#     since it was listed is no error.
# Not here: how old is old (maintenance/sweep.py).
#     Whether its writer is at work cannot be seen: a task sends a part when it has gathered one, which may
#     take days, and completes the upload at its end. So it is left as long as a segment that nothing refers
#     to.
# Concurrency: any; beside writers, whose uploads are younger.
# After a crash: listed again.
# Sources: FORMAT.md#layout-of-a-root; S3 ListMultipartUploads, AbortMultipartUpload.


# As log/segment_file.py, of which this layer knows nothing; a test holds them against each other.
_OF_SEGMENTS = re.compile(
    r"(?:segments/[0-9a-f]{32}/\d{8}(?:[.-]\d{1,18})?"
    r"|[A-Za-z0-9._-]{1,249}-(?:0|[1-9]\d{0,5})/\d{20}(?:[.-]\d{1,18})?-[A-Za-z0-9_-]{22})"
    r"\.(?:log|index|timeindex)"
    rf"|{re.escape(TEMPORARY_DIRECTORY)}/probe-[0-9a-f]{{16}}/1",
    re.ASCII,
)


def is_of_segment(name: str) -> bool:
    """May sparklog have begun an upload of this name, from the root?"""
    return _OF_SEGMENTS.fullmatch(name) is not None


def sweep_uploads(client: S3Client, url: str, prefix: str, limit_s: float, *, dry_run: bool) -> int:
    """Abort those of segments that began by then, in Unix time (s); returns how many."""
    count = 0
    for one in _uploads(client, url, prefix):
        key = str(one["Key"])
        is_ours = key.startswith(prefix) and is_of_segment(key[len(prefix) :])
        if not is_ours or one["Initiated"].timestamp() > limit_s:
            continue
        count += 1
        if not dry_run:
            with contextlib.suppress(NotFoundError):
                client.call("abort_multipart_upload", url, Key=key, UploadId=one["UploadId"])
    return count


def _uploads(client: S3Client, url: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Raises StorageError: also where the pages do not come to an end."""
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
            problem = WrongAnswerError(f"a page of uploads that was there before, up to {last[0]!r}")
            raise storage_error("list_multipart_uploads", url, problem, client.options)
        pages.add(last)
        arguments["KeyMarker"] = answer["NextKeyMarker"]
        arguments["UploadIdMarker"] = answer["NextUploadIdMarker"]


# --- s3 probe ----------------------------------------------------------------------------------------


RACERS = 2  # three or more wait for seconds on some stores
passed: set[str] = set()


def probe_put_if_absent(client: S3Client, prefix: str, url: str) -> None:
    """Race the store, unless that has been done.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: it lets two writers win. STORE_UNAVAILABLE: no answers.
    """
    with client.probe_lock:
        bucket = client.identity
        if bucket in passed:
            return
        try:
            client.resolve(lambda: _probe(client, prefix, url))
        except IndefinitePutError as error:
            raise StorageError(
                "STORE_UNAVAILABLE",
                f"{url}: no definite answers while probing for conditional writes; the last: {error.message}",
                fix="Check the store, and try again",
            ) from error
        passed.add(bucket)


def _probe(client: S3Client, prefix: str, url: str) -> None:
    """One race. IndefinitePutError: the answers do not decide it."""
    key = f"{prefix}{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}"
    winners = _race(client, key, url)
    try:
        client.put_once(url, key, b"again", None)
        winners = RACERS + 1
    except AlreadyExistsError:
        pass
    with contextlib.suppress(StorageError):
        client.call("delete_object", url, Key=key)
    if winners > 1:
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: several writers created the same object, expected one to win and the others to get "
            "412 for If-None-Match: commits would be lost",
            fix="Use a store with conditional writes: AWS S3, MinIO, SeaweedFS 4.17 or newer, ...",
        )


def _race(client: S3Client, key: str, url: str) -> int:
    """How many won, or may have; at least one."""
    outcomes: list[SparklogError | None] = []
    barrier = threading.Barrier(RACERS)

    def put(number: int) -> None:
        barrier.wait()
        try:
            client.put_once(url, key, b"probe %d" % number, None)
        except SparklogError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    threads = [threading.Thread(target=put, args=(number,), daemon=True) for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in outcomes:
        if error is not None and not isinstance(error, AlreadyExistsError | IndefinitePutError):
            raise error
    winners = outcomes.count(None)
    unsure = [error for error in outcomes if isinstance(error, IndefinitePutError)]
    if unsure and not winners:
        raise unsure[0]
    if not winners:
        raise IndefinitePutError("PUT_INDEFINITE", f"{url}: a race without a winner", fix="Repeat it")
    return winners


def try_requests(client: S3Client, prefix: str, url: str) -> None:
    """Make each kind of request once, TRIED_REQUESTS in all.

    Raises:
        StorageError: STORAGE_UNSUPPORTED: the store refuses one, or does not do it. STORAGE_REFUSED: we may
            not make it. STORE_UNAVAILABLE, STORE_ANSWER_WRONG, ...: as every request.
    """
    trial = _Trial(client, url, f"{prefix}{TEMPORARY_DIRECTORY}/probe-{secrets.token_hex(8)}")
    try:
        trial.run()
    except StorageError as error:
        trial.clean()
        if error.code not in {"STORAGE_FAILED", "STORAGE_UNSUPPORTED", "FILE_NOT_FOUND", "FILE_EXISTS"}:
            raise
        raise StorageError(
            "STORAGE_UNSUPPORTED",
            f"{url}: the store does not do all that a root needs: {trial.purpose}: {error.message}",
            fix="Use another store, or a newer version of it; docs/s3.md has the list of requests",
        ) from error


TRIED_REQUESTS = 16  # of a store that knows them all


class _Trial:
    """Three objects of some bytes, of which the second is uploaded in parts, and an upload that is given up.

    Fields:
        purpose: of the request under way.
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
        self.purpose = "to find uploads that were not finished"
        self._call("list_multipart_uploads", Prefix=second)
        self.purpose = "to finish an upload"
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        self._client.complete_upload(self._url, {**upload, "MultipartUpload": parts})
        self._uploads.remove(upload)
        self.purpose = "to give an upload up"
        given_up = self._begin(second)
        self._call("abort_multipart_upload", **given_up)
        self._uploads.remove(given_up)
        self.purpose = "to read a part of an object"
        self._expect(self._client.get(self._url, second, 2, 5) == (b"234", 10))
        self._expect(self._client.get(self._url, second, 10, 11)[0] == b"")
        self._list()
        self.purpose = "to delete an object"
        self._call("delete_object", Key=first)
        self.purpose = "to delete several objects at once, as vacuum does"
        self._delete(second, third)
        self._expect(list(self._listed()) == [])

    def _list(self) -> None:
        self.purpose = "to list objects in pages"
        self._expect(list(self._listed(MaxKeys=2)) == self._keys)
        self.purpose = "to list objects from a name on (StartAfter)"
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

    def _expect(self, is_right: bool, found: str = "it was answered, and not done") -> None:
        if not is_right:
            raise StorageError("STORAGE_UNSUPPORTED", found, fix="Use another store")

    def clean(self) -> None:
        """As far as the store lets us."""
        for upload in self._uploads:
            with contextlib.suppress(StorageError):
                self._call("abort_multipart_upload", **upload)
        for key in self._keys:
            with contextlib.suppress(StorageError):
                self._call("delete_object", Key=key)


# --- s3 dates ----------------------------------------------------------------------------------------
#
# Does this store refuse requests that were signed long ago? Then a PUT cannot take effect late.
#
# S3 refuses what was dated more than 15 minutes before, or after, its own time. So half an hour after it was
# signed, a put will never happen any more. Each store is asked, by a request dated 20 minutes before its
# time.
# Not here: what depends on it (metadata/cleaning.py).
# Sources: RequestTimeTooSkewed in S3's list of error codes; SigV4.


# The date of a request may be 15 minutes ahead of the store, and is good for 15 minutes from then on.
PUT_LIFETIME_MS = 30 * 60_000
_OLD_MS = 20 * 60_000
_REFUSALS = {"RequestTimeTooSkewed", "RequestExpired"}
_TAKEN = {Outcome.MISSING, Outcome.RANGE}
_SIGNATURE = "sparklog-s3v4-old"
_answers: dict[str, bool] = {}


def put_lifetime_ms(client: S3Client, prefix: str) -> int | None:
    """How long a signed put may still take effect; None when the store sets no bound, or does not say."""
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
    """None: that was not the answer. A store that is busy, or denies us for a while, is asked again."""
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
    """SigV4 with a date of our choice; otherwise as its parent's add_auth."""

    date: datetime

    def add_auth(self, request: Any) -> None:
        request.context["timestamp"] = self.date.strftime(SIGV4_TIMESTAMP)
        self._modify_request_before_signing(request)
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(text, request))
