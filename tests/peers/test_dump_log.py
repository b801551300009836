"""kafka-dump-log reads what we store: a task's segment, and partitions as Kafka would store them."""

import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_tools import run_tool
from sparklog.client import SparkLog
from sparklog.format.index import encode_offset_entries, encode_time_entries
from sparklog.format.record_batch import parse_header
from sparklog.log.reader import plan_read
from sparklog.maintenance import MergeLimits, optimize
from sparklog.metadata.model.image import PartitionState
from tests.peers.conftest import Tool

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
RECORDS = 3000


def rows(count: int = RECORDS) -> pa.Table:
    """Keys, values, timestamps, and a header on each record."""
    headers = pa.array(
        [[{"key": "trace", "value": b"%d" % row}] for row in range(count)],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    return pa.table(
        {
            "key": pa.array([None if row % 5 == 0 else b"key-%d" % row for row in range(count)], pa.binary()),
            "value": pa.array([b"value-%06d" % row for row in range(count)], pa.binary()),
            "timestamp": pa.array([START_MS + row for row in range(count)], pa.timestamp("ms")),
            "headers": headers,
        }
    )


def export(log: SparkLog, topic: str, directory: Path) -> Path:
    """Partition 0 as Kafka lays a segment out: absolute offsets, an offset index and a time index beside it.

    An extent's base offset lies outside the batches' CRC: only the first eight bytes of a batch change.
    """
    state: PartitionState = log.refresh().topic(topic).partitions[0]
    segment, offsets, times = bytearray(), [], []
    largest = -1
    for part in plan_read(log.store, state, 0, state.log_end_offset):
        data = bytearray(log.store.read(part.segment, part.position, part.size))
        position = 0
        while position < len(data):
            header = parse_header(data, position, topic)
            base_offset = header.base_offset + part.offset_delta
            struct.pack_into(">q", data, position, base_offset)
            last_offset = base_offset + header.last_offset_delta
            offsets.append(
                (last_offset, len(segment) + position)
            )  # Kafka's index names a batch's last offset
            if header.max_timestamp_ms > largest:
                largest = header.max_timestamp_ms
                times.append((largest, last_offset))
            position += header.size
        segment += data
    directory.mkdir()
    path = directory / f"{0:020d}.log"
    path.write_bytes(segment)
    path.with_suffix(".index").write_bytes(encode_offset_entries(*np.array(offsets[1:]).reshape(-1, 2).T))
    path.with_suffix(".timeindex").write_bytes(encode_time_entries(*np.array(times).T))
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_reads_an_exported_segment(
    kafka_jars: Jars, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path, codec: str
) -> None:
    topic = new_topic(1, {"compression.type": codec})
    table = rows()
    for start in range(0, RECORDS, 1000):
        log.append(topic, table.slice(start, 1000))
    path = export(log, topic, tmp_path / f"{topic}-0")

    text = run_tool(kafka_jars, "kafka-dump-log", "--files", str(path), "--print-data-log")

    record = r"offset: (\d+) CreateTime: (\d+) .*?(?: key: (\S+))? payload: (\S+)$"
    found = re.findall(record, text, re.MULTILINE)
    expected = [
        (str(row), str(START_MS + row), "" if row % 5 == 0 else f"key-{row}", f"value-{row:06d}")
        for row in range(RECORDS)
    ]
    assert found == expected
    assert text.count("headerKeys: [trace]") == RECORDS
    assert "isvalid: false" not in text
    assert f"compresscodec: {codec}" in text


def test_kafka_accepts_the_indexes(
    kafka_jars: Jars, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    for _ in range(20):
        log.append(topic, rows(100))
    path = export(log, topic, tmp_path / f"{topic}-0")
    for suffix in (".index", ".timeindex"):
        text = run_tool(kafka_jars, "kafka-dump-log", "--files", str(path.with_suffix(suffix)))
        assert "offset: 1999" in text if suffix == ".index" else "timestamp: " in text
        for complaint in ("Mismatches", "non-secutive", "out of order", "Found", "corrupt"):
            assert complaint not in text


def test_kafka_reads_a_tasks_own_segment(
    kafka_jars: Jars, log: SparkLog, new_topic: Callable[..., str]
) -> None:
    """As it lies in the root, extents of several partitions one after the other, each counting from 0."""
    topic = new_topic(3)
    log.append(topic, rows(300))
    states = log.refresh().topic(topic).partitions
    (segment,) = {part.segment for one in states for part in plan_read(log.store, one, 0, one.log_end_offset)}
    path = Path(log.url.removeprefix("file://")) / segment
    text = run_tool(kafka_jars, "kafka-dump-log", "--files", str(path), "--deep-iteration")
    assert "isvalid: false" not in text
    assert "CRC" not in text.replace("crc:", "")


def test_kafka_reads_a_merged_segment(kafka_jars: Jars, log: SparkLog, new_topic: Callable[..., str]) -> None:
    """Under its own name, and with the offsets that it has in the log."""
    topic = new_topic(1)
    for start in range(0, 300, 100):
        log.append(topic, rows(300).slice(start, 100))
    optimize(log.metadata, log.clock, [topic], MergeLimits(fan_in=None, shared_bytes=0))
    (extent,) = log.refresh().topic(topic).partitions[0].extents
    path = Path(log.url.removeprefix("file://")) / extent.segment
    text = run_tool(kafka_jars, "kafka-dump-log", "--files", str(path), "--print-data-log")
    assert "Log starting offset: 0" in text
    assert re.findall(r"offset: (\d+) CreateTime", text) == [str(offset) for offset in range(300)]
    assert "isvalid: false" not in text


def test_kafka_decodes_committed_offsets(
    kafka_jars: Jars, tool: Tool, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    log.append(topic, rows(10))
    log.commit_offsets("readers", {(topic, 0): 7})
    partitions = log.refresh().topic("__consumer_offsets").partitions
    (data,) = [data for data in (_bytes(log, one) for one in partitions) if b"readers" in data]
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(data)
    text = run_tool(kafka_jars, "kafka-dump-log", "--files", str(segment), "--offsets-decoder")
    assert '"group":"readers"' in text
    assert f'"topic":"{topic}"' in text
    assert '"offset":7' in text


def _bytes(log: SparkLog, state: PartitionState) -> bytes:
    ranges = plan_read(log.store, state, 0, state.log_end_offset)
    return b"".join(bytes(log.store.read(part.segment, part.position, part.size)) for part in ranges)
