"""Zigzag varints over whole columns: values to bytes, and bytes to values.

Bytes travel in 64-bit words, the first byte in the lowest 8 bits, so that a column of varints is encoded or
decoded with a dozen NumPy operations, without a loop over bytes or records.

Invariants: encodings are the shortest ones; decoding tolerates longer ones up to Kafka's limits (5 bytes for
    an int32, 10 for an int64) as Kafka's own reader does.
Not here: which fields a record has (record_layout.py, record_fields.py).
Concurrency: pure functions.
Sources: FORMAT.md#varints; Kafka ByteUtils; protobuf's zigzag encoding.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_U = np.uint64
_BIT7S = _U(0x8080808080808080)
_LOW7S = _U(0x7F7F7F7F7F7F7F7F)
_ONES = _U(0x0101010101010101)
# Continuation bits of a varint of s bytes, for s = 0..8.
_CONTINUED = np.array([0, 0] + [0x8080808080808080 >> (64 - 8 * s) for s in range(1, 8)], np.uint64)


_NO_VARINT = -(1 << 40)


class Bytes8(NamedTuple):
    """Up to 8 bytes for every row: `size` is one number when all rows have the same."""

    word: UInt64Array
    size: UInt64Array | int
    max_size: int


def constant(byte: int) -> Bytes8:
    """The same single byte in every row."""
    return Bytes8(np.array(byte, np.uint64), 1, 1)


def zigzag(values: Int64Array) -> UInt64Array:
    """0, -1, 1, -2 ... to 0, 1, 2, 3 ..."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def unzigzag(values: UInt64Array) -> Int64Array:
    """0, 1, 2, 3 ... to 0, -1, 1, -2 ..."""
    return ((values >> _U(1)) ^ (~(values & _U(1)) + _U(1))).view(np.int64)


def varint_sizes(values: Int64Array) -> Int64Array:
    """Bytes of each value's varint."""
    coded = zigzag(values)
    sizes = np.ones(len(coded), np.int64)
    top = int(coded.max()) if len(coded) else 0
    for bits in range(7, 64, 7):
        if top >> bits == 0:
            break
        sizes += coded >= _U(1 << bits)
    return sizes


def encode_varints(values: Int64Array) -> list[Bytes8]:
    """The varint of every value, in pieces of at most 8 bytes: one piece, or two when a value needs 9 or
    10.
    """
    coded = zigzag(values)
    top = int(coded.max()) if len(coded) else 0
    if top < 1 << 7:
        return [Bytes8(coded, 1, 1)]
    if top < 1 << 14:
        is_two = (coded >= _U(0x80)).astype(np.uint64)
        word = (coded & _U(0x7F)) | ((coded & _U(0x3F80)) << _U(1)) | (is_two << _U(7))
        return [Bytes8(word, is_two + _U(1), 2) if int(coded.min()) < 1 << 7 else Bytes8(word, 2, 2)]
    sizes = np.ones(len(coded), np.uint64)
    for bits in range(7, 56, 7):
        if top >> bits == 0:
            break
        sizes += coded >= _U(1 << bits)
    low = _spread(coded) | _CONTINUED.take(sizes.view(np.int64))
    max_size = int(sizes.max())
    if top >> 56 == 0:
        return [Bytes8(low, sizes, max_size)]
    # 57 to 64 bits: the eighth byte continues, and one or two more follow.
    rest = coded >> _U(56)
    is_nine, is_ten = rest > 0, rest >= _U(0x80)
    low |= is_nine.astype(np.uint64) << _U(63)
    high = (rest & _U(0x7F)) | ((rest & _U(0x80)) << _U(1)) | (is_ten.astype(np.uint64) << _U(7))
    return [Bytes8(low, sizes, 8), Bytes8(high, is_nine.astype(np.uint64) + is_ten, 2)]


def append_bytes(first: Bytes8, second: Bytes8) -> Bytes8:
    """`second` behind `first`; together they must fit into 8 bytes."""
    if isinstance(first.size, int):
        word = first.word | (second.word << _U(8 * first.size))
    else:
        word = first.word | (second.word << (first.size << _U(3)))
    return Bytes8(word, add_sizes(first.size, second.size), first.max_size + second.max_size)


def add_sizes(first: UInt64Array | int, second: UInt64Array | int) -> UInt64Array | int:
    """The sum of two sizes, one number if both are."""
    if isinstance(first, int):
        return first + second if isinstance(second, int) else second + _U(first)
    return first + (_U(second) if isinstance(second, int) else second)


class Decoded(NamedTuple):
    """Values and the bytes they took; `size` is one number when all rows have the same; 9 = not within 8
    bytes.
    """

    value: Int64Array
    size: Int64Array | int
    max_size: int


def decode_varints(words: UInt64Array) -> Decoded:
    """The varint in the lowest bytes of every word."""
    if not (words & _U(0x80)).any():
        return Decoded(unzigzag(words & _U(0x7F)), 1, 1)
    if not (words & (words << _U(8)) & _U(0x8000)).any():
        is_two = (words >> _U(7)) & _U(1)
        value = (words & _U(0x7F)) | ((words & (is_two * _U(0x7F00))) >> _U(1))
        if is_two.all():
            return Decoded(unzigzag(value), 2, 2)
        return Decoded(unzigzag(value), is_two.view(np.int64) + 1, 2)
    stops = ~words & _BIT7S
    stop = stops & (~stops + _U(1))  # the lowest: the last byte of the varint
    covered = (stop << _U(1)) - _U(1)  # every bit up to it; all bits if there is none
    sizes = (((covered & _ONES) * _ONES) >> _U(56)).view(np.int64)
    endless = stop == 0
    if endless.any():
        sizes = sizes + endless
    return Decoded(unzigzag(_gather(words & covered)), sizes, int(sizes.max()))


def decode_long_varints(low: UInt64Array, high: UInt64Array) -> Decoded:
    """Varints of which some need 9 or 10 bytes: 8 in `low`, the rest in `high`; size 11 = longer."""
    short = decode_varints(low)
    is_long = np.asarray(short.size) > 8
    byte8, byte9 = high & _U(0xFF), (high >> _U(8)) & _U(0xFF)
    is_ten = byte8 >= _U(0x80)
    rest = (byte8 & _U(0x7F)) | np.where(is_ten, (byte9 & _U(1)) << _U(7), _U(0))
    # Of the tenth byte only the lowest bit is left of 64; more bits, or an eleventh byte, is no int64.
    sizes = np.where(is_ten, np.where(byte9 > 1, 11, 10), 9)
    value = unzigzag(_gather(low) | (rest << _U(56)))
    sizes = np.where(is_long, sizes, short.size)
    return Decoded(np.where(is_long, value, short.value), sizes, int(sizes.max()))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """One int32 varint: (value, position behind it); a very negative value if it is cut off or too long."""
    coded, shift = 0, 0
    while at < len(data) and shift <= 28:
        byte = data[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), at
        shift += 7
    return _NO_VARINT, at


def _spread(coded: UInt64Array) -> UInt64Array:
    # 56 bits into eight groups of 7, halving the distance each time.
    word = (coded & _U(0x0FFFFFFF)) | ((coded & _U(0x00FFFFFFF0000000)) << _U(4))
    word = (word & _U(0x00003FFF00003FFF)) | ((word & _U(0x0FFFC0000FFFC000)) << _U(2))
    return (word & _U(0x007F007F007F007F)) | ((word & _U(0x3F803F803F803F80)) << _U(1))


def _gather(words: UInt64Array) -> UInt64Array:
    word = words & _LOW7S
    word = (word & _U(0x007F007F007F007F)) | ((word & _U(0x7F007F007F007F00)) >> _U(1))
    word = (word & _U(0x00003FFF00003FFF)) | ((word & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (word & _U(0x0FFFFFFF)) | ((word & _U(0x0FFFFFFF00000000)) >> _U(4))
