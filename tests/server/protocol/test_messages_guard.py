"""The walk before kio: hostile counts, lengths, tags; and that it lets through what is right."""

import contextlib
import dataclasses
import os
import random
import resource
import struct
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.index import api_key_map, schema_name_map

from sparklog_server.api.registry import bind_apis
from sparklog_server.api.services import Services
from sparklog_server.protocol.messages import (
    MAX_ELEMENTS,
    MAX_HEADER_TAGS,
    Guarded,
    MalformedRequestError,
    UnsupportedRequestError,
    codec_for,
    examine_request,
    guarded,
    message_codec,
    parse_header,
    read_uvarint,
    request_schema,
)
from sparklog_server.security.access import Access
from tests.server.fuzzing import fuzzed_frames, random_request, served_versions

APIS = bind_apis(cast("Services", SimpleNamespace(access=Access())))
SEED = int(os.environ.get("SPARKLOG_FUZZ_SEED", "20261121"))
FRAMES = int(os.environ.get("SPARKLOG_FUZZ_FRAMES", "100000"))


def walk(key: int, version: int, body: bytes) -> Guarded:
    return guarded(memoryview(body), 0, request_schema(key, version))


def decoded(key: int, version: int, body: bytes) -> Any:
    data, position, _ = walk(key, version, body)
    return message_codec(key, version).read(data, position)[0]


@pytest.mark.parametrize(
    ("key", "version", "body", "message"),
    [
        pytest.param(3, 12, b"\xff\xff\xff\xff\x07", "array of", id="compact count"),
        pytest.param(3, 1, struct.pack(">i", (1 << 31) - 1), "array of", id="count"),
        pytest.param(3, 1, struct.pack(">i", -2), "array of -2", id="negative count"),
        pytest.param(3, 0, struct.pack(">i", -1), "array of -1", id="null where there is none"),
        pytest.param(8, 8, b"\x01\x00\x00\x00\x00\x01\x00\x00", "array of -1", id="compact null"),
        pytest.param(3, 12, b"\xff" * 5, "varint of more", id="varint of 35 bits"),
        pytest.param(3, 12, b"\x80", "within a varint", id="half a varint"),
        pytest.param(3, 1, struct.pack(">ih", 1, -7), "field of -7", id="negative string"),
        pytest.param(3, 1, struct.pack(">ih", 1, 5) + b"abc", "ends at byte 11 of 9", id="long string"),
        pytest.param(3, 12, b"\x01\x01\x00\x7f", "127 tagged fields", id="tag count"),
        pytest.param(3, 12, b"\x01\x01\x00\x01\x63\xff\xff\x03", "ends at byte", id="tag size"),
        pytest.param(
            3, 12, b"\x01\x01\x00\x02\x05\x00\x05\x00", "tag 5 after tag 5", id="tags not ascending"
        ),
        pytest.param(
            0, 7, struct.pack(">hhiihbiii", -1, 1, 9, 1, 1, 97, 1, 0, -7), "field of -7", id="records"
        ),
        pytest.param(
            3, 1, struct.pack(">i", MAX_ELEMENTS + 1) + bytes(2 * MAX_ELEMENTS + 2), "array of", id="elements"
        ),
    ],
)
def test_what_does_not_fit_is_refused(key: int, version: int, body: bytes, message: str) -> None:
    with pytest.raises(MalformedRequestError, match=message):
        walk(key, version, body)


def test_elements_of_nested_arrays_count_together() -> None:
    per_topic = 1 << 12
    topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", per_topic) + bytes(4 * per_topic)
    many = MAX_ELEMENTS // per_topic + 1
    offset_fetch_v1 = struct.pack(">h", 1) + b"g"
    with pytest.raises(MalformedRequestError, match="array of"):
        walk(9, 1, offset_fetch_v1 + struct.pack(">i", many) + topic * many)
    assert len(decoded(9, 1, offset_fetch_v1 + struct.pack(">i", 2) + topic * 2).topics) == 2


def tags(count: int) -> bytes:
    """So many unknown tagged fields, empty, and their count before them."""
    return uvarint(count) + b"".join(uvarint(1000 + number) + b"\0" for number in range(count))


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_tagged_fields_count_as_elements() -> None:
    """Each costs as much; 16 MiB of them would stop the event loop for seconds."""
    walk(3, 12, b"\x01\x01\x00" + tags(MAX_ELEMENTS))
    with pytest.raises(MalformedRequestError, match=f"{MAX_ELEMENTS + 1} tagged fields"):
        walk(3, 12, b"\x01\x01\x00" + tags(MAX_ELEMENTS + 1))


def test_elements_of_all_lists_are_counted() -> None:
    partitions = struct.pack(">iii", 2, 5, 6)
    topics = struct.pack(">i", 3) + 3 * (b"\x00\x01t" + partitions)
    assert walk(9, 2, b"\x00\x01g" + topics).elements == 3 + 3 * 2
    assert walk(3, 12, b"\x01\x01\x00" + tags(5)).elements == 5
    assert walk(3, 12, b"\x00\x01\x00\x00").elements == 0


def test_a_header_has_few_tagged_fields() -> None:
    def decode(count: int) -> Any:
        frame = struct.pack(">hhih", 3, 12, 1, -1) + tags(count) + b"\x01\x01\x00\x00"
        header = parse_header(memoryview(frame))
        return examine_request(memoryview(frame), header, message_codec(3, 12))

    assert decode(MAX_HEADER_TAGS).client_id == ""
    with pytest.raises(MalformedRequestError, match="101 tagged fields in a header"):
        decode(MAX_HEADER_TAGS + 1)


def test_unknown_tagged_fields_are_cut_out() -> None:
    """KIP-482: who does not know a tag skips it; a newer client may send it within the same version."""
    tags = b"\x02" + b"\x63\x03abc" + b"\xe4\x00\x00"  # tags 99 and 100
    topic = bytes(16) + b"\x02t" + b"\x01\x2a\x04wxyz"
    body = b"\x02" + topic + b"\x01\x00" + tags
    request = decoded(3, 12, body)
    assert request.topics[0].name == "t"
    assert (request.allow_auto_topic_creation, request.include_topic_authorized_operations) == (True, False)


def test_known_tagged_fields_stay_beside_unknown_ones() -> None:
    """Fetch 12 knows tag 0, the cluster id."""
    body = struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + struct.pack(">ii", 0, 0) + b"\x01\x01\x01"
    with_tags = body + b"\x02" + b"\x00\x03\x03ab" + b"\x07\x01z"
    assert decoded(1, 12, with_tags).cluster_id == "ab"
    with pytest.raises(MalformedRequestError, match="tagged field 0 is not 4 bytes long"):
        decoded(1, 12, body + b"\x01" + b"\x00\x04\x03abc")


def test_bytes_behind_the_request_are_ignored() -> None:
    assert decoded(3, 12, b"\x00\x01\x00\x00trailing").topics is None


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, (1 << 31) - 1])
def test_uvarints_of_all_sizes(value: int) -> None:
    data, rest = bytearray(), value
    while rest >= 0x80:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    assert read_uvarint(memoryview(bytes(data)), 0) == (value, len(data))


@pytest.mark.slow
def test_every_request_that_kio_knows_can_be_walked() -> None:
    """Also of APIs that are not served yet."""
    walked = 0
    for key, name in api_key_map.items():
        for version in schema_name_map[name]:
            with contextlib.suppress(MalformedRequestError):
                guarded(memoryview(b""), 0, request_schema(key, version))
            walked += 1
    assert walked > 250


@pytest.mark.sampled(45)
@pytest.mark.parametrize(("key", "version"), served_versions())
def test_right_requests_pass_unchanged(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(30):
        frame = memoryview(random_request(key, version, rng))
        header = parse_header(frame)
        codec = codec_for(APIS[key], header)
        assert dataclasses.is_dataclass(examine_request(frame, header, codec).read())


@pytest.mark.slow
def test_no_frame_does_more_than_being_refused() -> None:
    """No crash, no hang, no growth, whatever the bytes."""
    outcomes = {"read": 0, "malformed": 0, "unsupported": 0}
    slowest = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for frame in fuzzed_frames(FRAMES, SEED):
        start = time.thread_time()
        try:
            view = memoryview(frame)
            header = parse_header(view)
            examine_request(view, header, codec_for(APIS.get(header.api_key), header)).read()
            outcomes["read"] += 1
        except MalformedRequestError:
            outcomes["malformed"] += 1
        except UnsupportedRequestError:
            outcomes["unsupported"] += 1
        slowest = max(slowest, time.thread_time() - start)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert min(outcomes.values()) > FRAMES // 100, (SEED, outcomes)
    assert slowest < 1, SEED
    assert grown_kib < 64 * 1024, SEED
