"""Answers of a store, checked before anything relies on them.

Invariants:
    - bytes are handed on only if the answer names exactly their range; so a body cut short, a page that some
      machine on the way made up, and an error sent with status 200 are failures, not data;
    - an answer has every field that its callers read (`validate_answer`): none of them meets a KeyError;
    - a listing in pages ends, or fails: each page begins behind the one before it (`PageOrder`).
What is not checked: ETags. Encrypted objects have other ones than their MD5.
Sources: RFC 9110, sections 14 and 15.5.17; S3's API reference.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

MAX_EMPTY_PAGES = 1000  # in a row; stores may give some, where much was deleted
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class WrongAnswerError(OSError):
    """An answer that is not one to the question: a body cut short, another range, a missing field."""


def read_range(answer: dict[str, Any], position: int, end: int | None) -> tuple[bytes, int]:
    """(bytes, the object's size) of an answer whose body has been read.

    Raises:
        WrongAnswerError: they are not the bytes [position, end).
    """
    data: bytes = answer["Body"]
    match = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange", "")))
    if match is None:
        if not data and not position and answer.get("ETag"):  # some stores give no range of an empty object
            return b"", 0
        raise WrongAnswerError(f"{len(data)} bytes that are not the range asked for")
    first, last, size = (int(text) for text in match.groups())
    expected_last = min(size if end is None else end, size) - 1
    if (first, last, len(data)) != (position, expected_last, last - first + 1):
        raise WrongAnswerError(f"{len(data)} bytes for {match[0]}, expected {position}-{expected_last}")
    return data, size


def size_of_range_error(error: ClientError, position: int) -> int:
    """Return the object's size, from the answer that a range lies past its end; 0 if it does not say.

    Raises:
        WrongAnswerError: the range begins within the object.
    """
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    text = str(headers.get("content-range", "")).rpartition("/")[2]
    size = int(text) if text.isascii() and text.isdecimal() else 0
    if size > position:
        raise WrongAnswerError(f"no bytes from {position} on, of an object of {size} bytes")
    return size


def validate_answer(operation: str, arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Raise WrongAnswerError unless the answer has what an answer to this operation must have."""
    check = _CHECKS.get(operation)
    if check is not None:
        check(arguments, answer)


def _validate_listing(arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    _validate_truncation(answer, "NextContinuationToken")
    prefix = arguments.get("Prefix", "")
    after = "" if "ContinuationToken" in arguments else arguments.get("StartAfter", "")
    for entry in answer.get("Contents", ()):
        key, size = entry.get("Key"), entry.get("Size")
        if not isinstance(key, str) or not key.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the key {key!r}")
        if after and key <= after and _as_directories(key) <= _as_directories(after):
            raise WrongAnswerError(f"a listing that starts after {after!r} with the key {key!r}")
        if not isinstance(size, int) or size < 0 or not isinstance(entry.get("LastModified"), datetime):
            raise WrongAnswerError(f"a listing without a size or a date of the key {key!r}")
    for entry in answer.get("CommonPrefixes", ()):
        directory = entry.get("Prefix")
        if not isinstance(directory, str) or not directory.startswith(prefix):
            raise WrongAnswerError(f"a listing of {prefix!r} with the directory {directory!r}")


def _validate_uploads(_arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    _validate_truncation(answer, "NextKeyMarker", "NextUploadIdMarker")
    for entry in answer.get("Uploads", ()):
        if not (entry.get("Key") and entry.get("UploadId") and isinstance(entry.get("Initiated"), datetime)):
            raise WrongAnswerError("a listing of uploads without the key, the id or the date of one")


def _validate_truncation(answer: Mapping[str, Any], *tokens: str) -> None:
    """A page of something else, such as a login page in XHTML, would be an empty listing otherwise."""
    if not isinstance(answer.get("IsTruncated"), bool):
        raise WrongAnswerError("a listing that does not say whether it is complete (IsTruncated)")
    if answer["IsTruncated"]:
        for token in tokens:
            if not answer.get(token):
                raise WrongAnswerError(f"an incomplete listing without {token}")


def _requires(field: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    def check(_arguments: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        if not answer.get(field):
            raise WrongAnswerError(f"an answer without {field}, which every S3 gives")

    return check


_CHECKS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], None]] = {
    "put_object": _requires("ETag"),
    "upload_part": _requires("ETag"),
    "create_multipart_upload": _requires("UploadId"),
    "complete_multipart_upload": _requires("ETag"),
    "list_objects_v2": _validate_listing,
    "list_multipart_uploads": _validate_uploads,
}


class PageOrder:
    """Checks that the pages of one listing ascend, so that reading them comes to an end.

    Two orders are known: S3's, of the keys' bytes, and that of stores which keep directories, in which "a/b"
    is before "a-b". A listing must keep to either, from its first page to its last.
    """

    def __init__(self) -> None:
        self._last = {_as_bytes: "", _as_directories: ""}
        self._empty = 0

    def add(self, names: list[str]) -> None:
        """The next page's.

        Raises:
            WrongAnswerError: it is not behind the last one.
        """
        self._empty = 0 if names else self._empty + 1
        if self._empty > MAX_EMPTY_PAGES:
            raise WrongAnswerError(f"{self._empty} pages of a listing without a name")
        for order in list(self._last):
            ordered = [self._last[order], *map(order, names)]
            if all(one < next_one for one, next_one in itertools.pairwise(ordered)):
                self._last[order] = ordered[-1]
            else:
                del self._last[order]
        if not self._last:
            raise WrongAnswerError(
                f"a page of a listing, from {names[0]!r} to {names[-1]!r}, that is not in order, or not "
                "behind the page before it"
            )


def _as_bytes(name: str) -> str:
    return name


def _as_directories(name: str) -> str:
    return name.replace("/", "\0")
