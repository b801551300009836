"""kafka-python as the oracle of the batch format: same bytes, and each reads what the other wrote.

For lz4 and zstd kafka-python needs the packages lz4 and zstandard; those codecs are skipped without them.
"""

import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.codec import Codec
from sparklog.format.control_batch import ControlMarker, ControlType, encode_control_batch
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import HEADERS_TYPE, RecordColumns

START_MS = 1_700_000_000_000
NEEDED = {Codec.SNAPPY: "snappy", Codec.LZ4: "lz4", Codec.ZSTD: "zstandard"}


class Row(NamedTuple):
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@pytest.fixture(scope="module")
def kafka_python() -> SimpleNamespace:
    """The parts of kafka-python that read and write batches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of importlib, when kafka is imported
        default = pytest.importorskip("kafka.record.default_records")
        memory = pytest.importorskip("kafka.record.memory_records")
    return SimpleNamespace(Builder=default.DefaultRecordBatchBuilder, Records=memory.MemoryRecords)


@pytest.fixture(params=list(Codec), ids=lambda codec: codec.label)
def codec(request: pytest.FixtureRequest) -> Codec:
    chosen: Codec = request.param
    package = NEEDED.get(chosen)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"kafka-python needs {package} for {chosen.label}")
    return chosen


def _rows(seed: int, count: int = 300) -> list[Row]:
    """Records of every shape; compressible."""
    random = np.random.default_rng(seed)

    def some(longest: int) -> bytes | None:
        size = int(random.integers(-longest // 5, longest))
        return None if size < -longest // 10 else b"%03d" % random.integers(0, 30) * (max(0, size) // 3)

    jumps = {0: 0, 1: 10, 2: 10**7, 3: 10**12}[seed % 4]
    return [
        Row(
            START_MS + (int(random.integers(-jumps, jumps)) if jumps else 0),
            some(40),
            some(400),
            [(f"h{number}", some(20)) for number in range(int(random.integers(0, 4)))] if seed % 2 else [],
        )
        for _ in range(count)
    ]


def _columns(rows: list[Row]) -> RecordColumns:
    headers = [[{"key": key, "value": value} for key, value in row.headers] for row in rows]
    return RecordColumns(
        key=pa.array([row.key for row in rows], pa.binary()),
        value=pa.array([row.value for row in rows], pa.binary()),
        timestamp_ms=np.array([row.timestamp_ms for row in rows], np.int64),
        headers=pa.array(headers, HEADERS_TYPE),
    )


def _built(kafka_python: Any, rows: list[Row], codec: Codec, *fields: int) -> bytes:
    builder = kafka_python.Builder(2, codec.value, *(fields or (False, -1, -1, -1)), 1 << 26)
    for offset, row in enumerate(rows):
        assert builder.append(offset, *row) is not None
    return bytes(builder.build())


def _read(kafka_python: Any, data: bytes) -> list[tuple[int, Row]]:
    found = []
    for batch in iter(kafka_python.Records(data).next_batch, None):
        assert batch.validate_crc()
        found += [
            (record.offset, Row(record.timestamp, record.key, record.value, record.headers))
            for record in batch
        ]
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "producer", [(False, -1, -1, -1), (True, 4711, 3, 2**31 - 1), (False, 2**62, 32767, 0)]
)
def test_uncompressed_bytes_are_equal(
    kafka_python: Any, seed: int, producer: tuple[bool, int, int, int]
) -> None:
    rows = _rows(seed)
    is_transactional, producer_id, producer_epoch, base_sequence = producer
    options = EncodeOptions(
        is_transactional=is_transactional,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        max_batch_bytes=1 << 20,
    )
    assert encode_batches(_columns(rows), options).to_bytes() == _built(
        kafka_python, rows, Codec.NONE, *producer
    )


def test_bytes_of_a_large_batch_are_equal(kafka_python: Any) -> None:
    # Offset deltas of 1, 2 and 3 bytes.
    rows = [Row(START_MS + number, b"k%d" % number, b"v", []) for number in range(20_000)]
    ours = encode_batches(_columns(rows), EncodeOptions(max_batch_bytes=1 << 20)).to_bytes()
    assert ours == _built(kafka_python, rows, Codec.NONE)


@pytest.mark.parametrize("seed", range(4))
def test_kafka_python_reads_ours(kafka_python: Any, codec: Codec, seed: int) -> None:
    rows = _rows(seed)
    encoded = encode_batches(
        _columns(rows), EncodeOptions(codec=codec, max_batch_bytes=20_000), base_offset=1 << 40
    )
    assert encoded.batch_count > 1
    data = encoded.to_bytes()
    assert set(scan_batches(data, where="test").codec) == {codec}
    assert _read(kafka_python, data) == [((1 << 40) + offset, row) for offset, row in enumerate(rows)]


@pytest.mark.parametrize("seed", range(4))
def test_we_read_kafka_pythons(kafka_python: Any, codec: Codec, seed: int) -> None:
    rows = _rows(seed)
    data = _built(kafka_python, rows, codec)
    table = scan_batches(data, where="test")
    assert table.codec.tolist() == [codec]
    records = decode_records(data, table, include_headers=True, where="test")
    assert records.headers is not None
    found = [
        Row(timestamp_ms, key, value, [(pair["key"], pair["value"]) for pair in headers or []])
        for timestamp_ms, key, value, headers in zip(
            records.timestamp_ms.tolist(),
            records.key.to_pylist(),
            records.value.to_pylist(),
            records.headers.to_pylist(),
            strict=True,
        )
    ]
    assert found == rows
    assert records.offset.tolist() == list(range(len(rows)))


def test_kafka_python_reads_our_control_batch(kafka_python: Any) -> None:
    for kind in ControlType:
        marker = ControlMarker(type=kind, producer_id=5, producer_epoch=1, timestamp_ms=START_MS, offset=77)
        batch = kafka_python.Records(encode_control_batch(marker).to_bytes()).next_batch()
        assert batch.is_control_batch
        assert batch.is_transactional
        (record,) = list(batch)
        assert (record.offset, record.commit, record.abort) == (
            77,
            kind is ControlType.COMMIT,
            kind is ControlType.ABORT,
        )
