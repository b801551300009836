"""Writes the golden files of the format layer; run once, by hand: existing files are never replaced.

    python tests/golden/make_format.py

See README.md in this folder for what each file holds and which versions made it.
"""

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatchBuilder

from sparklog.format.codec import Codec
from sparklog.format.consumer_offsets import (
    GroupValue,
    OffsetKey,
    OffsetValue,
    StoredMember,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.format.control_batch import ControlMarker, ControlType, encode_control_batch
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.index import encode_offset_entries, encode_time_entries
from sparklog.format.schema import HEADERS_TYPE, RecordColumns

FOLDER = Path(__file__).parent
START_MS = 1_700_000_000_000

# (timestamp, key, value, headers): every shape of record that Kafka allows, and enough repetition to
# compress.
RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (START_MS, b"key", b"value", []),
    (START_MS + 1, None, b"no key", []),
    (START_MS - 86_400_000, b"tombstone, older than the first", None, []),
    (START_MS + 70, b"", b"", [("trace", b"\x00\x01\x02"), ("trace", None), ("", b"")]),
    (START_MS + 2, None, None, []),
    (START_MS + 3, "Schlüssel".encode(), b"x" * 9000, [("größe", b"9000")]),
    *[(START_MS + 10 * row, b"key-%03d" % (row % 7), b"value %d, " % row * 5, []) for row in range(100)],
]

GOLDEN_GROUP = GroupValue(
    protocol_type="consumer",
    generation_id=7,
    protocol="range",
    leader="m1",
    state_timestamp_ms=START_MS,
    members=(
        StoredMember(
            member_id="m1",
            instance_id="i1",
            client_id="c",
            client_host="/10.0.0.1",
            rebalance_timeout_ms=300_000,
            session_timeout_ms=45_000,
            subscription=b"\x00\x01",
            assignment=b"\x02",
        ),
    ),
)


def kafka_python_batch(codec: Codec) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec.value, False, 4711, 3, 100, 1 << 20)
    for offset, (timestamp_ms, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp_ms, key, value, headers)
    return bytes(builder.build())


def sparklog_batch(codec: Codec) -> bytes:
    columns = RecordColumns(
        key=pa.array([record[1] for record in RECORDS], pa.binary()),
        value=pa.array([record[2] for record in RECORDS], pa.binary()),
        timestamp_ms=np.array([record[0] for record in RECORDS], np.int64),
        headers=pa.array(
            [[{"key": key, "value": value} for key, value in record[3]] for record in RECORDS], HEADERS_TYPE
        ),
    )
    options = EncodeOptions(
        codec=codec, producer_id=4711, producer_epoch=3, base_sequence=100, max_batch_bytes=1 << 20
    )
    return encode_batches(columns, options).to_bytes()


def kafka_python_files() -> dict[str, bytes]:
    return {f"batch_{codec.label}_kafka_python.bin": kafka_python_batch(codec) for codec in Codec}


def sparklog_files() -> dict[str, bytes]:
    made = {f"batch_{codec.label}_sparklog.bin": sparklog_batch(codec) for codec in Codec}
    small = RecordColumns(
        key=pa.array([b"k", None], pa.binary()),
        value=pa.array([b"hello", None], pa.binary()),
        timestamp_ms=np.array([START_MS, START_MS + 1], np.int64),
        headers=pa.array([[{"key": "h", "value": b"1"}], None], HEADERS_TYPE),
    )
    made["batch_two_records.bin"] = encode_batches(small, EncodeOptions()).to_bytes()
    marker = ControlMarker(
        type=ControlType.COMMIT,
        coordinator_epoch=5,
        producer_id=4711,
        producer_epoch=3,
        timestamp_ms=START_MS,
        offset=106,
    )
    made["control_commit.bin"] = encode_control_batch(marker).to_bytes()
    made["offset_index.bin"] = encode_offset_entries(np.array([0, 106, 107]), np.array([0, 9872, 9950]))
    made["time_index.bin"] = encode_time_entries(np.array([START_MS, START_MS + 990]), np.array([0, 105]))
    made["consumer_offset_key.bin"] = encode_offset_key(OffsetKey(group="g1", topic="orders", partition=2))
    made["consumer_offset_value.bin"] = encode_offset_value(
        OffsetValue(offset=42, leader_epoch=7, metadata="note", commit_timestamp_ms=START_MS)
    )
    made["consumer_offset_value_v1.bin"] = struct.pack(">hqh4sqq", 1, 42, 4, b"note", START_MS, START_MS + 1)
    made["group_metadata_value.bin"] = encode_group_value(GOLDEN_GROUP)
    return made


if __name__ == "__main__":
    for name, data in (kafka_python_files() | sparklog_files()).items():
        path = FOLDER / name
        if path.exists():
            print(f"kept    {name}")
        else:
            path.write_bytes(data)
            print(f"written {name}, {len(data)} bytes")
