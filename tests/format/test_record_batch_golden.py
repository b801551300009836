"""Golden files: bytes written once, by kafka-python and by us, and read the same way forever."""

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from sparklog.format.codec import Codec
from sparklog.format.consumer_offsets import OffsetValue, decode_offset_value
from sparklog.format.control_batch import decode_control_batch
from sparklog.format.decode import decode_records, scan_batches

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """The script that made the files; it holds their contents."""
    spec = importlib.util.spec_from_file_location("make_format", FOLDER / "make_format.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of importlib, when kafka is imported
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("writer", ["kafka_python", "sparklog"])
@pytest.mark.parametrize("codec", Codec)
def test_batches_of_every_codec_are_read(maker: ModuleType, codec: Codec, writer: str) -> None:
    data = (FOLDER / f"batch_{codec.label}_{writer}.bin").read_bytes()
    table = scan_batches(data, where="golden")
    assert table.codec.tolist() == [codec]
    assert (table.producer_id[0], table.producer_epoch[0], table.base_sequence[0]) == (4711, 3, 100)
    records = decode_records(data, table, where="golden", include_headers=True)
    assert records.headers is not None
    headers = [[(pair["key"], pair["value"]) for pair in row or []] for row in records.headers.to_pylist()]
    found = list(
        zip(
            records.timestamp_ms.tolist(),
            records.key.to_pylist(),
            records.value.to_pylist(),
            headers,
            strict=True,
        )
    )
    assert found == maker.RECORDS
    assert records.offset.tolist() == list(range(len(found)))


@pytest.mark.parametrize(
    "name",
    [
        "batch_none_kafka_python.bin",
        "batch_none_sparklog.bin",
        "batch_two_records.bin",
        "control_commit.bin",
        "offset_index.bin",
        "time_index.bin",
        "consumer_offset_key.bin",
        "consumer_offset_value.bin",
        "consumer_offset_value_v1.bin",
        "group_metadata_value.bin",
    ],
)
def test_bytes_are_still_written_so(maker: ModuleType, name: str) -> None:
    writer = {"batch_none_kafka_python.bin": "batch_none_sparklog.bin"}.get(name, name)
    assert maker.sparklog_files()[writer] == (FOLDER / name).read_bytes()


def test_control_batch_is_read() -> None:
    marker = decode_control_batch((FOLDER / "control_commit.bin").read_bytes(), where="golden")
    assert (marker.type.name, marker.coordinator_epoch, marker.offset) == ("COMMIT", 5, 106)


def test_old_consumer_offset_is_read() -> None:
    value = decode_offset_value((FOLDER / "consumer_offset_value_v1.bin").read_bytes())
    assert value == OffsetValue(
        offset=42,
        metadata="note",
        commit_timestamp_ms=1_700_000_000_000,
        expire_timestamp_ms=1_700_000_000_001,
    )
