"""Validates produced batches to the last record, and prepares them for storage.

`accept` is one compiled call for the usual batches; `check_produced` knows all kinds, and creates the errors.
An UncheckedPart is one batch of a request, which other threads validate.

Kafka's rules, in Kafka's order: exactly one batch of magic 2, base offset 0, size, CRC, header, records,
keys, timestamps. A valid batch is stored unchanged, except for three fields outside the CRC or owned by the
broker: base offset and leader epoch, and the largest timestamp if it was wrong or the topic has
LogAppendTime. With a topic's own compression.type the records are recompressed.

Invariants: bytes are hostile: no allocation depends on their claims; any bytes result in a part or a
    RefusedBatchError with Kafka's code.
Deviations: records whose offsets are not 0, 1, 2, ... are refused (Kafka renumbers them if they are
    compressed), and so are timestamps below -1 (our index of times cannot hold them).
Not here: which thread validates when (backlog.py); sequence numbers (decisions.py); offsets.
Concurrency: pure; any thread. CheckMemory is shared by all that validate.
Sources: Kafka ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords, LogValidator.
"""

import collections
import contextlib
import dataclasses
import struct
import threading
from collections.abc import Callable, Iterator
from time import thread_time

import msgspec
import numpy as np

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.format import kernels
from sparklog.format.codec import BytesLike, Codec, Reserve, compress, decompress_at_once
from sparklog.format.encode import EncodedBatches
from sparklog.format.kernels import PlainBatch, UInt8Array
from sparklog.format.produced import (
    InspectedRecords,
    inspect_records,
    validate_produced_header,
)
from sparklog.format.record_batch import (
    CODEC_MASK,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_MASK,
    HEADER,
    KNOWN_ATTRIBUTES,
    LENGTH_END,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc32c,
    encode_header,
    header_error,
)
from sparklog.format.schema import TimestampType
from sparklog.log.config import TimestampMode, TopicConfig
from sparklog.metadata import Topic
from sparklog_server.cluster.leadership import LEADER_EPOCH
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.publish.parts import NO_TIMESTAMP_MS, AppendPart, InTransaction, RefusedBatchError
from sparklog_server.root.live_root import LiveRoot

FIRST_ZSTD_VERSION = 7  # of Produce: KIP-110
_MAX_RECORD_ERRORS = 100  # reported of one batch
_ZERO = np.zeros(1, np.int64)
_ZERO.flags.writeable = False
_PREFIX = struct.Struct(">qii")  # base offset, batch length, leader epoch: what the CRC does not cover
_ATTRIBUTES_LOW_BYTE = 22


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Limits of a topic and the broker. `codec`: the topic's own; None: the producer's."""

    max_message_bytes: int
    segment_bytes: int
    max_decompressed_bytes: int
    is_compacted: bool
    log_append_time: bool
    before_max_ms: int
    after_max_ms: int
    codec: Codec | None

    @classmethod
    def of(cls, config: TopicConfig, max_decompressed_bytes: int) -> "BatchRules":
        """Return the rules of a topic's settings."""
        codec = config.compression_type
        return cls(
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            is_compacted="compact" in config.cleanup_policy,
            log_append_time=config.message_timestamp_type == TimestampMode.LOG_APPEND_TIME,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            codec=None if codec == "producer" else Codec.from_name(codec),
        )


def check_produced(
    records: BytesLike,
    rules: BatchRules,
    *,
    where: str,
    now_ms: int,
    api_version: int,
    in_transaction: bool = False,
    max_plain_bytes: int | None = None,
    reserve: Reserve | None = None,
) -> tuple[EncodedBatches, BatchHeader, int]:
    """Return the batch as it will be stored, its header, and its log append time (-1: the client's times).

    It knows every kind of batch, and creates the error of an invalid one; `accept` is faster.

    Args:
        in_transaction: True if the request has a transactional id.
        max_plain_bytes: the limit of its decompressed size; None: max.decompressed.message.bytes.
        reserve: called for memory before the batch is decompressed.
    Raises: RefusedBatchError.
    """
    view = memoryview(records).cast("B")
    header = _header(view, where, api_version)
    _validate_size(len(view), rules.max_message_bytes, where)
    crc = crc32c(view[CRC_START:])
    if crc != header.crc:
        found = f"found CRC-32C {header.crc:#010x}, expected {crc:#010x}"
        raise _refused("CORRUPT_BATCH", where, found, ErrorCode.corrupt_message)
    _validate_header(header, where, in_transaction)
    limit = rules.max_decompressed_bytes if max_plain_bytes is None else max_plain_bytes
    try:
        inspected = inspect_records(view, header, where=where, max_decompressed_bytes=limit, reserve=reserve)
    except CorruptLogError as error:
        too_large = error.code == "BATCH_TOO_LARGE"
        code = ErrorCode.message_too_large if too_large else ErrorCode.invalid_record
        raise _as_refused(error, code) from None
    _validate_records(inspected, header, rules, where, now_ms)
    chunks, stored = _stored(view, header, inspected, rules, now_ms)
    _validate_size(stored.size, rules.max_message_bytes, where)
    if stored.size > rules.segment_bytes:
        found = (
            f"found a batch of {stored.size} bytes, expected at most segment.bytes = {rules.segment_bytes}"
        )
        raise _refused("APPEND_TOO_LARGE", where, found, ErrorCode.record_list_too_large)
    encoded = one_batch(chunks, stored.size, stored.record_count, stored.max_timestamp_ms)
    return encoded, stored, now_ms if rules.log_append_time else NO_TIMESTAMP_MS


def one_batch(chunks: list[BytesLike], size: int, record_count: int, max_timestamp_ms: int) -> EncodedBatches:
    """Return these chunks as a single batch."""
    numbers = np.array((size, record_count, max_timestamp_ms), np.int64)
    return EncodedBatches(
        data=chunks,
        size_bytes=size,
        record_count=record_count,
        max_timestamp_ms=max_timestamp_ms,
        position=_ZERO,
        size=numbers[:1],
        base_offset=_ZERO,
        batch_record_count=numbers[1:2],
        batch_max_timestamp_ms=numbers[2:],
    )


# --- the header --------------------------------------------------------------------------------------


def why_no_batch(data: BytesLike, where: str) -> RefusedBatchError | None:
    """Return the error for bytes that cannot begin a batch.

    Too few bytes are refused before they become a part: 64 KB may have 8,000 parts of a byte each, and their
    check in another thread took twice as long as all the rest.
    """
    if not len(data):
        return _refused(
            "INVALID_BATCH", where, "found no record batch, expected one", ErrorCode.invalid_record
        )
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != MAGIC:
        magic = struct.unpack_from(">b", data, MAGIC_POSITION)[0]
        found = f"found a record batch of magic {magic}, expected {MAGIC}"
        return _refused("UNSUPPORTED_MAGIC", where, found, ErrorCode.invalid_record)
    if len(data) < HEADER.size:
        found = f"found {len(data)} bytes, expected a record batch of at least {HEADER.size}"
        return _refused("CORRUPT_BATCH", where, found, ErrorCode.corrupt_message)
    return None


def _header(view: memoryview, where: str, api_version: int) -> BatchHeader:
    """Return the header of the only batch in `view`."""
    refused = why_no_batch(view, where)
    if refused is not None:
        raise refused
    header = BatchHeader(*HEADER.unpack_from(view))
    if header.size < HEADER.size or header.size > len(view):
        found = f"found a batch of {header.size} bytes in {len(view)}, expected a whole one"
        raise _refused("CORRUPT_BATCH", where, found, ErrorCode.corrupt_message)
    if header.attributes & CODEC_MASK == Codec.ZSTD and api_version < FIRST_ZSTD_VERSION:
        found = f"found zstd in Produce version {api_version}, expected {FIRST_ZSTD_VERSION} or later"
        raise _refused("UNSUPPORTED_CODEC", where, found, ErrorCode.unsupported_compression_type)
    if header.size < len(view):
        found = f"found {len(view) - header.size} bytes behind the batch, expected exactly one batch"
        raise _refused("INVALID_BATCH", where, found, ErrorCode.invalid_record)
    if header.base_offset != 0:
        found = f"found base offset {header.base_offset}, expected 0"
        raise _refused("INVALID_BATCH", where, found, ErrorCode.invalid_record)
    return header


def _validate_header(header: BatchHeader, where: str, in_transaction: bool) -> None:
    if header.is_transactional and not in_transaction:
        found = f"found a batch of a transaction of producer {header.producer_id} in a request without a "
        raise _refused(
            "MISSING_TRANSACTIONAL_ID",
            where,
            f"{found}transactional id, expected one",
            ErrorCode.transactional_id_authorization_failed,
        )
    # Kafka ignores unknown bits; here stored ones could get a meaning later.
    if header.attributes & (DELETE_HORIZON_MASK | ~KNOWN_ATTRIBUTES):
        found = f"found attributes {header.attributes & 0xFFFF:#06x}, expected codec and timestamp type only"
        raise _refused("UNSUPPORTED_ATTRIBUTES", where, found, ErrorCode.invalid_record)
    try:
        # Before the rules of stored batches: those tolerate gaps.
        if header.attributes & CODEC_MASK <= max(Codec):
            validate_produced_header(header, where=where)
        error = header_error(header, where)
    except SparklogError as broken:
        raise _as_refused(broken, ErrorCode.invalid_record) from None
    if error is not None:
        unknown_codec = error.code == "UNSUPPORTED_CODEC"
        code = ErrorCode.unsupported_compression_type if unknown_codec else ErrorCode.invalid_record
        raise _as_refused(error, code)


def _validate_size(size: int, limit: int, where: str) -> None:
    if size > limit:
        found = f"found a batch of {size} bytes, expected at most max.message.bytes = {limit}"
        raise _refused("BATCH_TOO_LARGE", where, found, ErrorCode.message_too_large)


# --- the records -------------------------------------------------------------------------------------


def _validate_records(
    inspected: InspectedRecords, header: BatchHeader, rules: BatchRules, where: str, now_ms: int
) -> None:
    """Check keys and timestamps; Kafka names every record that breaks a rule."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        found = "found timestamp type LogAppendTime, expected CreateTime: only the broker sets the other one"
        raise _refused("TIMESTAMP_OUT_OF_RANGE", where, found, ErrorCode.invalid_timestamp)
    keyless = rules.is_compacted and len(inspected.keyless) > 0
    low, high = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    out_of_range = not rules.log_append_time and not (
        low <= inspected.min_timestamp_ms and inspected.max_timestamp_ms <= high
    )
    if keyless or out_of_range or inspected.max_timestamp_ms < NO_TIMESTAMP_MS:
        _refuse_records(inspected, header, rules, where, (low, high))


def _refuse_records(
    inspected: InspectedRecords, header: BatchHeader, rules: BatchRules, where: str, bounds: tuple[int, int]
) -> None:
    """Raise the error with all wrong records, if any: -1 (no timestamp) is never out of range."""
    errors: list[tuple[int, str]] = []
    if rules.is_compacted:
        errors += [
            (int(index), f"Compacted topic cannot accept message without key in topic partition {where}")
            for index in inspected.keyless[:_MAX_RECORD_ERRORS]
        ]
    bad_times = False
    if not rules.log_append_time:
        low, high = bounds
        times = header.first_timestamp_ms + np.asarray(inspected.timestamp_delta, np.int64)
        wrong = (times != NO_TIMESTAMP_MS) & ((times < low) | (times > high) | (times < NO_TIMESTAMP_MS))
        rows = np.flatnonzero(wrong)
        within = f"[{low}, {high}]"
        bad_times = len(rows) > 0
        errors += [
            (int(row), f"Timestamp {times[row]} of message with offset {row} is out of range {within}")
            for row in rows[:_MAX_RECORD_ERRORS]
        ]
    if not errors:
        return
    reason = "invalid timestamp" if bad_times else f"{len(errors)} record errors"
    first = "; ".join(text for _, text in errors[:3])
    raise RefusedBatchError(
        "TIMESTAMP_OUT_OF_RANGE" if bad_times else "INVALID_BATCH",
        f"{where}: One or more records have been rejected due to {reason}: {first}",
        fix="correct the producer's clock or timestamps, or the topic's message.timestamp.*.max.ms"
        if bad_times
        else "give every record of a compacted topic a key",
        kafka_code=ErrorCode.invalid_timestamp if bad_times else ErrorCode.invalid_record,
        record_errors=tuple(errors[:_MAX_RECORD_ERRORS]),
    )


# --- what is stored ----------------------------------------------------------------------------------


def _stored(
    view: memoryview, header: BatchHeader, inspected: InspectedRecords, rules: BatchRules, now_ms: int
) -> tuple[list[BytesLike], BatchHeader]:
    """Return the chunks to write, and the header in them."""
    changes: dict[str, int] = {}
    body: BytesLike = view[HEADER.size :]
    if rules.log_append_time:
        changes = {"attributes": header.attributes | TIMESTAMP_TYPE_MASK, "max_timestamp_ms": now_ms}
    elif header.max_timestamp_ms != inspected.max_timestamp_ms:
        changes = {"max_timestamp_ms": inspected.max_timestamp_ms}
    if rules.codec is not None and rules.codec is not header.codec:
        body = compress(rules.codec, inspected.body)
        attributes = changes.get("attributes", header.attributes)
        changes["attributes"] = attributes & ~CODEC_MASK | rules.codec
        changes["batch_length"] = HEADER.size - LENGTH_END + len(body)
    stored = dataclasses.replace(header, partition_leader_epoch=LEADER_EPOCH, **changes)
    if changes:
        return [encode_header(stored, body), body], stored
    prefix = _PREFIX.pack(0, header.batch_length, LEADER_EPOCH)
    return [prefix, view[_PREFIX.size :]], stored


def _refused(code: str, where: str, found: str, kafka_code: ErrorCode) -> RefusedBatchError:
    return RefusedBatchError(
        code, f"{where}: {found}", fix="let a Kafka client build the batch", kafka_code=kafka_code
    )


def _as_refused(error: SparklogError, kafka_code: ErrorCode) -> RefusedBatchError:
    return RefusedBatchError(
        error.code, error.message, fix="let a Kafka client build the batch", kafka_code=kafka_code
    )


# --- the quick way -----------------------------------------------------------------------------------
#
# Accepts a batch of the usual kind in one compiled call, and prepares it for storage.
#
# Compressed batches are decompressed into the thread's Scratch, which is allocated once: a decompression bomb
# has no more room there than any other batch.
#
# Invariants: `check_produced` accepts every batch that `accept` does, with the same stored bytes
#     (tests/server/publish/test_produced_batches_accept.py). It refuses nothing: None means that
#     `check_produced` decides.
# Bounds: PLAIN_BYTES uncompressed for all batches that follow one `begin`, and SECONDS of computing.
# Concurrency: a Scratch belongs to one thread.


PLAIN_BYTES = 256 << 10
SECONDS = 0.001  # no decompression begins after this time; 32 KB of empty zstd frames take 0.4 ms


class Scratch:
    """The decompression buffer of a thread, with its remaining budget of bytes and time."""

    __slots__ = ("_memory", "_room", "_until")

    def __init__(self) -> None:
        self._memory = np.empty(PLAIN_BYTES, np.uint8)
        self.begin()

    def begin(self) -> None:
        """Reset the budget, for another request or batch."""
        self._room = PLAIN_BYTES
        self._until = thread_time() + SECONDS

    def decompress(self, codec: Codec, body: BytesLike, max_bytes: int) -> kernels.UInt8Array | None:
        """Return the bytes, valid until the next call. None: too large, or invalid; this ends the budget."""
        room, self._room = self._room, 0
        output = self._memory[: min(room, max_bytes)]
        if not len(output) or thread_time() > self._until:
            return None
        size = decompress_at_once(codec, body, output)
        if size < 0:
            return None
        self._room = room - size
        return output[:size]


def accept(
    data: BytesLike,
    rules: BatchRules,
    now_ms: int,
    *,
    api_version: int,
    max_plain_bytes: int,
    scratch: Scratch | None,
    in_transaction: bool = False,
) -> tuple[EncodedBatches, PlainBatch] | None:
    """Return the stored form of a batch of the usual kind, and its producer.

    None: it is of another kind, or breaks a rule, or there is no room to decompress it.

    Args:
        max_plain_bytes: the limit of its decompressed size.
        in_transaction: True if it may be a transaction's.
    """
    view = memoryview(data)
    size = len(view)
    if not HEADER.size < size <= min(rules.max_message_bytes, rules.segment_bytes):
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
        is_known = codec <= max(Codec) and (codec != Codec.ZSTD or api_version >= FIRST_ZSTD_VERSION)
        limit = min(max_plain_bytes, rules.max_decompressed_bytes)
        if scratch is None or not is_known:
            return None
        if (plain := scratch.decompress(Codec(codec), view[HEADER.size :], limit)) is None:
            return None
    elif size - HEADER.size > rules.max_decompressed_bytes:
        return None
    usual = _not_transactional(view) if is_transactional else data
    found = kernels.inspect_batch(_as_kernels_take_it(usual), plain)
    if (
        found is None
        or (is_transactional and found.producer_id <= NO_PRODUCER_ID)
        or (rules.is_compacted and found.keyless)
    ):
        return None
    if rules.log_append_time:
        return _stamped(view, found, now_ms), found
    if (
        found.min_timestamp_ms < now_ms - rules.before_max_ms
        or found.max_timestamp_ms > now_ms + rules.after_max_ms
    ):
        return None
    prefix = _PREFIX.pack(0, size - LENGTH_END, LEADER_EPOCH)
    encoded = one_batch([prefix, view[_PREFIX.size :]], size, found.record_count, found.max_timestamp_ms)
    return encoded, found


def _stamped(view: memoryview, found: PlainBatch, now_ms: int) -> EncodedBatches:
    """Return the batch with the broker's time (LogAppendTime)."""
    header, body = BatchHeader(*HEADER.unpack_from(view)), view[HEADER.size :]
    stored = dataclasses.replace(
        header,
        partition_leader_epoch=LEADER_EPOCH,
        attributes=header.attributes | TIMESTAMP_TYPE_MASK,
        max_timestamp_ms=now_ms,
    )
    return one_batch([encode_header(stored, body), body], len(view), found.record_count, now_ms)


def _not_transactional(view: memoryview) -> bytearray:
    """Return a copy without the transactional bit, for the kernel. A copy costs less than the CRC."""
    data = bytearray(view)
    data[_ATTRIBUTES_LOW_BYTE] ^= TRANSACTIONAL_MASK
    return data


def _as_kernels_take_it(data: BytesLike) -> bytes | UInt8Array:
    return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)


# --- memory ------------------------------------------------------------------------------------------
#
# A few kilobytes may decompress to a thousand times as much. The size in a batch is only a claim, so memory
# is reserved step by step, as its decompression needs it. The decompressed size is also bounded by the
# batch's own
# size: the work for a request must be in proportion to its bytes.


class CheckMemory:
    """The memory of compressed batches while they are validated, in all threads together.

    Invariants: at most the limit, but for a single reservation that is larger: it waits until it is alone.
        Granted in order. A reservation that grows gives back what it had before it waits for more, so that no
        two wait for each other.
    Concurrency: any thread.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.most_bytes = 0  # ever
        self._changed = threading.Condition()
        self._waiting: collections.deque[object] = collections.deque()

    def take(self, size: int) -> None:
        """Wait for the caller's turn, and for room."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me and self._has_room(size))
            self._waiting.popleft()
            self.used_bytes += size
            self.most_bytes = max(self.most_bytes, self.used_bytes)
            self._changed.notify_all()

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        with self._changed:
            self.used_bytes -= size
            self._changed.notify_all()

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Reserve]:
        """Yield a function that replaces its last reservation by a new one; freed at the end."""
        held = 0

        def resize(size: int) -> None:
            nonlocal held
            before, held = held, 0
            self.give_back(before)
            self.take(size)
            held = size

        try:
            yield resize
        finally:
            self.give_back(held)

    def _has_room(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self.limit_bytes


# --- unchecked parts ---------------------------------------------------------------------------------

# Batches that the publisher's thread tries itself: up to here `accept` takes some 0.2 ms. Gzip's smallest
# members take 8 us each, of 21 bytes.
SMALL_BYTES, SMALL_COMPRESSED_BYTES, SMALL_GZIP_BYTES = 256 << 10, 32 << 10, 4 << 10
# The largest factor of decompression; at least the size of an ordinary uncompressed batch is allowed. Records
# that compress even better are copies of each other; Java's producer splits the batch then. 64 KB stay 32 MB.
MAX_RATIO = 512
MAX_GRANTED_BYTES = 32 << 20  # uncompressed, of all parts of a request that are small
# What clients gather in one batch as they come (max.request.size). A topic that takes only small batches
# takes this much in one that compresses to that.
USUAL_BATCH_BYTES = 1 << 20


_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION = HEADER.size - 4 - _PRODUCER.size  # before the number of records


class CheckTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The common terms of a request's batches for one topic.

    Fields:
        now_ms: called when a batch is checked.
        parts: the number of parts of the request; they share the guaranteed decompressed size.
        memory: for decompression.
        transaction: of the request; a batch without the transactional bit is appended directly.
        client: the address of its connection.
    """

    rules: BatchRules
    topic_id: str
    topic: str
    now_ms: Callable[[], int]
    api_version: int
    parts: int = 1
    memory: CheckMemory | None = None
    transaction: InTransaction | None = None
    client: str = ""

    def max_plain_bytes(self, size: int) -> int:
        """Return the largest decompressed size of a batch of this size."""
        usual = max(self.rules.max_message_bytes, USUAL_BATCH_BYTES)
        granted = min(usual, MAX_GRANTED_BYTES // max(1, self.parts))
        return min(self.rules.max_decompressed_bytes, max(MAX_RATIO * size, granted))


class UncheckedPart(msgspec.Struct, kw_only=True):
    """A client's batch that is still to be validated. Made quickly: a request may have thousands.

    Fields:
        leader_epoch: of the partition, as of the image by which the batch is accepted.
        is_small: the publisher's thread may try to accept it.
        may_grow: it is recompressed with the topic's compression.type: slow, final size unknown.
    """

    data: BytesLike
    terms: CheckTerms
    partition: int
    leader_epoch: int
    size_bytes: int
    is_small: bool
    may_grow: bool

    @classmethod
    def of(
        cls, records: BytesLike | None, terms: CheckTerms, partition: int, leader_epoch: int
    ) -> "UncheckedPart":
        """Create the part of a request."""
        data = records or b""
        size = len(data)
        codec = data[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK if size >= HEADER.size else Codec.NONE
        stored = terms.rules.codec
        may_grow = stored is not None and size >= HEADER.size and codec != stored
        most = SMALL_GZIP_BYTES if codec == Codec.GZIP else SMALL_COMPRESSED_BYTES if codec else SMALL_BYTES
        return cls(
            data=data,
            terms=terms,
            partition=partition,
            leader_epoch=leader_epoch,
            size_bytes=size,
            is_small=not may_grow and size <= most,
            may_grow=may_grow,
        )

    @property
    def topic_id(self) -> str:
        """Return the topic's id: another topic may have its name by now."""
        return self.terms.topic_id

    @property
    def topic(self) -> str:
        """Its name."""
        return self.terms.topic

    @property
    def client(self) -> str:
        """Return the address of its connection."""
        return self.terms.client

    @property
    def producer(self) -> tuple[int, int, int]:
        """Return the batch's producer id, epoch and base sequence, unchecked."""
        return producer_of(self.data)

    @property
    def transaction(self) -> InTransaction | None:
        """Return the request's transaction, if the batch has the transactional bit."""
        return self.terms.transaction if is_transactional(self.data) else None

    def accept(self, scratch: Scratch | None) -> AppendPart | None:
        """Return the part if its batch is valid and of the usual kind; None: `check` decides."""
        terms, now_ms = self.terms, self.terms.now_ms()
        found = accept(
            self.data,
            terms.rules,
            now_ms,
            api_version=terms.api_version,
            max_plain_bytes=terms.max_plain_bytes(self.size_bytes),
            scratch=scratch,
            in_transaction=terms.transaction is not None,
        )
        if found is None:
            return None
        return self._part(*found, now_ms if terms.rules.log_append_time else NO_TIMESTAMP_MS)

    def check(self, scratch: Scratch | None = None) -> AppendPart:
        """Return the part. Raises: RefusedBatchError."""
        accepted = self.accept(scratch)
        if accepted is not None:
            return accepted
        terms = self.terms
        with contextlib.nullcontext() if terms.memory is None else terms.memory.reservation() as reserve:
            return self._part(
                *check_produced(
                    self.data,
                    terms.rules,
                    where=f"{terms.topic}-{self.partition}",
                    now_ms=terms.now_ms(),
                    api_version=terms.api_version,
                    in_transaction=terms.transaction is not None,
                    max_plain_bytes=terms.max_plain_bytes(self.size_bytes),
                    reserve=reserve,
                )
            )

    def _part(self, encoded: EncodedBatches, said: BatchHeader | PlainBatch, appended_ms: int) -> AppendPart:
        terms = self.terms
        has_producer = said.producer_id > NO_PRODUCER_ID
        return AppendPart(
            topic_id=terms.topic_id,
            topic=terms.topic,
            partition=self.partition,
            encoded=encoded,
            producer_id=said.producer_id if has_producer else -1,
            producer_epoch=said.producer_epoch if has_producer else -1,
            base_sequence=said.base_sequence if has_producer else -1,
            log_append_time_ms=appended_ms,
            leader_epoch=self.leader_epoch,
            transaction=None if terms.transaction is None else self.transaction,
            client=terms.client,
        )


def producer_of(records: BytesLike | None) -> tuple[int, int, int]:
    """Return a batch's producer id, epoch and base sequence, unchecked."""
    if records is None or len(records) < HEADER.size:
        return NO_PRODUCER_ID, 0, 0
    found: tuple[int, int, int] = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
    return found


def is_transactional(records: BytesLike | None) -> bool:
    """True if a batch has the transactional bit, unchecked."""
    return (
        records is not None
        and len(records) > _ATTRIBUTES_LOW_BYTE
        and bool(records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_MASK)
    )


# --- topic rules -------------------------------------------------------------------------------------
#
# Invariants: answers use the settings of the newest image; at most MAX_REMEMBERED topics are cached.
# Concurrency: any thread: handlers on the loop, and the publisher's thread. Entries are replaced, never
#     changed, so that at worst both parse the same.


MAX_REMEMBERED = 10_000


class TopicRules:
    """The rules of produced batches and the settings in force of topics, parsed once until they change."""

    def __init__(self, root: LiveRoot, *, max_decompressed_bytes: int) -> None:
        self._root = root
        self._max_decompressed_bytes = max_decompressed_bytes
        self._configs: dict[str, tuple[object, object, TopicConfig]] = {}
        self._rules: dict[str, tuple[TopicConfig, BatchRules]] = {}

    def rules_of(self, topic: Topic) -> BatchRules:
        """Return the rules of produced batches for a topic."""
        config = self.config_of(topic)
        known = self._rules.get(topic.topic_id)
        if known is None or known[0] is not config:
            if len(self._rules) > MAX_REMEMBERED:
                self._rules.clear()
            rules = BatchRules.of(config, self._max_decompressed_bytes)
            known = self._rules[topic.topic_id] = (config, rules)
        return known[1]

    def config_of(self, topic: Topic) -> TopicConfig:
        """Return a topic's settings in force."""
        image = self._root.image  # read once: the cache entry belongs to these settings
        root = image.configs
        known = self._configs.get(topic.topic_id)
        if known is not None and known[0] == topic.configs and known[1] == root:
            return known[2]
        config = self._root.topic_config(topic, image)
        if len(self._configs) > MAX_REMEMBERED:
            self._configs.clear()
        self._configs[topic.topic_id] = (topic.configs, root, config)
        return config
