"""The map of keys: against a dict; and hashes of keys of all lengths."""

import hashlib

import numpy as np
import pytest

from sparklog.format.key_hashes import SEED_BYTES, Hashes, KeyHasher
from sparklog.maintenance.compacted_batches import OffsetMap

SEED = hashlib.shake_128(b"seed").digest(SEED_BYTES)


def hashed(keys: list[bytes], seed: bytes = SEED) -> Hashes:
    data = np.frombuffer(b"".join(keys) + b"beyond", np.uint8)
    length = np.array([len(key) for key in keys], np.int64)
    return KeyHasher(seed).hash(data, np.cumsum(length) - length, length)


def test_it_remembers_the_last_offset_of_each_key() -> None:
    random = np.random.default_rng(7)
    found, expected = OffsetMap(1 << 20, 100_000), dict[bytes, int]()
    offset = 0
    for _ in range(40):
        keys = [b"%d" % number for number in random.integers(0, 3_000, random.integers(1, 2_000))]
        assert found.put(hashed(keys), np.arange(offset, offset + len(keys))) == len(keys)
        expected |= {key: offset + row for row, key in enumerate(keys)}
        offset += len(keys)
        asked = [b"%d" % number for number in range(3_200)]
        assert found.latest(hashed(asked)).tolist() == [expected.get(key, -1) for key in asked]
    assert len(found) == len(expected)


@pytest.mark.parametrize("slots", [16, 64, 1024])
def test_it_takes_what_there_is_room_for(slots: int) -> None:
    found = OffsetMap(24 * slots, 1 << 40)
    room = int(0.9 * slots)
    keys = [b"%d" % (row // 2) for row in range(4 * slots)]
    taken = found.put(hashed(keys), np.arange(len(keys)))
    assert (taken, len(found)) == (2 * room, room)
    assert found.put(hashed(keys[:taken]), np.arange(5000, 5000 + taken)) == taken  # known ones
    assert found.put(hashed([keys[0], b"new", keys[0]]), np.arange(9000, 9003)) == 1
    latest = found.latest(hashed([keys[0], keys[2], b"new"]))
    assert latest.tolist() == [9000, 5003, -1]


def test_keys_of_one_hash_word_are_told_apart() -> None:
    high = np.array([5, 5, 5 + 16, 5], np.uint64)
    low = np.array([1, 2, 1, 1], np.uint64)
    found = OffsetMap(24 * 16, 100)
    found.put(Hashes(high, low), np.arange(4))
    assert found.latest(Hashes(high, low)).tolist() == [3, 1, 2, 3]


def test_keys_of_all_lengths_have_hashes_of_their_own() -> None:
    keys = [b"\0" * size for size in (*range(70), 511, 512, 513, 514, 5_000)]
    keys += [key + b"x" for key in keys] + [b"x" + key for key in keys]
    keys += [bytes([1 << bit]) + b"abcdefg" for bit in range(8)]
    keys = list(dict.fromkeys(keys))
    both = hashed(keys)
    assert len(set(zip(both.high.tolist(), both.low.tolist(), strict=True))) == len(keys)
    for part in (both.high, both.low, both.high >> np.uint64(32), both.low & np.uint64(0xFFFFFFFF)):
        assert len(set(part.tolist())) == len(keys)
    backwards = hashed(keys[::-1])
    assert backwards.high.tolist() == both.high.tolist()[::-1]
    alone = hashed([keys[40]])
    assert (alone.high[0], alone.low[0]) == (both.high[40], both.low[40])


def test_hashes_are_those_that_are_described() -> None:
    """The same arithmetic, one number at a time."""
    coefficients = np.frombuffer(SEED, np.uint64).reshape(4, -1).tolist()
    for key in (b"", b"a", b"abcd", b"abcdefghijk"):
        words = [int.from_bytes(key[at : at + 4], "little") for at in range(0, len(key), 4)]
        parts = []
        for row in coefficients:
            total = row[0] + row[1] * len(key) + sum(a * w for a, w in zip(row[2:], words, strict=False))
            parts.append(total % 2**64 >> 32)
        found = hashed([key])
        assert [int(found.high[0]), int(found.low[0])] == [
            parts[0] << 32 | parts[1],
            parts[2] << 32 | parts[3],
        ]


def test_each_seed_has_its_own_hashes() -> None:
    other = hashlib.shake_128(b"other").digest(SEED_BYTES)
    for key in (b"", b"key", b"long" * 500):
        assert hashed([key]).high[0] != hashed([key], other).high[0]
    with pytest.raises(ValueError, match="found a seed of 3 bytes"):
        KeyHasher(b"abc")
