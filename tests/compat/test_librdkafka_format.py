"""librdkafka as a second oracle, written in C: it reads batches of ours, with CRC checks, and we read its
own.

Its mock broker, which runs inside a producer, stores what a Produce request brings and hands it out to Fetch
requests; both are written by hand here, so that our bytes go in and its bytes come out unchanged.
"""

import socket
import struct
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.codec import Codec
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import HEADERS_TYPE, RecordColumns

START_MS = 1_700_000_000_000
PARTITION = 0
QUIET = {"log_level": 0}
PRODUCE, FETCH = (0, 3), (1, 4)


@pytest.fixture(scope="module")
def confluent_kafka() -> ModuleType:
    module: ModuleType = pytest.importorskip("confluent_kafka")
    return module


@pytest.fixture(scope="module")
def broker(confluent_kafka: ModuleType) -> Iterator[int]:
    """The port of a mock broker; it lives as long as its producer."""
    owner = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", **QUIET})
    (metadata,) = owner.list_topics(timeout=10).brokers.values()
    yield metadata.port
    owner.flush(1)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _call(port: int, api: tuple[int, int], body: bytes) -> bytes:
    request = struct.pack(">hhi", *api, 1) + _string("test") + body
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        return _receive(connection, size)[4:]


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the mock broker hung up"
        data += part
    return data


def _produce(port: int, topic: str, batch: bytes) -> None:
    partition = struct.pack(">ii", PARTITION, len(batch)) + batch
    topics = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", 1) + partition
    answer = _call(port, PRODUCE, struct.pack(">hhi", -1, -1, 5000) + topics)
    _, error = struct.unpack_from(">ih", answer, 4 + 2 + len(topic) + 4)
    assert error == 0


def _fetch(port: int, topic: str, offset: int) -> bytes:
    partition = struct.pack(">iqi", PARTITION, offset, 1 << 20)
    topics = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", 1) + partition
    answer = _call(port, FETCH, struct.pack(">iiiib", -1, 1000, 1, 1 << 20, 0) + topics)
    at = 4 + 4 + 2 + len(topic) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
    assert error == 0
    at += 26 + 16 * max(0, aborted)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + size]


def _rows() -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    return [
        (
            None if row % 5 == 0 else b"key-%d" % row,
            None if row % 7 == 0 else b"value %d; " % row * (row % 40),
            [("h", b"%d" % row), ("h", None)] if row % 3 == 0 else [],
        )
        for row in range(200)
    ]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.label)
def test_librdkafka_reads_ours(confluent_kafka: ModuleType, broker: int, codec: Codec) -> None:
    topic, rows = f"ours-{codec.label}", _rows()
    headers = [[{"key": key, "value": value} for key, value in row[2]] for row in rows]
    columns = RecordColumns(
        key=pa.array([row[0] for row in rows], pa.binary()),
        value=pa.array([row[1] for row in rows], pa.binary()),
        timestamp_ms=np.arange(200) * 1000 + START_MS,
        headers=pa.array(headers, HEADERS_TYPE),
    )
    encoded = encode_batches(columns, EncodeOptions(codec=codec, max_batch_bytes=1 << 20))
    assert scan_batches(encoded.to_bytes(), where="test").codec.tolist() == [codec]
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{broker}",
        "group.id": "test",
        "check.crcs": True,
        "allow.auto.create.topics": True,
        "enable.auto.commit": False,
        **QUIET,
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.list_topics(topic, timeout=10)  # creates it
        _produce(broker, topic, encoded.to_bytes())
        consumer.assign([confluent_kafka.TopicPartition(topic, PARTITION, 0)])
        found = consumer.consume(len(rows), timeout=20)
        assert [message.error() for message in found] == [None] * len(rows)
        assert [(message.key(), message.value(), message.headers() or []) for message in found] == rows
        assert [message.timestamp()[1] for message in found] == columns.timestamp_ms.tolist()
        assert [message.offset() for message in found] == list(range(len(rows)))
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.label)
@pytest.mark.parametrize("idempotent", [False, True])
def test_we_read_librdkafkas(
    confluent_kafka: ModuleType, broker: int, codec: Codec, idempotent: bool
) -> None:
    topic, rows = f"theirs-{codec.label}-{idempotent}", _rows()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker}",
            "compression.type": codec.label,
            "enable.idempotence": idempotent,
            # flush() ends the wait: one batch of all rows, if the topic is known by then. Else librdkafka
            # sends what it has while the rows come to their partition one by one.
            "linger.ms": 60_000,
            **QUIET,
        }
    )
    for row, (key, value, headers) in enumerate(rows):
        producer.produce(topic, value, key, partition=PARTITION, timestamp=START_MS - row, headers=headers)
    assert producer.flush(20) == 0
    found: list[Any] = []
    timestamp_ms: list[int] = []
    codecs: set[int] = set()
    seen = 0
    while seen < len(rows):
        data = _fetch(broker, topic, seen)
        table = scan_batches(data, where="test")
        # What does not get smaller librdkafka sends uncompressed, such as a batch of one record.
        assert set(table.codec[table.record_count > 1]) <= {codec}
        assert (table.producer_id >= 0).all() == idempotent
        records = decode_records(data, table, include_headers=True, start_offset=seen, where="test")
        assert records.headers is not None
        pairs = [[(pair["key"], pair["value"]) for pair in row or []] for row in records.headers.to_pylist()]
        found += zip(records.key.to_pylist(), records.value.to_pylist(), pairs, strict=True)
        timestamp_ms += records.timestamp_ms.tolist()
        seen += records.num_rows
        codecs |= set(table.codec)
    assert codec in codecs
    assert found == rows
    assert timestamp_ms == [START_MS - row for row in range(len(rows))]
