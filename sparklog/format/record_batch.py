"""The 61-byte header of Kafka's record batch, magic 2, and its attributes.

Invariants: the CRC-32C covers everything from `attributes` on, so base_offset, batch_length and
    partition_leader_epoch can be set without recomputing it; unknown magic, codec or attribute bits are
    refused.
Not here: the records after the header (encode.py, decode.py).
Concurrency: pure functions, immutable values.
Sources: FORMAT.md#record-batch; Kafka DefaultRecordBatch; KIP-98 (idempotence, control batches), KIP-534
    (delete horizon).
"""

import dataclasses
import struct
from dataclasses import dataclass

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, SparklogError, UnsupportedVersionError
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.schema import TimestampType

HEADER_FIELDS: tuple[tuple[str, str, str], ...] = (  # name, struct code, meaning; all big-endian
    ("base_offset", "q", "offset of the first record; relative to the extent's offset_delta"),
    ("batch_length", "i", "bytes after this field"),
    ("partition_leader_epoch", "i", "epoch of the leader that appended the batch, -1 if unknown"),
    ("magic", "b", "2"),
    ("crc", "I", "CRC-32C of everything after this field"),
    ("attributes", "h", "codec, timestamp type and flags"),
    ("last_offset_delta", "i", "offset of the last record - base_offset; kept by compaction"),
    ("first_timestamp_ms", "q", "records' timestamps are relative to it; delete horizon if flagged"),
    ("max_timestamp_ms", "q", "largest timestamp; every record's timestamp with log append time"),
    ("producer_id", "q", "idempotent producer, or -1"),
    ("producer_epoch", "h", "epoch of that producer, or -1"),
    ("base_sequence", "i", "sequence number of the first record, or -1"),
    ("record_count", "i", "number of records in the batch"),
)
HEADER = struct.Struct(">" + "".join(code for _, code, _ in HEADER_FIELDS))
assert HEADER.size == 61

ATTRIBUTE_FIELDS: tuple[tuple[str, int, str], ...] = (  # name, bit mask, meaning
    ("codec", 0x07, "0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"),
    ("timestamp_type", 0x08, "0 create time, 1 log append time"),
    ("is_transactional", 0x10, "written in a transaction, which is committed if an extent has the batch"),
    ("is_control", 0x20, "holds a transaction marker, not a record"),
    ("has_delete_horizon", 0x40, "first_timestamp_ms is the time from which tombstones may go"),
)
CODEC_MASK, TIMESTAMP_TYPE_MASK, TRANSACTIONAL_MASK, CONTROL_MASK, DELETE_HORIZON_MASK = (
    mask for _, mask, _ in ATTRIBUTE_FIELDS
)
KNOWN_ATTRIBUTES = CODEC_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK | DELETE_HORIZON_MASK

MAGIC = 2
MAGIC_POSITION = struct.calcsize(">qii")
CRC_POSITION = struct.calcsize(">qiib")
CRC_START = struct.calcsize(">qiibI")  # the first byte that the CRC covers
LENGTH_END = struct.calcsize(">qi")  # batch_length counts from here
MIN_BATCH_LENGTH = HEADER.size - LENGTH_END

NO_TIMESTAMP_MS = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
MAX_INT32 = 2**31 - 1
MAX_OFFSET = 2**63 - 1

_CRC = struct.Struct(">I")
_BASE_OFFSET, _LEADER_EPOCH = struct.Struct(">q"), struct.Struct(">i")
_OFFSET_BYTES = np.arange(8)
_EPOCH_BYTES = np.arange(LENGTH_END, MAGIC_POSITION)


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch's header, in the order of HEADER_FIELDS."""

    base_offset: int = 0
    batch_length: int = MIN_BATCH_LENGTH
    partition_leader_epoch: int = 0
    magic: int = MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    first_timestamp_ms: int = NO_TIMESTAMP_MS
    max_timestamp_ms: int = NO_TIMESTAMP_MS
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    record_count: int = 0

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & TIMESTAMP_TYPE_MASK))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_MASK)


assert tuple(field.name for field in dataclasses.fields(BatchHeader)) == tuple(
    name for name, _, _ in HEADER_FIELDS
)


def crc32c(data: BytesLike, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continuing from `crc`."""
    return int(_crc32c.crc32c(data, crc))


def encode_header(header: BatchHeader, body: BytesLike) -> bytes:
    """Return the 61 bytes before `body`, with batch_length and crc computed from it."""
    packed = bytearray(
        HEADER.pack(
            header.base_offset,
            MIN_BATCH_LENGTH + len(body),
            header.partition_leader_epoch,
            MAGIC,
            0,
            header.attributes,
            header.last_offset_delta,
            header.first_timestamp_ms,
            header.max_timestamp_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        )
    )
    crc = crc32c(body, crc32c(memoryview(packed)[CRC_START:]))
    _CRC.pack_into(packed, CRC_POSITION, crc)
    return bytes(packed)


def parse_header(buf: BytesLike, position: int, where: str) -> BatchHeader:
    """Read and check the header at `position` of `buf`; the batch itself may be longer than `buf`.

    Raises: CorruptLogError CORRUPT_BATCH, UnsupportedVersionError UNSUPPORTED_MAGIC / UNSUPPORTED_CODEC /
        UNSUPPORTED_ATTRIBUTES; messages are prefixed with `where@position`.
    """
    if position < 0 or position + HEADER.size > len(buf):
        raise corrupt(
            f"{where}@{position}", f"{max(0, len(buf) - position)} bytes", f"a header of {HEADER.size} bytes"
        )
    header = BatchHeader(*HEADER.unpack_from(buf, position))
    error = header_error(header, f"{where}@{position}")
    if error is not None:
        raise error
    return header


def header_error(header: BatchHeader, where: str) -> SparklogError | None:
    """Return the error of a header by itself, or None."""
    if header.magic != MAGIC:
        return UnsupportedVersionError(
            "UNSUPPORTED_MAGIC",
            f"{where}: found magic {header.magic}, expected {MAGIC}",
            fix="Convert old message sets with Kafka first; if there are none, the bytes are damaged",
        )
    if header.batch_length < MIN_BATCH_LENGTH:
        return corrupt(where, f"batch_length {header.batch_length}", f"at least {MIN_BATCH_LENGTH}")
    if header.attributes & ~KNOWN_ATTRIBUTES:
        return UnsupportedVersionError(
            "UNSUPPORTED_ATTRIBUTES",
            f"{where}: found attributes {header.attributes & 0xFFFF:#06x}, "
            f"expected only {KNOWN_ATTRIBUTES:#06x}",
            fix="Upgrade sparklog; if nothing newer wrote here, the bytes are damaged",
        )
    if header.attributes & CODEC_MASK not in _CODEC_IDS:
        return UnsupportedVersionError(
            "UNSUPPORTED_CODEC",
            f"{where}: found codec {header.attributes & CODEC_MASK}, expected one of 0 to {max(_CODEC_IDS)}",
            fix="Upgrade sparklog; if nothing newer wrote here, the bytes are damaged",
        )
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.last_offset > MAX_OFFSET:
        return corrupt(
            where,
            f"offsets {header.base_offset} + {header.last_offset_delta}",
            f"offsets within 0 to {MAX_OFFSET}",
        )
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return corrupt(where, f"record_count {header.record_count}", f"0 to {header.last_offset_delta + 1}")
    if header.record_count == 0 and header.batch_length != MIN_BATCH_LENGTH:
        return corrupt(where, f"{header.batch_length - MIN_BATCH_LENGTH} bytes without records", "none")
    return None


_CODEC_IDS = frozenset(codec.value for codec in Codec)


def validate_batch(buf: BytesLike, position: int, where: str, *, verify_crc: bool = True) -> BatchHeader:
    """Return the header of the whole batch at `position`; raises as parse_header, and on a bad CRC."""
    header = parse_header(buf, position, where)
    if position + header.size > len(buf):
        raise corrupt(
            f"{where}@{position}", f"{len(buf) - position} bytes", f"a batch of {header.size} bytes"
        )
    if verify_crc:
        found = crc32c(memoryview(buf)[position + CRC_START : position + header.size])
        if found != header.crc:
            raise corrupt(f"{where}@{position}", f"CRC-32C {found:#010x}", f"{header.crc:#010x}")
    return header


def corrupt(where: str, found: str, expected: str) -> CorruptLogError:
    """The error for a batch or record that breaks FORMAT.md."""
    return CorruptLogError(
        "CORRUPT_BATCH",
        f"{where}: found {found}, expected {expected}",
        fix="See FORMAT.md#recovery; restore the file from a copy, or list the intact batches with dump-log",
    )


def set_base_offsets(
    data: memoryview,
    position: npt.NDArray[np.int64],
    base_offset: npt.NDArray[np.int64],
    *,
    leader_epoch: int | None,
) -> None:
    """Sequence stored batches in place: base offset, and leader epoch unless None. The CRC covers neither.

    Each batch's first 8 bytes, and 4 more after its length, are written; many at once by fancy indexing.
    """
    target = np.frombuffer(data, np.uint8)
    target[position[:, None] + _OFFSET_BYTES] = (
        base_offset.astype(">i8").view(np.uint8).reshape(len(base_offset), 8)
    )
    if leader_epoch is not None:
        target[position[:, None] + _EPOCH_BYTES] = np.frombuffer(struct.pack(">i", leader_epoch), np.uint8)


def set_base_offset(data: memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """As set_base_offsets, for one batch."""
    _BASE_OFFSET.pack_into(data, position, base_offset)
    _LEADER_EPOCH.pack_into(data, position + LENGTH_END, leader_epoch)


def whole_batches_bytes(data: memoryview) -> int:
    """Return the end of the last batch that is whole in `data`, by the batches' lengths alone."""
    position, size = 0, len(data)
    while position + LENGTH_END <= size:
        length = int.from_bytes(data[position + 8 : position + LENGTH_END], "big", signed=True)
        end = position + LENGTH_END + length
        if length <= 0 or end > size:
            break
        position = end
    return position
