"""An extent: consecutive batches of one partition in a segment, with and without their offsets.

Invariants: why_illegal_extent is the one list of bounds, for our own plans and for bytes from disk alike.
Not here: the order of a partition's extents (extents.py), many of them in little memory (extent_list.py).
Sources: FORMAT.md#segments-and-extents.
"""

import msgspec

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.numbers import MAX_OFFSET, Int64
from sparklog.storage.names import validate_name

NO_PRODUCER_ID = -1
_MIN_BATCH_BYTES = 61  # a record batch's header


class DraftExtent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Durable batches of one partition that have no offsets yet: in the segment they count from 0."""

    topic_id: str
    partition: Int64
    segment: str  # store name of the .log file
    position: Int64
    size: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1


class Extent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A byte range of a segment that holds consecutive batches of one partition.

    record_count is the number of offsets spanned, also where compaction left gaps. A record's offset is
    the stored one plus offset_delta.
    """

    topic_id: str
    partition: Int64
    segment: str
    position: Int64
    size: Int64
    base_offset: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    offset_delta: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.record_count


def why_illegal_extent(extent: Extent) -> str | None:
    """Bounds of every field, and whether they fit together."""
    try:
        validate_name(extent.segment)
    except InvalidRequestError as error:
        return error.message
    if extent.position < 0 or extent.position > MAX_OFFSET - extent.size:
        return f"position {extent.position} is out of range"
    if extent.size < _MIN_BATCH_BYTES:
        return f"size {extent.size} is below {_MIN_BATCH_BYTES}, the smallest record batch"
    if extent.base_offset < 0:
        return f"base_offset {extent.base_offset} is negative"
    if not 1 <= extent.record_count <= MAX_OFFSET - extent.base_offset:
        return f"record_count {extent.record_count} is out of range"
    if not -1 <= extent.max_timestamp_ms <= MAX_OFFSET:
        return f"max_timestamp_ms {extent.max_timestamp_ms} is out of range"
    if not -extent.base_offset <= extent.offset_delta <= extent.base_offset:
        return f"offset_delta {extent.offset_delta} does not fit base_offset {extent.base_offset}"
    return _why_illegal_producer(extent)


def _why_illegal_producer(extent: Extent) -> str | None:
    if extent.producer_id == NO_PRODUCER_ID:
        if extent.producer_epoch != -1 or extent.base_sequence != -1:
            return "a producer epoch or sequence without a producer id"
        return None
    if not 0 <= extent.producer_id <= MAX_OFFSET:
        return f"producer_id {extent.producer_id} is out of range"
    if not 0 <= extent.producer_epoch < 1 << 15:
        return f"producer_epoch {extent.producer_epoch} is out of range"
    if not 0 <= extent.base_sequence < 1 << 31:
        return f"base_sequence {extent.base_sequence} is out of range"
    return None
