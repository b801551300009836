"""A segment that is not there: merged or expired since a reader looked, or lost. Who can look again knows
which (partition_reader.py).
"""

from sparklog.errors import DataLossError
from sparklog.log.span import Span


class SegmentMissingError(DataLossError):
    """Bytes that a reader wants are in a segment that is not there."""

    segment: str = ""  # not known any more once it was pickled


def missing_segment(span: Span) -> SegmentMissingError:
    """The error for bytes that are not there."""
    error = SegmentMissingError(
        "SEGMENT_MISSING",
        f"{span.where}@{span.position}: found no such file, expected {span.size} bytes of batches",
        fix="restore the file from a copy; if it was merged or has expired meanwhile, read again",
    )
    error.segment = span.segment
    return error
