"""Control batches."""

import struct
from collections.abc import Callable

import pytest

from sparklog.errors import CorruptLogError, UnsupportedVersionError
from sparklog.format.control_batch import (
    ControlMarker,
    ControlType,
    decode_control_batch,
    encode_control_batch,
)
from sparklog.format.decode import scan_batches

Build = Callable[..., bytes]
CONTROL = 0x30


@pytest.mark.parametrize("kind", ControlType)
def test_round_trip(kind: ControlType) -> None:
    marker = ControlMarker(
        type=kind, coordinator_epoch=9, producer_id=2**40, producer_epoch=7, timestamp_ms=123, offset=2**50
    )
    data = encode_control_batch(marker, partition_leader_epoch=4).to_bytes()
    assert decode_control_batch(data, where="here") == marker
    table = scan_batches(data, where="here")
    assert table.is_control.all()
    assert table.is_transactional.all()
    assert table.base_sequence.tolist() == [-1]
    assert table.partition_leader_epoch.tolist() == [4]


def _marker(raw_batch: Build, raw_record: Build, key: bytes, value: bytes) -> bytes:
    record = raw_record(
        key_length=bytes([len(key) << 1]), key=key, value_length=bytes([len(value) << 1]), value=value
    )
    return raw_batch(record, attributes=CONTROL)


def test_later_versions_are_read_by_the_fields_known(raw_batch: Build, raw_record: Build) -> None:
    data = _marker(raw_batch, raw_record, struct.pack(">hhi", 1, 1, 5), struct.pack(">hiq", 1, 8, 0))
    assert decode_control_batch(data, where="here").coordinator_epoch == 8


@pytest.mark.parametrize(("version", "kind"), [(0, 2), (0, -1), (-1, 0)])
def test_unknown_type_is_refused(raw_batch: Build, raw_record: Build, version: int, kind: int) -> None:
    data = _marker(raw_batch, raw_record, struct.pack(">hh", version, kind), struct.pack(">hi", 0, 0))
    with pytest.raises(UnsupportedVersionError, match="UNSUPPORTED_CONTROL_TYPE"):
        decode_control_batch(data, where="here")


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", b"\0" * 5)])
def test_short_marker_is_refused(raw_batch: Build, raw_record: Build, key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptLogError, match="marker that is too short"):
        decode_control_batch(_marker(raw_batch, raw_record, key, value), where="here")


def test_null_marker_is_refused(raw_batch: Build, raw_record: Build) -> None:
    data = raw_batch(raw_record(key_length=b"\x01", key=b""), attributes=CONTROL)
    with pytest.raises(CorruptLogError, match="marker that is too short"):
        decode_control_batch(data, where="here")


def test_ordinary_batch_is_refused(raw_batch: Build) -> None:
    with pytest.raises(CorruptLogError, match="expected one control batch"):
        decode_control_batch(raw_batch(), where="here")
    with pytest.raises(CorruptLogError, match="found 2 batches"):
        decode_control_batch(raw_batch(attributes=CONTROL) * 2, where="here")
