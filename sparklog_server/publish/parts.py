"""One partition's share of a produce request, before and after it was published.

Invariants: the batches of a part count their offsets from 0; a part has one producer, or none.
Structs, because there is one of each for every batch: a frozen dataclass takes ten times as long to make.
Concurrency: immutable; but the chunks of `encoded` may be views of a request that must not change.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sparklog.errors import FencedError, InvalidRequestError, RetriableError
from sparklog.format.codec import BytesLike
from sparklog.format.encode import EncodedBatches
from sparklog.metadata import NEVER_OPENS, NO_NUMBER, SEQUENCES, Image
from sparklog_server.cluster.leadership import LEADER_EPOCH
from sparklog_server.protocol.apis import ErrorCode

NO_OFFSET = -1
NO_TIMESTAMP_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InTransaction:
    """A client's claim about the transaction of a part.

    Fields:
        opens_ms: the time of acceptance, if the part adds its partition itself and opens a transaction if
            none is open (second protocol of Kafka's clients). NEVER_OPENS: an earlier request did that.
        group: if these are a group's offsets, the group that was added to the transaction instead.
        number: the transaction that was open in this broker's image when it read the request, or
            NOTHING_OPEN: the part is staged in that one only. NO_NUMBER with the second protocol: the epoch
            identifies it.
    """

    transactional_id: str
    opens_ms: int = NEVER_OPENS
    group: str | None = None
    number: int = NO_NUMBER

    @classmethod
    def of_first_protocol(
        cls,
        image: Image,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        group: str | None = None,
    ) -> "InTransaction":
        """Return the claim of a request that is read now. `image`: the newest that this broker knows.

        A broker that is behind names another transaction than the client means, or none. Then the newest
        image refuses the request, and the client retries.
        """
        number = image.transactions.open_number(producer_id, producer_epoch)
        return cls(transactional_id=transactional_id, group=group, number=number)


class AppendPart(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of one partition that may be appended.

    Fields:
        topic_id: the part fails if the topic is deleted and created again before the append.
        base_sequence: of the first record; consecutive from there, as in Kafka's batches. -1 for
            offsets that a producer commits with a transaction: they take the next sequence (decisions.py).
        log_append_time_ms: as in the answer to the client; -1 if its own timestamps are kept.
        leader_epoch: the epoch of the broker when it accepted the part, which is only published in that
            epoch.
        transaction: the batches are staged in it, instead of being appended; None: append.
        at_offset: the only offset for the append: the part was planned from all records below. NO_OFFSET:
            any.
        client: the address of its connection; "" for the broker's own parts.
    """

    topic_id: str
    topic: str
    partition: int
    encoded: EncodedBatches
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    log_append_time_ms: int = NO_TIMESTAMP_MS
    leader_epoch: int = LEADER_EPOCH
    transaction: InTransaction | None = None
    at_offset: int = NO_OFFSET
    client: str = ""

    @property
    def size_bytes(self) -> int:
        return self.encoded.size_bytes

    @property
    def producer(self) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence."""
        return self.producer_id, self.producer_epoch, self.base_sequence


class PartOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a part. With an error, nothing of it was published.

    Fields:
        base_offset: -1 if staged: there is no offset yet.
        place: of a staged part: segment and position.
    """

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP_MS
    log_start_offset: int = NO_OFFSET
    duplicate: bool = False
    error: Exception | None = None
    place: tuple[str, int] | None = None


class RefusedBatchError(InvalidRequestError):
    """A produced batch that breaks a rule, with Kafka's code for that rule.

    Args:
        record_errors: (index of the record within its batch, message).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        fix: str,
        kafka_code: ErrorCode,
        record_errors: tuple[tuple[int, str], ...] = (),
    ) -> None:
        super().__init__(code, message, fix=fix)
        self.kafka_code = kafka_code
        self.record_errors = record_errors


class SentAwayError(FencedError):
    """The batches are never published by this broker: others may lead by now."""

    def __init__(self) -> None:
        super().__init__(
            "BROKER_FENCED",
            "found this broker fenced, or without a refresh of the metadata log for "
            "broker.session.timeout.ms, expected a valid registration in a newer image",
            fix="retry at the partition's leader; nothing was published",
        )


class OvertakenError(RetriableError):
    """A part with a fixed offset would get another one; nothing of it was published."""

    def __init__(self, partition: str, *, end_offset: int, at_offset: int) -> None:
        super().__init__(
            "PUBLISH_CONTENDED",
            f"{partition}: found end offset {end_offset}, expected {at_offset}, the end offset when "
            "this was planned",
            fix="plan it anew",
        )


# --- runs --------------------------------------------------------------------------------------------
#
# Consecutive parts of one partition and one producer, as one append: one extent instead of many.
#
# Invariants: a run keeps the order of its parts; its batches count from 0 over the whole run; sequences in it
#     follow each other; a part with a fixed offset is a run of its own. Bytes of batches are not
#     copied; only the 8 bytes of each base offset change.
# Not here: which parts may be written (decisions.py).
# Concurrency: pure functions.


_BASE_OFFSET = struct.Struct(">q")


class Run(msgspec.Struct):
    """Parts (by index), and the number of records before each."""

    first: AppendPart
    indices: list[int] = []
    parts: list[AppendPart] = []
    skipped: list[int] = []
    record_count: int = 0
    size_bytes: int = 0

    def add(self, index: int, part: AppendPart) -> None:
        self.indices.append(index)
        self.parts.append(part)
        self.skipped.append(self.record_count)
        self.record_count += part.encoded.record_count
        self.size_bytes += part.encoded.size_bytes

    def continues(self, part: AppendPart, max_bytes: int) -> bool:
        """True if this part may be appended to the run."""
        first = self.first
        return (
            (part.topic_id, part.partition, part.producer_id, part.producer_epoch)
            == (first.topic_id, first.partition, first.producer_id, first.producer_epoch)
            and _transaction(part) == _transaction(first)
            and part.at_offset == first.at_offset == NO_OFFSET
            and self.size_bytes + part.encoded.size_bytes <= max_bytes
            and (
                part.producer_id < 0
                or part.base_sequence == (first.base_sequence + self.record_count) % SEQUENCES
            )
        )

    def encoded(self) -> EncodedBatches:
        """Return all batches of the run, with offsets from 0."""
        if len(self.parts) == 1:
            return self.first.encoded
        return concat_batches([part.encoded for part in self.parts])


def _transaction(part: AppendPart) -> int | None:
    """Return the key that separates transactions of one producer and epoch; None: no transaction."""
    return None if part.transaction is None else part.transaction.number


def make_runs(parts: Sequence[AppendPart], indices: Iterable[int], max_run_bytes: int) -> list[Run]:
    """Return the parts at `indices` as runs, sorted by partition and otherwise in order."""
    ordered = sorted(indices, key=lambda index: (parts[index].topic_id, parts[index].partition))
    runs: list[Run] = []
    for index in ordered:
        part = parts[index]
        if not runs or not runs[-1].continues(part, max_run_bytes):
            runs.append(Run(part))
        runs[-1].add(index, part)
    return runs


def concat_batches(pieces: Sequence[EncodedBatches]) -> EncodedBatches:
    """Join pieces with offsets from 0 to one with offsets from 0."""
    data: list[BytesLike] = []
    rows: list[tuple[int, ...]] = []  # Python's numbers: NumPy costs per call, and batches are few
    size = count = 0
    for piece in pieces:
        data += shifted(piece, count)
        if piece.batch_count == 1:
            rows.append((size, piece.size_bytes, count, piece.record_count, piece.max_timestamp_ms))
        else:
            rows += zip(*_columns(piece, size, count), strict=True)
        size += piece.size_bytes
        count += piece.record_count
    position, sizes, base_offset, counts, newest = np.array(rows, np.int64).T
    return EncodedBatches(
        data=data,
        size_bytes=size,
        record_count=count,
        max_timestamp_ms=max([piece.max_timestamp_ms for piece in pieces]),
        position=position,
        size=sizes,
        base_offset=base_offset,
        batch_record_count=counts,
        batch_max_timestamp_ms=newest,
    )


def _columns(piece: EncodedBatches, position: int, records: int) -> Sequence[Sequence[int]]:
    return (
        (piece.position + position).tolist(),
        piece.size.tolist(),
        (piece.base_offset + records).tolist(),
        piece.batch_record_count.tolist(),
        piece.batch_max_timestamp_ms.tolist(),
    )


def shifted(encoded: EncodedBatches, delta: int) -> list[BytesLike]:
    """Return the chunks with `delta` added to every base offset; views, except for these 8 bytes."""
    if delta == 0:
        return list(encoded.data)
    if encoded.batch_count == 1:
        starts = {0: 0}
    else:
        starts = dict(zip(encoded.position.tolist(), encoded.base_offset.tolist(), strict=True))
    chunks: list[BytesLike] = []
    at = 0
    for chunk in encoded.data:
        view = memoryview(chunk).cast("B")
        if at in starts:
            head = _BASE_OFFSET.pack(starts.pop(at) + delta)
            chunks.append(head + bytes(view[_BASE_OFFSET.size :]) if len(view) <= 64 else head)
            if len(view) > 64:
                chunks.append(view[_BASE_OFFSET.size :])
        else:
            chunks.append(view)
        at += len(view)
    assert not starts, "every batch begins a chunk"
    return chunks
