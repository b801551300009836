"""Builders of the format layer's tests: records with defaults for everything, and batches made by hand."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.record_batch import BatchHeader, encode_header
from sparklog.format.schema import HEADERS_TYPE, RecordColumns
from tests.support.plain_records import varint

START_MS = 1_700_000_000_000


def _columns(
    values: Sequence[bytes | None] = (b"value",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    headers: Sequence[Any] | None = None,
) -> RecordColumns:
    return RecordColumns(
        key=None if keys is None else pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        timestamp_ms=np.array(timestamps_ms or [START_MS] * len(values), np.int64),
        headers=None if headers is None else pa.array(headers, HEADERS_TYPE),
    )


def _record(
    *,
    length: int | None = None,
    attributes: int = 0,
    timestamp_delta: bytes = b"\0",
    offset_delta: int = 0,
    key_length: bytes = varint(1),
    key: bytes = b"k",
    value_length: bytes = varint(1),
    value: bytes = b"v",
    header_count: bytes = b"\0",
    headers: bytes = b"",
) -> bytes:
    fields = b"".join(
        (
            bytes([attributes]),
            timestamp_delta,
            varint(offset_delta),
            key_length,
            key,
            value_length,
            value,
            header_count,
            headers,
        )
    )
    return varint(len(fields) if length is None else length) + fields


def _batch(body: bytes = _record(), **fields: Any) -> bytes:
    """A batch with this body and a right CRC; by default one record."""
    count = fields.setdefault("record_count", 1)
    fields.setdefault("last_offset_delta", count - 1)
    fields.setdefault("first_timestamp_ms", START_MS)
    fields.setdefault("max_timestamp_ms", START_MS)
    magic, length = fields.pop("magic", 2), fields.pop("batch_length", None)
    batch = bytearray(encode_header(BatchHeader(**fields), body) + body)
    batch[16] = magic
    if length is not None:
        struct.pack_into(">i", batch, 8, length)
    return bytes(batch)


@pytest.fixture
def columns() -> Callable[..., RecordColumns]:
    """Record columns; every argument has a default."""
    return _columns


@pytest.fixture
def raw_record() -> Callable[..., bytes]:
    """The bytes of one record, every field of which can be wrong."""
    return _record


@pytest.fixture
def raw_batch() -> Callable[..., bytes]:
    """A batch by hand, every field of which can be wrong; the CRC is right."""
    return _batch
