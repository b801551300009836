"""The batches of a byte range, as a table of their headers.

Invariants: a table lists consecutive whole batches, each with a legal header and, unless the caller waives
    it, a matching CRC.
Not here: the records in the batches (decode.py).
Concurrency: pure functions; tables are immutable.
After a crash: scan_valid_prefix returns the end of the last whole batch, and the error after it.
Sources: FORMAT.md#record-batch, FORMAT.md#recovery; Kafka FileLogInputStream, LogSegment.recover.
"""

import dataclasses
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, SparklogError, UnsupportedVersionError
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.record_batch import (
    CODEC_MASK,
    CONTROL_MASK,
    CRC_START,
    HEADER,
    HEADER_FIELDS,
    KNOWN_ATTRIBUTES,
    LENGTH_END,
    MAGIC,
    MAX_OFFSET,
    MIN_BATCH_LENGTH,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    corrupt,
    crc32c,
    header_error,
)

Int64Array = npt.NDArray[np.int64]
_NUMPY_CODES = {"q": ">i8", "i": ">i4", "h": ">i2", "b": "i1", "I": ">u4"}
HEADER_DTYPE = np.dtype([(name, _NUMPY_CODES[code]) for name, code, _ in HEADER_FIELDS])
assert HEADER_DTYPE.itemsize == HEADER.size
_LENGTH_TO_CRC = struct.Struct(">iibI")
_LENGTH_POSITION = LENGTH_END - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTable:
    """One row per batch; int64 columns of equal length.

    Args:
        position: start of the batch in the scanned buffer.
        size: bytes of the whole batch.
        base_offset, last_offset: as stored; the extent's offset_delta is not added.
    """

    position: Int64Array
    size: Int64Array
    base_offset: Int64Array
    last_offset: Int64Array
    record_count: Int64Array
    attributes: Int64Array
    first_timestamp_ms: Int64Array
    max_timestamp_ms: Int64Array
    producer_id: Int64Array
    producer_epoch: Int64Array
    base_sequence: Int64Array
    partition_leader_epoch: Int64Array

    def __len__(self) -> int:
        return len(self.position)

    @property
    def codec(self) -> Int64Array:
        """Codec ids."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> Int64Array:
        """TimestampType values."""
        return (self.attributes & TIMESTAMP_TYPE_MASK) // TIMESTAMP_TYPE_MASK

    @property
    def is_control(self) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = (self.attributes & CONTROL_MASK) != 0
        return mask

    @property
    def is_transactional(self) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = (self.attributes & TRANSACTIONAL_MASK) != 0
        return mask

    def select(self, which: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> "BatchTable":
        """Select batches: a slice, a mask, or indices."""
        return BatchTable(**{name: getattr(self, name)[which] for name in _COLUMNS})

    def shifted(self, position_delta: int) -> "BatchTable":
        """Return the same batches, for scanned bytes at `position_delta` of a larger buffer."""
        return dataclasses.replace(self, position=self.position + position_delta)

    @staticmethod
    def concat(tables: Sequence["BatchTable"]) -> "BatchTable":
        """Concatenate tables over one buffer (see `shifted`)."""
        if not tables:
            return _table(b"", [])[0]
        return BatchTable(
            **{name: np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS}
        )


_COLUMNS = tuple(field.name for field in dataclasses.fields(BatchTable))


def scan_batches(buf: BytesLike, *, where: str, position: int = 0, verify_crc: bool = True) -> BatchTable:
    """List the batches in `buf`, which must hold whole batches and nothing else.

    Args:
        where: names the file in errors.
        position: of buf[0] in that file, for errors only; the table counts from buf[0].
    Raises: CorruptLogError, UnsupportedVersionError, with `where@position` of the offending batch.
    Cost: a Python step per batch, and the CRC over all bytes.
    """
    table, _, error = scan_valid_prefix(buf, where=where, position=position, verify_crc=verify_crc)
    if error is not None:
        raise error
    return table


def scan_valid_prefix(
    buf: BytesLike, *, where: str, position: int = 0, verify_crc: bool = True
) -> tuple[BatchTable, int, CorruptLogError | UnsupportedVersionError | None]:
    """List the batches up to the first that is truncated, damaged or unknown.

    Returns: the table, the bytes that its batches cover, and the error of the next one (None at the
        end).
    """
    view = memoryview(buf).cast("B")
    end, at = len(view), 0
    starts: list[int] = []
    error: SparklogError | None = None
    while at < end:
        if at + HEADER.size > end:
            error = corrupt(
                f"{where}@{position + at}", f"{end - at} bytes", f"a header of {HEADER.size} bytes"
            )
            break
        length, _, magic, crc = _LENGTH_TO_CRC.unpack_from(view, at + _LENGTH_POSITION)
        size = LENGTH_END + length
        is_whole = magic == MAGIC and length >= MIN_BATCH_LENGTH and at + size <= end
        if not is_whole or (verify_crc and crc32c(view[at + CRC_START : at + size]) != crc):
            error = _batch_error(view, at, f"{where}@{position + at}")
            break
        starts.append(at)
        at += size
    table, bad = _table(view, starts)
    if bad is not None:
        at = starts[bad]
        error = _batch_error(view, at, f"{where}@{position + at}")
        table = table.select(slice(0, bad))
    assert error is None or isinstance(error, CorruptLogError | UnsupportedVersionError)
    return table, at, error


def _batch_error(view: memoryview, at: int, where: str) -> SparklogError:
    """Return the error of the batch at `at`, which has one."""
    header = BatchHeader(*HEADER.unpack_from(view, at))
    error = header_error(header, where)
    if error is not None:
        return error
    if at + header.size > len(view):
        return corrupt(where, f"{len(view) - at} bytes", f"a batch of {header.size} bytes")
    crc = crc32c(view[at + CRC_START : at + header.size])
    return corrupt(where, f"CRC-32C {crc:#010x}", f"{header.crc:#010x}")


def _table(view: BytesLike, starts: list[int]) -> tuple[BatchTable, int | None]:
    """Return the table of these batches, and the index of the first with an illegal header, if any."""
    headers = np.frombuffer(b"".join([view[at : at + HEADER.size] for at in starts]), HEADER_DTYPE)
    column = {name: headers[name].astype(np.int64) for name, _, _ in HEADER_FIELDS}
    attributes, count, last = column["attributes"], column["record_count"], column["last_offset_delta"]
    wrong = (attributes & ~KNOWN_ATTRIBUTES) != 0
    wrong |= (attributes & CODEC_MASK) > max(Codec)
    wrong |= (last < 0) | (column["base_offset"] < 0) | (column["base_offset"] > MAX_OFFSET - last)
    wrong |= (count < 0) | (count > last + 1)
    wrong |= (count == 0) & (column["batch_length"] != MIN_BATCH_LENGTH)
    bad = int(np.argmax(wrong)) if wrong.any() else None
    table = BatchTable(
        position=np.array(starts, np.int64),
        size=column["batch_length"] + LENGTH_END,
        last_offset=column["base_offset"] + column["last_offset_delta"],
        **{name: column[name] for name in _COLUMNS if name in column},
    )
    return table, bad
