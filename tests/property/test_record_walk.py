"""Property: the plain loop over records, the NumPy parser and the compiled one agree on all bodies."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import CorruptLogError
from sparklog.format import record_inspection
from sparklog.format.produced import InspectedRecords, inspect_records, inspect_together
from sparklog.format.record_batch import BatchHeader, encode_header, parse_header
from sparklog.format.varint import encode_varints
from tests.twins import without_kernels

LIKELY = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 14, 16, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
JUNK = st.one_of(st.binary(max_size=120), st.lists(LIKELY, max_size=120).map(bytes))


def varint(value: int) -> bytes:
    coded = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while coded >= 0x80:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes(out + bytes([coded]))


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


OPTIONAL = st.none() | st.binary(max_size=70)
DELTAS = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))


@st.composite
def records(draw: st.DrawFn, row: int) -> bytes:
    headers = draw(st.lists(st.tuples(st.binary(max_size=5), OPTIONAL), max_size=3))
    body = b"".join(
        [
            b"\0",
            varint(draw(DELTAS)),
            varint(row),
            sized(draw(OPTIONAL)),
            sized(draw(OPTIONAL)),
            varint(len(headers)),
            *(sized(key) + sized(value) for key, value in headers),
        ]
    )
    return varint(len(body)) + body


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Bodies of records, perhaps damaged; and a count, perhaps wrong."""
    if draw(st.booleans()):
        return draw(JUNK), draw(st.integers(1, 12))
    count = draw(st.integers(1, 12))
    data = bytearray(b"".join(draw(records(row)) for row in range(count)))
    match draw(st.integers(0, 5)):
        case 0:
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        case 1:
            del data[draw(st.integers(0, len(data) - 1)) :]
        case 2:
            data += draw(JUNK)
        case 3:
            count = draw(st.integers(1, 20))
    return bytes(data), count


def inspected(batch: bytes, *, walk: bool = False) -> InspectedRecords | None:
    names = ("WALK_RECORDS", "WALK_RECORDS_COMPILED")
    limits = [getattr(record_inspection, name) for name in names]
    for name in names:
        setattr(record_inspection, name, 1000 if walk else 0)
    try:
        return inspect_records(batch, parse_header(batch, 0, "here"), where="here")
    except CorruptLogError:
        return None
    finally:
        for name, limit in zip(names, limits, strict=True):
            setattr(record_inspection, name, limit)


@settings(max_examples=600, deadline=None)
@given(bodies())
def test_both_ways_agree(case: tuple[bytes, int]) -> None:
    body, count = case
    header = BatchHeader(record_count=count, last_offset_delta=count - 1, first_timestamp_ms=1_000)
    batch = encode_header(header, body) + body
    loop, compiled = inspected(batch, walk=True), inspected(batch)
    with without_kernels():
        numpy = inspected(batch)
    for one, other in ((loop, numpy), (loop, compiled)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert list(one.timestamp_delta) == list(other.timestamp_delta)
            assert list(one.keyless) == list(other.keyless)
            assert bytes(one.body) == bytes(other.body) == body


def test_varints_of_this_test_are_ours() -> None:
    (piece,) = encode_varints(np.array([300]))
    assert varint(300) == int(piece.word[0]).to_bytes(8, "little")[:2]


@settings(max_examples=300, deadline=None)
@given(st.lists(bodies(), min_size=1, max_size=4))
def test_batches_together_are_found_as_each_alone(cases: list[tuple[bytes, int]]) -> None:
    pairs = []
    for number, (body, count) in enumerate(cases):
        header = BatchHeader(
            record_count=count, last_offset_delta=count - 1, first_timestamp_ms=number * 1_000
        )
        pairs.append((encode_header(header, body), body))
    alone = [inspected(head + body, walk=True) for head, body in pairs]
    together = inspect_together(pairs)
    assert (together is None) == (None in alone)
    for one, other in zip(alone, together or [], strict=False):
        assert one is not None
        assert list(one.timestamp_delta) == list(other.timestamp_delta)
        assert list(one.keyless) == list(other.keyless)
        assert bytes(one.body) == bytes(other.body)
        assert one.min_timestamp_ms == other.min_timestamp_ms
        assert one.max_timestamp_ms == other.max_timestamp_ms
