"""Control batches: the COMMIT and ABORT markers of transactions.

Invariants: one marker per batch, never compressed, always flagged transactional and control.
Not here: the writers of markers.
Concurrency: pure functions.
Sources: FORMAT.md#control-batch; Kafka ControlRecordType, EndTransactionMarker; KIP-98.
"""

import enum
import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparklog.errors import UnsupportedVersionError
from sparklog.format.codec import BytesLike
from sparklog.format.decode import decode_bodies, scan_batches
from sparklog.format.encode import BatchList, EncodedBatches, lay_out, prepare_rows
from sparklog.format.record_batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, corrupt

CONTROL_KEY_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("version", "h", "0"),
    ("type", "h", "0 abort, 1 commit"),
)
CONTROL_VALUE_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("version", "h", "0"),
    ("coordinator_epoch", "i", "epoch of the transaction coordinator that decided"),
)
CONTROL_KEY = struct.Struct(">" + "".join(code for _, code, _ in CONTROL_KEY_FIELDS))
CONTROL_VALUE = struct.Struct(">" + "".join(code for _, code, _ in CONTROL_VALUE_FIELDS))
CONTROL_VERSION = 0
_MARKER_BYTES = 64 * 1024  # far above any marker: bounds the read of a damaged batch


class ControlType(enum.IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMarker:
    """The content of a control batch."""

    type: ControlType
    coordinator_epoch: int = 0
    producer_id: int
    producer_epoch: int
    timestamp_ms: int
    offset: int = 0


def encode_control_batch(marker: ControlMarker, *, partition_leader_epoch: int = 0) -> EncodedBatches:
    """Encode one batch with this marker, at marker.offset."""
    key = pa.array([CONTROL_KEY.pack(CONTROL_VERSION, marker.type)], pa.binary())
    value = pa.array([CONTROL_VALUE.pack(CONTROL_VERSION, marker.coordinator_epoch)], pa.binary())
    zero = np.zeros(1, np.int64)
    records = lay_out(prepare_rows(key, value, None, 1), zero, zero)
    output = BatchList()
    header = BatchHeader(
        base_offset=marker.offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        first_timestamp_ms=marker.timestamp_ms,
        max_timestamp_ms=marker.timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        record_count=1,
    )
    output.add(header, records.body(int(records.start[0]), int(records.start[1])))
    return output.finished()


def decode_control_batch(buf: BytesLike, *, where: str) -> ControlMarker:
    """Decode the marker of the only control batch in `buf`.

    Raises: CorruptLogError; UnsupportedVersionError for unknown types (Kafka's own consumers skip those).
    """
    table = scan_batches(buf, where=where)
    if len(table) != 1 or not table.is_control.all() or int(table.record_count[0]) != 1:
        raise corrupt(where, f"{len(table)} batches", "one control batch with one record")
    records = decode_bodies(buf, table, where=where, max_decompressed_bytes=_MARKER_BYTES)
    key, value = records.key[0].as_py(), records.value[0].as_py()
    if key is None or len(key) < CONTROL_KEY.size or value is None or len(value) < CONTROL_VALUE.size:
        raise corrupt(where, "a marker that is too short", f"{CONTROL_KEY.size} + {CONTROL_VALUE.size} bytes")
    # Later versions only append fields (Kafka's rule for these schemas), so the known fields of theirs can be
    # read.
    version, kind = CONTROL_KEY.unpack_from(key)
    _, coordinator_epoch = CONTROL_VALUE.unpack_from(value)
    if version < CONTROL_VERSION or kind not in set(ControlType):
        raise UnsupportedVersionError(
            "UNSUPPORTED_CONTROL_TYPE",
            f"{where}: found a control record of version {version} and type {kind}, expected type 0 or 1",
            fix="Upgrade sparklog",
        )
    return ControlMarker(
        type=ControlType(kind),
        coordinator_epoch=coordinator_epoch,
        producer_id=int(table.producer_id[0]),
        producer_epoch=int(table.producer_epoch[0]),
        timestamp_ms=int(records.timestamp_ms[0]),
        offset=int(records.offset[0]),
    )
