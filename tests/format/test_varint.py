"""Varints, over the whole domain of their columns."""

import numpy as np
import pytest

from sparklog.format.varint import (
    Bytes8,
    decode_long_varints,
    decode_varints,
    encode_varints,
    read_varint,
    unzigzag,
    varint_sizes,
    zigzag,
)

EDGES = sorted(
    {sign * (1 << bits) + delta for bits in range(63) for sign in (1, -1) for delta in (-1, 0, 1)}
    | {2**63 - 1, -(2**63)}
)


def _plain(value: int) -> bytes:
    coded = (value << 1) ^ (value >> 63)
    data = bytearray()
    while coded > 0x7F:
        data.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes([*data, coded])


def _rows(pieces: list[Bytes8], count: int) -> list[bytes]:
    rows = [b""] * count
    for piece in pieces:
        sizes = np.broadcast_to(np.asarray(piece.size), count).tolist()
        words = np.broadcast_to(piece.word, count).tolist()
        assert max(sizes) <= piece.max_size
        rows = [
            row + word.to_bytes(8, "little")[:size]
            for row, word, size in zip(rows, words, sizes, strict=True)
        ]
    return rows


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 9, 10])
def test_encoding_is_the_shortest_one(most: int) -> None:
    values = [value for value in EDGES if len(_plain(value)) <= most]
    column = np.array(values, np.int64)
    assert _rows(encode_varints(column), len(values)) == [_plain(value) for value in values]
    assert varint_sizes(column).tolist() == [len(_plain(value)) for value in values]


@pytest.mark.parametrize("size", range(1, 11))
def test_columns_of_one_size(size: int) -> None:
    values = [value for value in EDGES if len(_plain(value)) == size]
    assert _rows(encode_varints(np.array(values, np.int64)), len(values)) == [
        _plain(value) for value in values
    ]


@pytest.mark.parametrize("most", [1, 2, 5, 8, 10])
def test_decoding_reverses_encoding_whatever_follows(most: int) -> None:
    values = [value for value in EDGES if len(_plain(value)) <= most]
    for filler in (b"\0", b"\xff", b"\x80", b"\x7f"):
        padded = [(_plain(value) + filler * 16)[:16] for value in values]
        low = np.array([int.from_bytes(data[:8], "little") for data in padded], np.uint64)
        high = np.array([int.from_bytes(data[8:], "little") for data in padded], np.uint64)
        decoded = decode_varints(low) if most <= 8 else decode_long_varints(low, high)
        assert decoded.value.tolist() == values
        assert np.broadcast_to(decoded.size, len(values)).tolist() == [len(_plain(value)) for value in values]


def test_a_varint_without_an_end_is_longer_than_its_word() -> None:
    words = np.array([0xFFFFFFFFFFFFFFFF, 0x01], np.uint64)
    assert decode_varints(words).max_size == 9


@pytest.mark.parametrize("tenth", [b"\x02", b"\x80", b"\x7f"])
def test_more_than_64_bits_are_longer_than_ten_bytes(tenth: bytes) -> None:
    data = b"\xff" * 9 + tenth + b"\0" * 6
    low, high = (np.array([int.from_bytes(part, "little")], np.uint64) for part in (data[:8], data[8:]))
    assert decode_long_varints(low, high).max_size == 11


def test_overlong_encodings_are_read() -> None:
    words = np.array([int.from_bytes(b"\x82\x80\x80\x80\x00\xff\xff\xff", "little")], np.uint64)
    decoded = decode_varints(words)
    assert (decoded.value.tolist(), decoded.max_size) == ([1], 5)


def test_zigzag_reverses() -> None:
    values = np.array(EDGES, np.int64)
    assert unzigzag(zigzag(values)).tolist() == EDGES


def test_scalar_reader_agrees_with_columns() -> None:
    values = [value for value in EDGES if len(_plain(value)) <= 5]
    assert [read_varint(_plain(value) + b"x", 0) for value in values] == [
        (value, len(_plain(value))) for value in values
    ]


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff\xff\x01"])
def test_scalar_reader_refuses_what_does_not_end(data: bytes) -> None:
    assert read_varint(data, 0)[0] < -(2**31)
