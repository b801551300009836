"""Hashes of whole columns of keys: Kafka's murmur2 for partitioning, and 128-bit ones for compaction.

The 128-bit hashes differ for each hasher, so that nobody can construct a collision. A key is read as 32-bit
words w1, w2, ... and its length; each of four numbers of 32 bits is

    ((a0 + a1 * length + a2 * w1 + a3 * w2 + ...) mod 2^64) / 2^32

with its own random coefficients. For any two different keys, each of the four numbers is equal with a
probability of 2^-32, independently: strongly universal hashing. The probability that any two of the four
million keys of a buffer of 128 MiB collide is 2^-85. Kafka uses MD5, which has known collisions.

Keys of more than LONG_BYTES would need as many coefficients: they are hashed one by one with keyed BLAKE2b,
which costs less than reading them.
Invariants: murmur2 is bit-equal to org.apache.kafka.common.utils.Utils.murmur2; equal keys have equal 128-bit
    hashes in one hasher, and in no other.
Not here: partitions for null keys, whose murmur2 means nothing (client/waiting_rows.py).
Concurrency: pure functions; a hasher is immutable.
Sources: Kafka Utils.murmur2, BuiltInPartitioner.partitionForKey; Dietzfelbinger, Universal hashing and
    k-wise independent random variables via integer arithmetic without primes, 1996; Lemire and Kaser,
    Strongly universal string hashing is fast, 2014.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.byte_views import LOW32, Int64Array, UInt8Array, UInt64Array, binary_column

LONG_BYTES = 512
SEED_BYTES = 4 * 8 * (2 + LONG_BYTES // 4)
_32 = np.uint64(32)
_WORD_BYTES = 8
_LITTLE_U64 = np.dtype("<u8")


def murmur2(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return Java's murmur2 of every key, as its signed int."""
    starts, lengths, data, _ = binary_column(array)
    return kernels.murmur2(data, starts, lengths)


def partition_for_keys(array: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of every key: (murmur2 & 0x7fffffff) % partitions."""
    return (murmur2(array) & np.int32(0x7FFFFFFF)) % np.int32(partitions)


class Hashes(NamedTuple):
    """One row per key."""

    high: UInt64Array
    low: UInt64Array

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> "Hashes":
        """Select rows."""
        return Hashes(self.high[rows], self.low[rows])


class KeyHasher:
    """A random member of the family of hashes."""

    def __init__(self, seed: bytes) -> None:
        """`seed`: SEED_BYTES random bytes."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"found a seed of {len(seed)} bytes, expected {SEED_BYTES}")
        self._coefficients = np.frombuffer(seed, np.uint64).reshape(4, -1)
        self._secret = hashlib.blake2b(seed).digest()

    def hash(self, data: UInt8Array, position: Int64Array, length: Int64Array) -> Hashes:
        """Return the hashes of data[position : position + length]; no length is negative."""
        size = length.view(np.uint64)
        sums = [row[0] + row[1] * size for row in self._coefficients]
        words = _Words(data)
        short = length <= LONG_BYTES
        rows: npt.NDArray[np.intp] | None = None if short.all() else np.flatnonzero(short)
        most = int(length[short].max(initial=0))
        for at in range(0, most, _WORD_BYTES):
            left = (length if rows is None else length[rows]) - at
            if int(left.min(initial=_WORD_BYTES)) <= 0:
                goes_on = left > 0
                rows = np.flatnonzero(goes_on) if rows is None else rows[goes_on]
                left = left[goes_on]
            word = words.at((position if rows is None else position[rows]) + at)
            if int(left.min(initial=_WORD_BYTES)) < _WORD_BYTES:
                unused = np.uint64(8) * (_WORD_BYTES - np.minimum(left, _WORD_BYTES)).view(np.uint64)
                word = (word << unused) >> unused
            first, second = word & LOW32, word >> _32
            place = 2 + at // 4
            for total, coefficient in zip(sums, self._coefficients, strict=True):
                more = coefficient[place] * first
                more += coefficient[place + 1] * second
                if rows is None:
                    total += more  # noqa: PLW2901 - in place
                else:
                    total[rows] += more
        found = Hashes(_join(sums[0], sums[1]), _join(sums[2], sums[3]))
        if not short.all():
            self._hash_long(data, position, length, np.flatnonzero(~short), found)
        return found

    def _hash_long(
        self,
        data: UInt8Array,
        position: Int64Array,
        length: Int64Array,
        rows: npt.NDArray[np.intp],
        found: Hashes,
    ) -> None:
        for row in rows.tolist():
            start = int(position[row])
            key = data[start : start + int(length[row])]
            digest = hashlib.blake2b(key.data, digest_size=16, key=self._secret).digest()
            found.high[row] = int.from_bytes(digest[:8], "big")
            found.low[row] = int.from_bytes(digest[8:], "big")


def _join(first: UInt64Array, second: UInt64Array) -> UInt64Array:
    return (first & ~LOW32) | (second >> _32)


class _Words:
    """8 bytes at any position of a byte array, for many positions; zeros follow the end."""

    def __init__(self, data: UInt8Array) -> None:
        size = len(data)
        self._size = size
        # An overlapping view: element i is the word that starts at byte i.
        self._words = (
            np.ndarray((size - 7,), _LITTLE_U64, data, strides=(1,)) if size >= 8 else np.zeros(0, np.uint64)
        )
        self._tail_start = max(0, size - 16)
        tail = np.zeros(size - self._tail_start + 24, np.uint8)
        tail[: size - self._tail_start] = data[self._tail_start :]
        self._tail = np.ndarray((len(tail) - 7,), _LITTLE_U64, tail, strides=(1,))

    def at(self, position: Int64Array) -> UInt64Array:
        """Return the words at these positions, 0 <= position <= size + 8."""
        last = self._size - 8
        if int(position.max(initial=0)) <= last:
            return self._words[position]
        in_tail = position > last
        words = np.empty(len(position), np.uint64)
        words[~in_tail] = self._words[position[~in_tail]]
        words[in_tail] = self._tail[position[in_tail] - self._tail_start]
        return words
