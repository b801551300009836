"""Compression as Kafka frames it: none, gzip, snappy (xerial), lz4 (frame), zstd.

Invariants: decompress never returns more than `max_bytes`, and never uses much more memory than it returns,
    whatever sizes the input claims.
Not here: when to compress (encode.py); the codec's bits in the batch attributes (record_batch.py).
Concurrency: pure functions.
Sources: FORMAT.md#compression; Kafka CompressionType, SnappyFactory (xerial SnappyOutputStream), KIP-57 (lz4
    framing), KIP-110 (zstd).
"""

import enum
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, InvalidRequestError

UInt8Array: TypeAlias = npt.NDArray[np.uint8]
BytesLike: TypeAlias = bytes | bytearray | memoryview
# Called with the bytes about to be allocated, which replace those of the call before; may block.
Reserve: TypeAlias = Callable[[int], None]

# xerial's SnappyOutputStream: magic, version 1, readable since version 1; then blocks of (size i32 BE, raw
# snappy).
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_FEW_BLOCKS = 16  # each costs 3 us, whatever its size
XERIAL_BLOCK_BYTES = 32 * 1024  # what Java and kafka-python write; decoders may size their buffers by it
_BLOCK_SIZE = struct.Struct(">i")

# The limit for one batch: readers decompress no more, so writers compress no more.
DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
_FIRST_GUESS_RATIO = 8
_GROWTH = 4
_OUTPUT_FULL = (
    "failed to write whole buffer"  # cramjam's message for "the output is larger than the given space"
)


# KIP-57: blocks must be independent; no content checksum, as the batch has its own. So the descriptor of a
# frame is constant: version 1, independent blocks of at most 256 KiB, its checksum.
LZ4_HEADER = bytes.fromhex("04224d186050fb")
LZ4_BLOCK_BYTES = 256 * 1024
# As in LZ4's own frame writer: fast below, high compression (58 MB/s on random bytes) from here on.
LZ4_LEAST_HIGH_LEVEL = 3
_LZ4_STORED = 1 << 31  # bit of a block's size: the block is not compressed


class Codec(enum.IntEnum):
    """Kafka's codec ids, as in bits 0-2 of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name of the codec, as in compression.type."""
        return self.name.lower()

    @classmethod
    def from_name(cls, name: str) -> "Codec":
        """Return the codec by its name in Kafka's compression.type; `uncompressed` is an alias of none."""
        wanted = name.strip().lower()
        for codec in cls:
            if wanted in (codec.label, "uncompressed" if codec is cls.NONE else codec.label):
                return codec
        raise InvalidRequestError(
            "UNSUPPORTED_CODEC",
            f"compression: found {name!r}, expected one of {', '.join(codec.label for codec in cls)}",
            fix="Name one of the supported codecs",
        )


_MODULES: dict[Codec, Any] = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}


def compress(codec: Codec, data: BytesLike, level: int | None = None) -> BytesLike:
    """Compress a batch body. `level` is the codec's own; snappy has none. NONE returns the input."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.GZIP:
        return memoryview(cramjam.gzip.compress(data, level=6 if level is None else level))
    if codec is Codec.SNAPPY:
        return _xerial_compress(data)
    if codec is Codec.LZ4:
        if level is None or level < LZ4_LEAST_HIGH_LEVEL:
            return _lz4_compress(data)
        stream = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        stream.compress(bytes(data))  # accepts only bytes
        return memoryview(stream.finish())
    return memoryview(cramjam.zstd.compress(data, level=3 if level is None else level))


def decompress(
    codec: Codec, data: BytesLike, *, max_bytes: int, where: str, reserve: Reserve | None = None
) -> BytesLike:
    """Decompress one batch body into at most `max_bytes`; CorruptLogError BATCH_TOO_LARGE beyond that."""
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(where, max_bytes)
        return data
    if codec is Codec.SNAPPY:
        return _snappy_decompress(data, max_bytes, where, reserve)
    module = _MODULES[codec]
    # Sizes inside the frame are claims. Guess instead, and grow: unwritten space is not backed by memory.
    space = min(max_bytes, max(_FIRST_GUESS_BYTES, _FIRST_GUESS_RATIO * len(data)))
    while True:
        if reserve is not None:
            reserve(space)
        output = np.empty(space, np.uint8)
        try:
            size = module.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise _bad_frame(where, codec, str(error)) from None
            if space >= max_bytes:
                raise _too_large(where, max_bytes) from None
            del output  # before the larger one is allocated
            space = min(max_bytes, space * _GROWTH)
        else:
            return output[:size].data


def decompress_at_once(codec: Codec, data: BytesLike, output: UInt8Array) -> int:
    """Decompress into `output` if the result fits; return -1 for anything else, valid or not.

    Allocates nothing for the result, whatever the input claims; `decompress` raises the error.
    """
    try:
        if codec is Codec.SNAPPY:
            return _snappy_at_once(memoryview(data), output)
        return int(_MODULES[codec].decompress_into(data, output))
    except (cramjam.DecompressionError, CorruptLogError):
        return -1


def _lz4_compress(data: BytesLike) -> BytesLike:
    """Return a frame of blocks in LZ4's fast mode. cramjam's frame writer processes incompressible bytes at
    2.2 GB/s, its block function at 9; compressible ones take the same time in both (one core).
    """
    view = memoryview(data).cast("B")
    blocks = max(1, -(-len(view) // LZ4_BLOCK_BYTES))
    worst = len(view) // 255 + 16 * blocks + len(view)
    frame = np.empty(len(LZ4_HEADER) + 4 * blocks + worst + 4, np.uint8)
    memory = frame.data
    memory[: len(LZ4_HEADER)] = LZ4_HEADER
    at = len(LZ4_HEADER)
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        block = view[start : start + LZ4_BLOCK_BYTES]
        size = cramjam.lz4.compress_block_into(block, memory[at + 4 :], store_size=False)
        stored = size >= len(block)
        if stored:
            size = len(block)
            memory[at + 4 : at + 4 + size] = block
        struct.pack_into("<I", memory, at, size | (_LZ4_STORED if stored else 0))
        at += 4 + size
    struct.pack_into("<I", memory, at, 0)
    return memory[: at + 4]


def _xerial_compress(data: BytesLike) -> bytes:
    view = memoryview(data)
    chunks: list[bytes | memoryview] = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        chunks += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(chunks)


def _snappy_decompress(data: BytesLike, max_bytes: int, where: str, reserve: Reserve | None) -> BytesLike:
    view = memoryview(data)
    blocks = _xerial_blocks(view, where) if view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC else [view]
    sizes = [_snappy_size(block, where) for block in blocks]
    if sum(sizes) > max_bytes:
        raise _too_large(where, max_bytes)
    if reserve is not None:
        reserve(sum(sizes))
    output = np.empty(sum(sizes), np.uint8)
    try:
        _decompress_blocks(blocks, sizes, output)
    except cramjam.DecompressionError as error:
        raise _bad_frame(where, Codec.SNAPPY, str(error)) from None
    return output.data


def _snappy_at_once(view: memoryview, output: UInt8Array) -> int:
    is_xerial = view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC
    blocks = _xerial_blocks(view, "", most=_FEW_BLOCKS) if is_xerial else [view]
    sizes = [_snappy_size(block, "") for block in blocks]
    if sum(sizes) > len(output):
        return -1
    _decompress_blocks(blocks, sizes, output)
    return sum(sizes)


def _decompress_blocks(blocks: Sequence[memoryview], sizes: Sequence[int], output: UInt8Array) -> None:
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if size:
            cramjam.snappy.decompress_raw_into(block, output[position : position + size].data)
        position += size


def _xerial_blocks(view: memoryview, where: str, *, most: int | None = None) -> list[memoryview]:
    # The version fields are not checked, as in Kafka's clients: Redpanda writes them in the other byte order.
    blocks: list[memoryview] = []
    position = len(XERIAL_HEADER)
    if position > len(view):
        raise _bad_frame(where, Codec.SNAPPY, "xerial header is truncated")
    while position < len(view):
        if position + _BLOCK_SIZE.size > len(view):
            raise _bad_frame(where, Codec.SNAPPY, "xerial block size is truncated")
        (size,) = _BLOCK_SIZE.unpack_from(view, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= len(view) - position or len(blocks) == most:
            raise _bad_frame(where, Codec.SNAPPY, f"xerial block of {size} of {len(view) - position} bytes")
        blocks.append(view[position : position + size])
        position += size
    return blocks


def _snappy_size(block: memoryview, where: str) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise _bad_frame(where, Codec.SNAPPY, str(error)) from None


def _bad_frame(where: str, codec: Codec, problem: str) -> CorruptLogError:
    return CorruptLogError(
        "CORRUPT_BATCH",
        f"{where}: found a {codec.label} frame that does not decompress ({problem}), expected a whole frame",
        fix="Restore the segment from a copy, or read past the batch after `sparklog dump-log`",
    )


def _too_large(where: str, max_bytes: int) -> CorruptLogError:
    return CorruptLogError(
        "BATCH_TOO_LARGE",
        f"{where}: found a record batch of more than {max_bytes} bytes uncompressed, expected at most that",
        fix="Read on after it; if it is genuine, a Kafka client reads it through a broker, which sends it "
        "as it is",
    )
