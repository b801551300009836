"""Segments that a reader does not get.

One that is not there was merged or has expired since the reader looked, or is lost: who can look again knows
which (partition_reader.py). One that is there, and that the storage does not give, is on a bad disk, in an
archive, or nobody's to read; or the storage is out of reach altogether.
"""

from typing import Final

from sparklog.errors import DataLossError, SparklogError, StorageError
from sparklog.log.span import Span


class SegmentMissingError(DataLossError):
    """Bytes that a reader wants are in a segment that is not there."""

    segment: str = ""  # not known any more once it was pickled


class UnreadableSegmentError(StorageError):
    """The storage does not give the bytes of a segment; its code says why."""

    segment: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"segment": self.segment})


def took_patience(error: SparklogError) -> bool:
    """Was the storage asked again and again, until its time was up? Of others it tells at once."""
    return error.code == "STORE_UNAVAILABLE"


# Of what no segment is to blame for, but this process.
_OURS: Final = frozenset({"TOO_MANY_OPEN_FILES", "FILE_CLOSED"})


def unreadable_segment(span: Span, error: StorageError) -> StorageError:
    """The error for bytes that could not be read for this reason: as it is, if that lies with us."""
    if error.code in _OURS:
        return error
    unreadable = UnreadableSegmentError(error.code, error.message, fix=error.fix)
    unreadable.segment = span.segment
    return unreadable


def missing_segment(span: Span) -> SegmentMissingError:
    """The error for bytes that are not there."""
    error = SegmentMissingError(
        "SEGMENT_MISSING",
        f"{span.where}@{span.position}: found no such file, expected {span.size} bytes of batches",
        fix="restore the file from a copy; if it was merged or has expired meanwhile, read again",
    )
    error.segment = span.segment
    return error
