"""Merging what others wrote: the bytes that a producer sent stay, and what they expand to is bounded."""

import numpy as np
import pyarrow as pa
import pytest

import sparklog.maintenance.rewrite as rewrite
from sparklog.client import SparkLog
from sparklog.format.batch_table import scan_batches
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.record_batch import CRC_POSITION, CRC_START, crc32c
from sparklog.format.schema import HEADERS_TYPE, RecordColumns
from sparklog.maintenance import MergeLimits, optimize
from sparklog.metadata import plan_append
from tests.maintenance.conftest import extents, records

LIMITS = [MergeLimits(fan_in=None), MergeLimits(fan_in=None, shared_bytes=0)]


def publish(log: SparkLog, encoded: EncodedBatches) -> None:
    config = log.describe_topic("t").config
    draft = log.writer.append(log.refresh().topic("t").topic_id, 0, encoded, config)
    assert draft is not None
    log.writer.sync([draft])
    log.metadata.publish(lambda image: [plan_append(image, [draft])])


def batches(values: list[bytes], headers: object = None, codec: Codec = Codec.NONE) -> EncodedBatches:
    columns = RecordColumns(
        key=None,
        value=pa.array(values, pa.binary()),
        timestamp_ms=np.full(len(values), 5, np.int64),
        headers=None if headers is None else pa.array(headers, HEADERS_TYPE),
    )
    return encode_batches(columns, EncodeOptions(codec=codec))


def with_header_key(key: bytes) -> EncodedBatches:
    """One record with a header of this key, whatever its bytes are."""
    encoded = batches([b"v"], [[{"key": "#" * len(key), "value": None}]])
    data = bytearray(encoded.to_bytes().replace(b"#" * len(key), key))
    data[CRC_POSITION:CRC_START] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")
    encoded.data[:] = [data]
    return encoded


@pytest.mark.parametrize("limits", LIMITS, ids=["shared", "apart"])
def test_header_keys_that_are_not_utf_8_keep_their_bytes(log: SparkLog, limits: MergeLimits) -> None:
    keys = [b"k\xff\xfe1", b"k\xff\xfe2", "\ufffd".encode()]
    for key in keys:
        publish(log, with_header_key(key))
    optimize(log.metadata, log.clock, limits=limits)
    (extent,) = extents(log)
    data = log.store.read(extent.segment, extent.position, extent.size)
    assert [data.count(key) for key in keys] == [1, 1, 1]
    assert len(scan_batches(data, where="test")) == 3


@pytest.mark.parametrize("limits", LIMITS, ids=["shared", "apart"])
def test_what_expands_too_far_keeps_its_codec(
    log: SparkLog, limits: MergeLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic whose compression.type became uncompressed: a few MiB may hold gigabytes of zeros."""
    for _ in range(8):
        publish(log, batches([bytes(100_000)] * 4, codec=Codec.ZSTD))
    log.alter_topic("t", {"compression.type": "uncompressed"})
    before, stored = records(log), sum(extent.size for extent in extents(log))
    monkeypatch.setattr(rewrite, "MAX_EXPANDED_BYTES", 2_000_000)
    optimize(log.metadata, log.clock, limits=limits)
    (extent,) = extents(log)
    assert extent.size == stored
    assert records(log) == before
    monkeypatch.setattr(rewrite, "MAX_EXPANDED_BYTES", 4_000_000)
    publish(log, batches([b"one more"], codec=Codec.ZSTD))
    optimize(log.metadata, log.clock, limits=limits)
    assert sum(extent.size for extent in extents(log)) > 3_200_000
