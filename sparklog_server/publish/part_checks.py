"""When a client's batch is checked, in how much memory, and several of them at once.

What a batch may become uncompressed is bounded by its own size, not by a setting alone: the work for a
request must not be out of proportion to what it cost to send. What several threads decompress at once comes
out of one CheckMemory.

Invariants: a part's check raises SparklogError or returns the part; an error that is kept holds no buffers.
Not here: the rules (produced_batches.py), the threads (checkers.py).
Concurrency: pure, but for waiting for memory; any thread.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sparklog.errors import SparklogError, as_value
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.format.kernels import PlainBatch
from sparklog.format.produced import InspectedRecords
from sparklog.format.record_batch import (
    CODEC_MASK,
    HEADER,
    NO_PRODUCER_ID,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from sparklog_server.publish.at_once import Scratch, stored_at_once
from sparklog_server.publish.check_memory import CheckMemory, Reservation
from sparklog_server.publish.first_batches import producer_of
from sparklog_server.publish.parts import NO_TIMESTAMP_MS, AppendPart, InTransaction, UncheckedPart
from sparklog_server.publish.produced_batches import (
    BatchRules,
    finish_batch,
    inspect_batch,
    open_batch,
)

# Up to here validating is quick: 0.2 ms in one compiled call.
QUICK_BYTES = 256 << 10
QUICK_COMPRESSED_BYTES = 4 << 10  # so is it of what is compressed ...
QUICK_RECORDS, QUICK_PLAIN_BYTES = 4096, 2 << 20  # ... of so many records, of at most so much uncompressed
# Of so many bytes it is tried in the publisher's thread, within the bounds of at_once.py. Gzip's smallest
# members take 8 us each, of 21 bytes.
TRIED_BYTES, TRIED_GZIP_BYTES = 32 << 10, 4 << 10
# A batch may decompress to so many times its size, or to what it might have had uncompressed. Records that
# compress even better are copies of each other; Java's producer splits the batch then. 64 KB stay 32 MB.
MAX_RATIO = 512
MAX_GRANTED_BYTES = 32 << 20  # uncompressed, of all parts of a request that are small
# What clients gather in one batch as they come (max.request.size). A topic that takes only small batches
# takes this much in one that compresses to that.
USUAL_BATCH_BYTES = 1 << 20
_ATTRIBUTES_LOW_BYTE = 22
_RECORD_COUNT = struct.Struct(">i")  # the last field of a header


class CheckTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the batches that a request has for one topic have in common.

    Fields:
        now_ms: asked when a batch is checked.
        parts: how many the request has; they share what each of them may become at least.
        memory: to decompress in.
        transaction: the request's; a batch that does not say that it is of one is appended all the same.
        client: the address that they come from.
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
        """What a batch of this size may become uncompressed."""
        usual = max(self.rules.max_message_bytes, USUAL_BATCH_BYTES)
        granted = min(usual, MAX_GRANTED_BYTES // max(1, self.parts))
        return min(self.rules.max_decompressed_bytes, max(MAX_RATIO * size, granted))


def unchecked_part(
    records: BytesLike | None, terms: CheckTerms, partition: int, leader_epoch: int
) -> UncheckedPart:
    """A client's batch, to be checked by `check_produced` later, with the time of that moment.

    Args:
        leader_epoch: of the partition, as of the image by which it is accepted.
    """
    data = records or b""
    size = len(data)
    codec = data[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK if size >= HEADER.size else Codec.NONE
    stored = terms.rules.codec  # a topic's compression.type of its own
    may_grow = stored is not None and size >= HEADER.size and codec != stored
    max_plain_bytes = terms.max_plain_bytes(size)
    return UncheckedPart(
        topic_id=terms.topic_id,
        topic=terms.topic,
        partition=partition,
        size_bytes=size,
        check=ProducedCheck(data, terms, partition, leader_epoch, max_plain_bytes),
        is_quick=not may_grow and (_is_quick(data, size, max_plain_bytes) if codec else size <= QUICK_BYTES),
        is_tried=bool(codec) and not may_grow and _is_tried(size, codec),
        may_grow=may_grow,
        client=terms.client,
        **(_said(data, terms.transaction) if may_grow else {}),
    )


def _said(data: BytesLike, transaction: InTransaction | None) -> dict[str, Any]:
    """What a batch says of its producer, right or wrong."""
    producer_id, producer_epoch, base_sequence = producer_of(data)
    return {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "transaction": transaction if is_transactional(data) else None,
    }


def is_transactional(records: BytesLike | None) -> bool:
    """Does a batch say so, right or wrong?"""
    return (
        records is not None
        and len(records) > _ATTRIBUTES_LOW_BYTE
        and bool(records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_MASK)
    )


class ProducedCheck:
    """`check_produced` for one part, whole or in steps (`check_together`).

    Small while it waits, and made quickly: a request may have thousands.
    """

    __slots__ = ("_data", "_leader_epoch", "_max_plain_bytes", "_partition", "_terms")

    def __init__(
        self, data: BytesLike, terms: CheckTerms, partition: int, leader_epoch: int, max_plain_bytes: int
    ) -> None:
        self._data = data
        self._terms = terms
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._max_plain_bytes = max_plain_bytes

    @property
    def _view(self) -> memoryview:
        return memoryview(self._data).cast("B")

    @property
    def _where(self) -> str:
        return f"{self._terms.topic}-{self._partition}"

    def __call__(self) -> AppendPart:
        return self.at_once() or self.go_on(self.open())

    def at_once(self, scratch: Scratch | None = None) -> AppendPart | None:
        """The part, if its batch is right and of the usual kind; None if the other steps are to tell."""
        terms = self._terms
        found = stored_at_once(
            self._data,
            terms.rules,
            terms.now_ms(),
            api_version=terms.api_version,
            max_plain_bytes=self._max_plain_bytes,
            scratch=scratch,
            in_transaction=terms.transaction is not None,
        )
        return None if found is None else self._part(*found, NO_TIMESTAMP_MS)

    def open(self) -> BatchHeader:
        """The header, when all is well but perhaps the records. Raises: RefusedBatchError."""
        terms = self._terms
        return open_batch(
            self._view,
            terms.rules,
            self._where,
            terms.api_version,
            in_transaction=terms.transaction is not None,
        )

    def go_on(self, header: BatchHeader) -> AppendPart:
        """The part, after `open`. Raises: RefusedBatchError."""
        limit, memory = self._max_plain_bytes, self._terms.memory
        if memory is None or header.codec is Codec.NONE:
            return self.finish(header, inspect_batch(self._view, header, limit, self._where))
        with Reservation(memory) as reservation:
            inspected = inspect_batch(self._view, header, limit, self._where, reservation.resize)
            return self.finish(header, inspected)

    def finish(self, header: BatchHeader, inspected: InspectedRecords) -> AppendPart:
        """The part, its records looked at. Raises: RefusedBatchError."""
        terms = self._terms
        return self._part(
            *finish_batch(
                self._view, header, inspected, terms.rules, where=self._where, now_ms=terms.now_ms()
            )
        )

    def _part(self, encoded: EncodedBatches, said: BatchHeader | PlainBatch, appended_ms: int) -> AppendPart:
        terms = self._terms
        has_producer = said.producer_id > NO_PRODUCER_ID
        transaction = terms.transaction
        if transaction is not None and not is_transactional(self._data):
            transaction = None
        return AppendPart(
            topic_id=terms.topic_id,
            topic=terms.topic,
            partition=self._partition,
            encoded=encoded,
            producer_id=said.producer_id if has_producer else -1,
            producer_epoch=said.producer_epoch if has_producer else -1,
            base_sequence=said.base_sequence if has_producer else -1,
            log_append_time_ms=appended_ms,
            leader_epoch=self._leader_epoch,
            transaction=transaction,
            client=terms.client,
        )


def checked_at_once(part: UncheckedPart, scratch: Scratch) -> AppendPart | None:
    """The part, if little is needed to see that it is right; None: `check_together` is to tell."""
    return part.check.at_once(scratch) if isinstance(part.check, ProducedCheck) else None


def check_together(
    parts: Sequence[UncheckedPart], scratch: Scratch | None = None
) -> list[AppendPart | SparklogError]:
    """What `check` of each part returns or raises."""
    return [_outcome(part.check, scratch) for part in parts]


def _outcome(check: Callable[[], AppendPart], scratch: Scratch | None) -> AppendPart | SparklogError:
    if scratch is not None:
        scratch.begin()
    try:
        if not isinstance(check, ProducedCheck):
            return check()
        return check.at_once(scratch) or check.go_on(check.open())
    except SparklogError as error:
        return as_value(error)


def _is_quick(data: BytesLike, size: int, max_plain_bytes: int) -> bool:
    """What is compressed may be a hundred times as large, and of many records."""
    (count,) = _RECORD_COUNT.unpack_from(data, HEADER.size - _RECORD_COUNT.size)
    return size <= QUICK_COMPRESSED_BYTES and count <= QUICK_RECORDS and max_plain_bytes <= QUICK_PLAIN_BYTES


def _is_tried(size: int, codec: int) -> bool:
    """Is what is compressed so small that whatever is in it takes some hundred microseconds?"""
    return size <= (TRIED_GZIP_BYTES if codec == Codec.GZIP else TRIED_BYTES)
