"""Multipart uploads that nobody is going to finish: they cost money until they are aborted.

Only segments are uploaded in parts (s3_append.py), and their indexes are of their names. A root may share its
bucket, or its prefix, with whatever else there is: an upload whose key is none of these is somebody's.
Invariants: an upload is aborted only if its key is of a form that FORMAT.md has for segments. What ended
    since it was listed is no error.
Not here: how old is old (maintenance/sweep.py).
    Whether its writer is at work cannot be seen: a task sends a part when it has gathered one, which may take
    days, and completes the upload at its end. So it is left as long as a segment that nothing refers to.
Concurrency: any; beside writers, whose uploads are younger.
After a crash: listed again.
Sources: FORMAT.md#layout-of-a-root; S3 ListMultipartUploads, AbortMultipartUpload.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from sparklog.errors import NotFoundError
from sparklog.storage.names import TEMPORARY_DIRECTORY
from sparklog.storage.s3_answers import WrongAnswerError
from sparklog.storage.s3_client import S3Client
from sparklog.storage.s3_errors import storage_error

# As log/names.py, of which this layer knows nothing; a test holds them against each other.
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
