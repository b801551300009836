"""murmur2: equal to the Java client's, by its own test vectors and by kafka-python's implementation."""

import warnings
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.key_hashes import murmur2, partition_for_keys

# From Kafka's UtilsTest.testMurmur2.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_javas_vectors() -> None:
    assert murmur2(pa.array(list(JAVA), pa.binary())).tolist() == list(JAVA.values())


@pytest.fixture(scope="module")
def expected_hash() -> Callable[[bytes], int]:
    """kafka-python's murmur2, signed as Java's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of importlib, when kafka is imported
        default = pytest.importorskip("kafka.partitioner.default")

    def signed(key: bytes) -> int:
        number: int = default.murmur2(key)
        return number - (1 << 32) if number & 0x80000000 else number

    return signed


def test_every_length_and_byte(expected_hash: Callable[[bytes], int]) -> None:
    random = np.random.default_rng(5)
    keys = [random.bytes(size) for size in range(70) for _ in range(8)] + [
        b"\xff" * size for size in range(20)
    ]
    expected = [expected_hash(key) for key in keys]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == expected
    assert murmur2(pa.array([b"junk", *keys, None], pa.binary()).slice(1, len(keys))).tolist() == expected


def test_few_long_keys_among_many_short_ones(expected_hash: Callable[[bytes], int]) -> None:
    keys = [b"k%d" % row for row in range(100)] + [b"long" * 5000, b"longer" * 5000]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [expected_hash(key) for key in keys]


@pytest.mark.parametrize("partitions", [1, 3, 2**31 - 1])
def test_partitions_are_the_java_clients(expected_hash: Callable[[bytes], int], partitions: int) -> None:
    keys = [b"key-%d" % row for row in range(1000)]
    expected = [(expected_hash(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partition_for_keys(pa.array(keys, pa.binary()), partitions).tolist() == expected


def test_nulls_and_nothing_do_no_harm() -> None:
    assert murmur2(pa.array([None, b"abc", None], pa.binary()))[1] == JAVA[b"abc"]
    assert len(murmur2(pa.array([], pa.binary()))) == 0
    assert len(partition_for_keys(pa.nulls(3, pa.binary()), 4)) == 3
