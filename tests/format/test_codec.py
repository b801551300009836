"""Codecs: Kafka's frames both ways, damage, and bounds."""

import struct
import tracemalloc
from random import Random
from typing import Any

import cramjam
import lz4.frame
import pytest
import snappy

from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog.format.codec import (
    LZ4_BLOCK_BYTES,
    XERIAL_BLOCK_BYTES,
    XERIAL_HEADER,
    Codec,
    compress,
    decompress,
)

MIB = 1 << 20
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
DATA = b"".join(b"record %d; " % number for number in range(20_000))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, 100, XERIAL_BLOCK_BYTES, XERIAL_BLOCK_BYTES + 1, len(DATA)])
def test_round_trip(codec: Codec, size: int) -> None:
    compressed = compress(codec, memoryview(DATA)[:size])
    assert bytes(decompress(codec, compressed, max_bytes=size, where="test")) == DATA[:size]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_levels_are_passed_on(codec: Codec) -> None:
    sizes = {len(compress(codec, DATA, level)) for level in (1, 9)}
    assert len(sizes) == 2
    assert all(
        decompress(codec, compress(codec, DATA, level), max_bytes=MIB, where="t") == DATA for level in (1, 9)
    )


def test_names_are_kafkas() -> None:
    assert [Codec.from_name(codec.label) for codec in Codec] == list(Codec)
    assert Codec.from_name(" ZSTD ") is Codec.ZSTD
    assert Codec.from_name("uncompressed") is Codec.NONE
    with pytest.raises(InvalidRequestError, match=r"UNSUPPORTED_CODEC.*'brotli'"):
        Codec.from_name("brotli")


def test_lz4_blocks_are_independent_and_unchecked() -> None:
    frame = bytes(compress(Codec.LZ4, DATA))
    flags = frame[4]
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert flags & 0x20, "blocks depend on each other: Java refuses that (KIP-57)"
    assert not flags & 0x04, "content checksum: costs time, the batch has a CRC"


@pytest.mark.parametrize("size", [0, 1, LZ4_BLOCK_BYTES, LZ4_BLOCK_BYTES + 1, 3 * LZ4_BLOCK_BYTES])
@pytest.mark.parametrize("random", [False, True], ids=["repeating", "random"])
def test_lz4_itself_reads_our_frames(size: int, random: bool) -> None:
    data = Random(size).randbytes(size) if random else (DATA * 5)[:size]
    frame = bytes(compress(Codec.LZ4, data))
    info = lz4.frame.get_frame_info(frame)
    assert (info["block_size"], info["block_linked"]) == (LZ4_BLOCK_BYTES, False)
    assert lz4.frame.decompress(frame) == data
    assert len(frame) <= size + 11 + 4 * 3, "blocks that do not shrink are stored"


def test_snappy_is_written_in_xerials_blocks() -> None:
    stream = bytes(compress(Codec.SNAPPY, DATA))
    assert stream.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    at, plain = len(XERIAL_HEADER), b""
    while at < len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        block = snappy.decompress(stream[at + 4 : at + 4 + size])
        assert len(block) <= XERIAL_BLOCK_BYTES
        plain += block
        at += 4 + size
    assert plain == DATA


def test_raw_snappy_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, snappy.compress(DATA), max_bytes=MIB, where="t")) == DATA


def test_xerial_versions_in_the_wrong_byte_order_are_read() -> None:
    stream = b"\x82SNAPPY\0" + struct.pack("<ii", 1, 1) + bytes(compress(Codec.SNAPPY, DATA))[16:]
    assert bytes(decompress(Codec.SNAPPY, stream, max_bytes=MIB, where="t")) == DATA


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_in_a_row_are_read(codec: Codec) -> None:
    frames = bytes(compress(codec, b"one, ")) + bytes(compress(codec, b"two"))
    assert bytes(decompress(codec, frames, max_bytes=8, where="t")) == b"one, two"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_truncation_is_refused(codec: Codec) -> None:
    frame = bytes(compress(codec, DATA[:2000]))
    # Nothing at all, or xerial's header alone, may be empty data; its record count finds that out.
    for cut in set(range(1, len(frame))) - ({len(XERIAL_HEADER)} if codec is Codec.SNAPPY else set()):
        with pytest.raises(CorruptLogError, match=r"CORRUPT_BATCH.*here@7"):
            decompress(codec, frame[:cut], max_bytes=MIB, where="here@7")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_garbage_behind_the_frame_is_refused(codec: Codec) -> None:
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        decompress(codec, bytes(compress(codec, DATA)) + b"garbage", max_bytes=MIB, where="t")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_garbage_is_refused(codec: Codec) -> None:
    for seed in range(50):
        garbage = bytes((seed * 31 + index * 97) & 0xFF for index in range(3, 3 + seed))
        with pytest.raises(CorruptLogError):
            decompress(codec, b"\xff" + garbage, max_bytes=MIB, where="t")


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_too_many_is_refused(codec: Codec) -> None:
    compressed = compress(codec, DATA)
    with pytest.raises(CorruptLogError, match=f"BATCH_TOO_LARGE.*{len(DATA) - 1} bytes"):
        decompress(codec, compressed, max_bytes=len(DATA) - 1, where="t")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bomb_takes_no_memory_beyond_the_limit(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(32 * MIB)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLogError, match="BATCH_TOO_LARGE"):
            decompress(codec, bomb, max_bytes=MIB, where="t")
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


def test_snappy_size_that_is_claimed_only_is_refused() -> None:
    claim = b"\xff\xff\xff\xff\x07" + b"\0" * 10  # says 2 GiB
    with pytest.raises(CorruptLogError, match="BATCH_TOO_LARGE"):
        decompress(Codec.SNAPPY, claim, max_bytes=MIB, where="t")
    block = struct.pack(">i", len(claim)) + claim
    with pytest.raises(CorruptLogError, match="BATCH_TOO_LARGE"):
        decompress(Codec.SNAPPY, XERIAL_HEADER + block * 3, max_bytes=MIB, where="t")
    within = b"\x80\x80\x20" + b"\0" * 10  # says 512 KiB, which is allowed, and holds next to nothing
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        decompress(Codec.SNAPPY, within, max_bytes=MIB, where="t")


@pytest.mark.parametrize("size", [-1, 0, 100])
def test_xerial_block_size_that_does_not_fit_is_refused(size: int) -> None:
    with pytest.raises(CorruptLogError, match=f"xerial block of {size} of 3 bytes"):
        decompress(Codec.SNAPPY, XERIAL_HEADER + struct.pack(">i", size) + b"abc", max_bytes=MIB, where="t")


def test_cramjam_still_says_output_full_as_we_expect() -> None:
    # The codec tells "too large" from "damaged" by these words; a new cramjam must not change them unnoticed.
    module: Any
    for module in (cramjam.gzip, cramjam.lz4, cramjam.zstd):
        with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
            module.decompress_into(module.compress(DATA), bytearray(10))
