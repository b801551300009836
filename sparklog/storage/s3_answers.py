"""Answers to ranged GETs, checked: are these the bytes that were asked for?

Invariants: bytes are handed on only if the answer names exactly their range; so a body cut short, a page
    that some machine on the way made up, and an error sent with status 200 are failures, not data.
Sources: RFC 9110, sections 14 and 15.5.17.
"""

import re
from typing import Any

from botocore.exceptions import ClientError

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class WrongAnswerError(OSError):
    """An answer that is not one to the question: a body cut short, another range, no ETag."""


def read_range(answer: dict[str, Any], position: int, end: int | None) -> tuple[bytes, int]:
    """(bytes, the object's size) of an answer whose body has been read.

    Raises:
        WrongAnswerError: they are not the bytes [position, end).
    """
    data: bytes = answer["Body"]
    match = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange", "")))
    if match is None:
        if not data and not position:  # some stores give no range of an empty object
            return b"", 0
        raise WrongAnswerError(f"{len(data)} bytes that are not the range asked for")
    first, last, size = (int(text) for text in match.groups())
    expected_last = min(size if end is None else end, size) - 1
    if (first, last, len(data)) != (position, expected_last, last - first + 1):
        raise WrongAnswerError(f"{len(data)} bytes for {match[0]}, expected {position}-{expected_last}")
    return data, size


def size_of_range_error(error: ClientError) -> int:
    """The object's size, as told by the answer that a range lies past its end; 0 if it does not tell."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    size = str(headers.get("content-range", "")).rpartition("/")[2]
    return int(size) if size.isdecimal() else 0
