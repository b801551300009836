"""Requests and record batches as an attacker makes them: by hand, past any client's checks."""

import io
import struct
import time
from typing import Any

import cramjam
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog.format.codec import Codec
from sparklog.format.record_batch import HEADER, BatchHeader, encode_header
from sparklog_server.protocol.responses import make


def entity(types: Any, value: Any) -> Any:
    """kio's entity for nested dicts that name theirs: {"_": "MetadataRequestTopic", ...}."""
    if isinstance(value, dict):
        fields = {name: entity(types, one) for name, one in value.items() if name != "_"}
        return make(getattr(types, value["_"]), **fields)
    if isinstance(value, list | tuple):
        return tuple(entity(types, one) for one in value)
    return value


def request(key: int, version: int, *, client_id: bytes = b"hostile", **fields: Any) -> bytes:
    """A request's frame, without its length."""
    schema = load_request_schema(key, version)
    types = load_payload_module(key, version, EntityType.request)
    body = io.BytesIO()
    entity_writer(schema)(body, make(schema, **{name: entity(types, one) for name, one in fields.items()}))
    head = struct.pack(">hhih", key, version, 7, len(client_id)) + client_id
    return head + (b"\0" if schema.__header_schema__.__version__ == 2 else b"") + body.getvalue()


def answer(key: int, version: int, frame: bytes) -> Any:
    """The response in a frame."""
    schema = load_response_schema(key, version)
    position = 5 if schema.__header_schema__.__version__ == 1 else 4
    return entity_reader(schema)(memoryview(frame), position)[0]


def produce(*batches: bytes, topic: str = "victim", acks: int = -1) -> bytes:
    """A Produce request, one batch to a partition."""
    partitions = [
        {"_": "PartitionProduceData", "index": number, "records": data} for number, data in enumerate(batches)
    ]
    topics = [{"_": "TopicProduceData", "name": topic, "partition_data": partitions}]
    return request(0, 9, acks=acks, timeout=30_000, topic_data=topics)


def zstd_batch(body: bytes, count: int) -> bytes:
    """A batch of these records, compressed as well as zstd can."""
    packed = bytes(cramjam.zstd.compress(body, level=19))
    header = BatchHeader(
        record_count=count,
        last_offset_delta=count - 1,
        attributes=int(Codec.ZSTD),
        first_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_700_000_000_000,
        batch_length=HEADER.size - 12 + len(packed),
    )
    return encode_header(header, packed) + packed


def plain_batch() -> bytes:
    """One record."""
    body = tiny_records(1)
    header = BatchHeader(
        record_count=1,
        first_timestamp_ms=int(time.time() * 1000),
        max_timestamp_ms=int(time.time() * 1000),
        batch_length=HEADER.size - 12 + len(body),
    )
    return encode_header(header, body) + body


def tiny_records(count: int, *, last: bytes = b"") -> bytes:
    """Records without key and value, with offset deltas as they must be, and something behind them."""
    out = []
    for row in range(count):
        coded, delta = row << 1, bytearray()
        while coded >= 0x80:
            delta.append(coded & 0x7F | 0x80)
            coded >>= 7
        delta.append(coded)
        record = b"\0\0" + bytes(delta) + b"\x01\x01\0"
        out.append(bytes([len(record) << 1]) + record)
    return b"".join(out) + last


def header_tags(size: int) -> bytes:
    """ApiVersions with as many tagged fields in its header as fit."""
    head = struct.pack(">hhih", 18, 3, 7, -1)
    count = (size - len(head) - 8) // 6
    tags = b"".join(uvarint(1_000_000 + n) + b"\0" for n in range(count))
    return (head + uvarint(count) + tags)[: size - 8] + b"\x01\x01\0"


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
