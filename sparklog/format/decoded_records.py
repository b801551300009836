"""Decoded records as columns.

Invariants: columns have equal length, offsets ascend within a batch, and all memory is owned by the columns.
Not here: decoding (decode.py).
Concurrency: immutable values.
Sources: Spark's Kafka source schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.byte_views import Int64Array
from sparklog.format.record_batch import MAX_INT32
from sparklog.format.schema import HEADERS_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecords:
    """Records as columns, in the order of their batches.

    Args:
        offset: absolute. Gaps are legal.
        timestamp_type: TimestampType of each record, as Spark's int32.
        key, value: pa.binary(), nullable.
        headers: list<struct<key: string, value: binary>>, null where a record has none; None unless asked
            for.
    """

    offset: Int64Array
    timestamp_ms: Int64Array
    timestamp_type: npt.NDArray[np.int32]
    key: pa.Array
    value: pa.Array
    headers: pa.Array | None

    @property
    def num_rows(self) -> int:
        return len(self.offset)

    def slice(self, start: int, end: int) -> "DecodedRecords":
        """Rows start <= row < end, without a copy."""
        start, end, _ = slice(start, end).indices(self.num_rows)
        length = max(0, end - start)
        return DecodedRecords(
            offset=self.offset[start : start + length],
            timestamp_ms=self.timestamp_ms[start : start + length],
            timestamp_type=self.timestamp_type[start : start + length],
            key=self.key.slice(start, length),
            value=self.value.slice(start, length),
            headers=None if self.headers is None else self.headers.slice(start, length),
        )


def join_records(parts: Sequence[DecodedRecords], include_headers: bool) -> DecodedRecords:
    """One after the other; several parts are copied."""
    if not parts:
        return no_records(include_headers)
    if len(parts) == 1:
        return parts[0]
    if sum(part.value.nbytes + part.key.nbytes for part in parts) > MAX_INT32:
        raise read_too_large()
    return DecodedRecords(
        offset=np.concatenate([part.offset for part in parts]),
        timestamp_ms=np.concatenate([part.timestamp_ms for part in parts]),
        timestamp_type=np.concatenate([part.timestamp_type for part in parts]),
        key=pa.concat_arrays([part.key for part in parts]),
        value=pa.concat_arrays([part.value for part in parts]),
        headers=pa.concat_arrays([part.headers for part in parts]) if include_headers else None,
    )


def read_too_large() -> InvalidRequestError:
    """More bytes than a binary column with 32-bit offsets can hold."""
    return InvalidRequestError(
        "READ_TOO_LARGE",
        f"one read: found more than {MAX_INT32} bytes of batches, expected at most that",
        fix="read fewer batches at once",
    )


def no_records(include_headers: bool) -> DecodedRecords:
    """Columns without rows."""
    none = np.zeros(0, np.int64)
    nothing = pa.array([], pa.binary())
    return DecodedRecords(
        offset=none,
        timestamp_ms=none,
        timestamp_type=np.zeros(0, np.int32),
        key=nothing,
        value=nothing,
        headers=pa.array([], HEADERS_TYPE) if include_headers else None,
    )
