"""Rules of produced record batches, in addition to those of stored ones.

Stored batches may have lost records to compaction and may be control batches; new ones may not.

Invariants: a batch that passes can be appended by setting its base offset only.
Not here: duplicate or out-of-order sequences (they need the producer's state), timestamps against the
    clock, limits and settings of a topic (sparklog_server/publish/produced_batches.py).
Concurrency: pure functions.
Sources: FORMAT.md#record-batch (Writer MUST); Kafka LogValidator, DefaultRecordBatch.ensureValid.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog.format.byte_views import Int64Array
from sparklog.format.codec import BytesLike, Reserve, decompress
from sparklog.format.decode import DEFAULT_MAX_DECOMPRESSED_BYTES
from sparklog.format.record_batch import (
    HEADER,
    NO_PRODUCER_ID,
    BatchHeader,
    corrupt,
)
from sparklog.format.records import MIN_RECORD_BYTES, BadRecordError, inspect_body

# Of one batch. Kafka has no such bound; here each record costs 9 bytes during the check, and a few bytes
# can claim to be thousands of records.
MAX_RECORDS = 1_000_000
_RECORD_BYTES = 9
_INT64 = np.iinfo(np.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InspectedRecords:
    """The inspected records of a whole, legal batch.

    Fields:
        body: the records, uncompressed.
        min_timestamp_ms, max_timestamp_ms: of the records, as the producer made them.
        timestamp_delta: per record, to be added to first_timestamp_ms.
        keyless: indices of the records without a key.
    """

    body: BytesLike
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_delta: Int64Array
    keyless: npt.NDArray[np.intp]


def validate_produced_header(header: BatchHeader, *, where: str) -> None:
    """Refuse a batch that no producer may write; inspect_records checks the records inside.

    Raises: InvalidRequestError INVALID_BATCH for the first rule that it breaks.
    """
    spanned = header.last_offset_delta + 1
    if header.record_count < 1:
        raise _invalid(where, f"record_count {header.record_count}, expected at least 1")
    if header.record_count != spanned:
        raise _invalid(where, f"last_offset_delta + 1 of {spanned}, expected record_count")
    if header.is_control:
        raise _invalid(where, f"a control batch (attributes {header.attributes}), expected records")
    if header.producer_id > NO_PRODUCER_ID:
        if header.producer_epoch < 0:
            raise _invalid(where, f"producer_epoch {header.producer_epoch}, expected 0 or more")
        if header.base_sequence < 0:
            raise _invalid(where, f"base_sequence {header.base_sequence}, expected 0 or more")
    elif header.is_transactional:
        raise _invalid(where, f"producer_id {header.producer_id} in a transaction, expected 0 or more")


def inspect_records(
    batch: BytesLike,
    header: BatchHeader,
    *,
    where: str,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    reserve: Reserve | None = None,
) -> InspectedRecords:
    """Check every record of one batch whose header passed `validate_produced_header`.

    Args:
        batch: the whole batch, with its header; its CRC is not checked.
        reserve: called before memory is allocated; each call replaces the one before.
    Raises: CorruptLogError CORRUPT_BATCH, BATCH_TOO_LARGE.
    """
    view = memoryview(batch)
    columns_bytes = _RECORD_BYTES * min(header.record_count, MAX_RECORDS)
    body = decompress(
        header.codec,
        view[HEADER.size :],
        max_bytes=max_decompressed_bytes,
        where=where,
        reserve=None if reserve is None else lambda size: reserve(size + columns_bytes),
    )
    if header.record_count * MIN_RECORD_BYTES > len(body):
        found = f"{header.record_count} records in {len(body)} bytes"
        raise corrupt(where, found, f"at least {MIN_RECORD_BYTES} bytes for each")
    if header.record_count > MAX_RECORDS:
        raise _too_many(where, header.record_count)
    try:
        deltas, keyless = inspect_body(body, header.record_count)
    except BadRecordError as error:
        raise corrupt(f"{where}, record {error.row}", error.found, error.expected) from None
    lowest, highest = _range(header.first_timestamp_ms, deltas)
    return InspectedRecords(
        body=body,
        min_timestamp_ms=lowest,
        max_timestamp_ms=highest,
        timestamp_delta=deltas,
        keyless=keyless,
    )


def _too_many(where: str, count: int) -> CorruptLogError:
    return CorruptLogError(
        "BATCH_TOO_LARGE",
        f"{where}: found a record batch of {count} records, expected at most {MAX_RECORDS}",
        fix="send smaller batches (batch.size)",
    )


def _range(first_timestamp_ms: int, deltas: Int64Array) -> tuple[int, int]:
    """Return the smallest and largest timestamp in wrapping int64, as Java and every reader add them.

    1. a batch has first timestamp -1, and deltas of -2**63 and 0;
    2. the smallest delta makes the largest timestamp: -1 - 2**63 is 2**63 - 1;
    3. so the extremes are those of the sums; adding to the smallest and largest delta would give -1 and -1.
    """
    lowest, highest = first_timestamp_ms + int(deltas.min()), first_timestamp_ms + int(deltas.max())
    if _INT64.min <= lowest and highest <= _INT64.max:
        return lowest, highest
    timestamps = deltas + np.int64(first_timestamp_ms)
    return int(timestamps.min()), int(timestamps.max())


def _invalid(where: str, found: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_BATCH", f"{where}: found {found}", fix="let a Kafka client build the batch"
    )
