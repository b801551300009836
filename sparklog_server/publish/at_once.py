"""A batch of the usual kind, validated and made ready to be stored in a few compiled calls.

What is compressed is decompressed into one thread's Scratch, which is made once: a bomb finds no more room
there than anybody else, and nothing is allocated for it.

Invariants: what is found right here, the steps of produced_batches.py find right as well, and store the same
    (tests/server/publish/test_one_call.py). Nothing is refused here: the steps tell, and word the error.
Bounds: PLAIN_BYTES uncompressed for all batches together that `begin` counts, and SECONDS of computing.
Not here: who has what validated where (part_checks.py, checkers.py).
Concurrency: a Scratch belongs to one thread.
"""

import struct
from time import thread_time

import numpy as np

from sparklog.format import kernels
from sparklog.format.codec import BytesLike, Codec, decompress_at_once
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.format.kernels import PlainBatch, UInt8Array
from sparklog.format.record_batch import (
    CODEC_MASK,
    CRC_POSITION,
    CRC_START,
    HEADER,
    LENGTH_END,
    NO_PRODUCER_ID,
    TRANSACTIONAL_MASK,
    crc32c,
)
from sparklog_server.cluster.leadership import LEADER_EPOCH
from sparklog_server.publish.produced_batches import FIRST_ZSTD_VERSION, BatchRules, one_batch

PLAIN_BYTES = 256 << 10
SECONDS = 0.001  # after which nothing more is begun; 32 KB of empty zstd frames take 0.4 ms
_ATTRIBUTES_LOW_BYTE = 22
_PREFIX = struct.Struct(">qii")  # base offset, batch length, leader epoch: what the CRC does not cover


class Scratch:
    """Where one thread decompresses, and what it may still do there before others wait."""

    __slots__ = ("_memory", "_room", "_until")

    def __init__(self) -> None:
        self._memory = np.empty(PLAIN_BYTES, np.uint8)
        self.begin()

    def begin(self) -> None:
        """Something else: count anew."""
        self._room = PLAIN_BYTES
        self._until = thread_time() + SECONDS

    def decompress(self, codec: Codec, body: BytesLike, max_bytes: int) -> kernels.UInt8Array | None:
        """Valid until the next call. None: it is too large, or broken; then there is no room for more."""
        room, self._room = self._room, 0
        output = self._memory[: min(room, max_bytes)]
        if not len(output) or thread_time() > self._until:
            return None
        size = decompress_at_once(codec, body, output)
        if size < 0:
            return None
        self._room = room - size
        return output[:size]


def stored_at_once(
    data: BytesLike,
    rules: BatchRules,
    now_ms: int,
    *,
    api_version: int,
    max_plain_bytes: int,
    scratch: Scratch | None,
    in_transaction: bool = False,
) -> tuple[EncodedBatches, PlainBatch] | None:
    """A batch of the usual kind as it is stored, and what it says of its producer.

    None: it is of another kind, or breaks a rule, or there is no room to decompress it.

    Args:
        max_plain_bytes: what it may decompress to.
        in_transaction: may it be a transaction's?
    """
    view = memoryview(data)
    size = len(view)
    if not HEADER.size < size <= min(rules.max_message_bytes, rules.segment_bytes) or rules.log_append_time:
        return None
    codec = view[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK
    is_transactional = bool(view[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_MASK)
    if is_transactional and not in_transaction:
        return None
    if rules.codec is not None and rules.codec != codec:
        return None
    if crc32c(view[CRC_START:]) != int.from_bytes(view[CRC_POSITION:CRC_START]):
        return None
    plain = None
    if codec:
        if (
            scratch is None
            or codec > max(Codec)
            or (codec == Codec.ZSTD and api_version < FIRST_ZSTD_VERSION)
        ):
            return None
        limit = min(max_plain_bytes, rules.max_decompressed_bytes)
        plain = scratch.decompress(Codec(codec), view[HEADER.size :], limit)
        if plain is None:
            return None
    elif size - HEADER.size > rules.max_decompressed_bytes:
        return None
    usual = _not_transactional(view) if is_transactional else data
    found = kernels.inspect_batch(_as_kernels_take_it(usual), plain)
    if (
        found is None
        or (is_transactional and found.producer_id <= NO_PRODUCER_ID)
        or (rules.is_compacted and found.keyless)
        or found.min_timestamp_ms < now_ms - rules.before_max_ms
        or found.max_timestamp_ms > now_ms + rules.after_max_ms
    ):
        return None
    return _as_stored(view, found), found


def _as_stored(view: memoryview, found: PlainBatch) -> EncodedBatches:
    prefix = _PREFIX.pack(0, len(view) - LENGTH_END, LEADER_EPOCH)
    return one_batch([prefix, view[_PREFIX.size :]], len(view), found.record_count, found.max_timestamp_ms)


def _not_transactional(view: memoryview) -> bytearray:
    """What the kernel knows as usual is the same without the bit. To copy a batch takes less than its CRC."""
    data = bytearray(view)
    data[_ATTRIBUTES_LOW_BYTE] ^= TRANSACTIONAL_MASK
    return data


def _as_kernels_take_it(data: BytesLike) -> bytes | UInt8Array:
    return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)
