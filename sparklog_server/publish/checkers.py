"""The threads that validate what was handed in to be appended.

Requests that are quick to validate, or may be, are left to the publisher: handing them to another thread,
and waiting for it, took longer than the work and often put them off to the next bundle (1,000 requests/s of
4 clients on two cores: p99 22 to 25 ms before, 13 to 20 after). What the publisher has tried in vain, and all
else, goes to the checkers in shares of SHARE_BYTES, so that a request of many small batches wakes one thread
once, and a large one several.

Invariants: every part of a submission is validated once; `unchecked` is 0 when all are, never before; one bad
    part fails alone, and a bug in validating, or a panic of a codec, neither stops a thread nor hits the
    parts beside it; an error that is kept holds nothing of the batch that it is about.
Not here: validation itself (produced_batches.py), what may be appended before it is done (publisher.py).
Concurrency: `submit` in the event loop, `check` in any thread.
"""

import collections
import contextlib
import logging
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from sparklog.errors import RetriableError, SparklogError, as_value
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.encode import EncodedBatches
from sparklog.format.kernels import PlainBatch
from sparklog.format.produced import InspectedRecords
from sparklog.format.record_batch import (
    CODEC_MASK,
    HEADER,
    NO_PRODUCER_ID,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from sparklog_server.publish.backlog import REQUESTS_AT_LEAST, Backlog, Submission
from sparklog_server.publish.first_batches import producer_of
from sparklog_server.publish.parts import NO_TIMESTAMP_MS, AppendPart, InTransaction, UncheckedPart
from sparklog_server.publish.produced_batches import (
    BatchRules,
    Scratch,
    finish_batch,
    inspect_batch,
    open_batch,
    stored_at_once,
)

# --- check memory ------------------------------------------------------------------------------------
#
# The memory in which compressed batches are looked at, shared by all threads that look.
#
# A few kilobytes may decompress to a thousand times as much. What a batch says of itself is a claim, so
# memory is asked for step by step, as its decompression turns out to need it; and a batch that grows gives
# back what it had before it waits for more, so that nobody waits for one who waits himself.
#
# Invariants: reservations add up to at most the limit, but for a single one that is larger: it waits until it
#     is alone. They are granted in order.
# Not here: how much one batch may become (produced_batches.py).
# Concurrency: any thread.


class CheckMemory:
    """The bytes that may be taken at once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.most_bytes = 0  # ever
        self._changed = threading.Condition()
        self._waiting: collections.deque[object] = collections.deque()

    def take(self, size: int) -> None:
        """Wait for one's turn, and for room."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me and self._has_room(size))
            self._waiting.popleft()
            self.used_bytes += size
            self.most_bytes = max(self.most_bytes, self.used_bytes)
            self._changed.notify_all()

    def give_back(self, size: int) -> None:
        """Let others have it."""
        with self._changed:
            self.used_bytes -= size
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self.limit_bytes


class Reservation:
    """What one batch takes while it is looked at; a context, which gives it back."""

    def __init__(self, memory: CheckMemory) -> None:
        self._memory = memory
        self._size = 0

    def resize(self, size: int) -> None:
        """Have so many bytes instead of those before."""
        self._give_back()
        self._memory.take(size)
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._memory.give_back(size)


# --- part checks -------------------------------------------------------------------------------------
#
# When a client's batch is checked, in how much memory, and several of them at once.
#
# What a batch may become uncompressed is bounded by its own size, not by a setting alone: the work for a
# request must not be out of proportion to what it cost to send. What several threads decompress at once comes
# out of one CheckMemory.
#
# Invariants: a part's check raises SparklogError or returns the part; an error that is kept holds no buffers.
# Not here: the rules (produced_batches.py).
# Concurrency: pure, but for waiting for memory; any thread.


# Up to here validating is quick: 0.2 ms in one compiled call.
QUICK_BYTES = 256 << 10
QUICK_COMPRESSED_BYTES = 4 << 10  # so is it of what is compressed ...
QUICK_RECORDS, QUICK_PLAIN_BYTES = 4096, 2 << 20  # ... of so many records, of at most so much uncompressed
# Of so many bytes it is tried in the publisher's thread, within the bounds of produced_batches.py. Gzip's
# smallest
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


# --- checkers ----------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.publish")
_MIN_CHECKERS, _MAX_CHECKERS = 2, 4  # they mostly run outside the interpreter's lock
_CHECKED_TOGETHER = 64  # parts that a checker takes at once, if so many wait, and not more than SHARE_BYTES
_GROWING_TOGETHER = 16  # parts that may grow, which are begun when there is room
_QUICK_PARTS = 16  # compressed ones are quick one by one, but not by the hundred
SHARE_BYTES = 256 << 10  # of a request, for one checker: waking another takes longer than validating these


_Job = tuple[Submission, int]  # a part, by its index


class Checkers:
    """The threads.

    Args:
        on_ready: told, in a checker's thread, when a submission has been validated.
        backlog: where what parts have become is counted.
    """

    def __init__(self, on_ready: Callable[[], None], backlog: Backlog) -> None:
        self._on_ready = on_ready
        self._backlog = backlog
        self._shares: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()  # of `unchecked`, by whoever has validated a part
        self._threads: list[threading.Thread] = []
        self._scratch = Scratch()  # the publisher's

    def start(self) -> None:
        """Start the threads."""
        count = max(_MIN_CHECKERS, min(_MAX_CHECKERS, (os.cpu_count() or 1) - 1))
        self._threads = [
            threading.Thread(target=self._check_forever, name=f"checker-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Have the threads end when what was submitted is done."""
        for _ in self._threads:
            self._shares.put(None)

    def join(self) -> None:
        """Wait until they have."""
        for thread in self._threads:
            thread.join()

    def submit(self, submission: Submission) -> None:
        """Count what is to be validated, and have it done, unless it is left to the publisher."""
        unchecked = [part for part in submission.parts if isinstance(part, UncheckedPart)]
        submission.unchecked = len(unchecked)
        if (
            submission.size_bytes <= QUICK_BYTES
            and len(unchecked) <= _QUICK_PARTS
            and all(part.is_quick or part.is_tried for part in unchecked)
        ):
            return
        self._hand_over(submission, bool(unchecked))

    def check(self, submission: Submission) -> None:
        """Validate what is quick, here and now, and hand over the rest. The publisher's thread."""
        quick: list[_Job] = []
        found: dict[int, AppendPart] = {}
        is_all = True
        self._scratch.begin()
        for job in _jobs_of(submission):
            part = submission.parts[job[1]]
            assert isinstance(part, UncheckedPart)
            tried = _try(part, self._scratch)
            if tried is not None:
                found[job[1]] = tried
            elif part.is_quick:
                quick.append(job)
            else:
                is_all = False
        if quick:
            self._check(quick)
        for index, checked in found.items():
            submission.parts[index] = checked
        with self._counting:
            submission.unchecked -= len(found)
        if not is_all:
            self._hand_over(submission, True)

    def _hand_over(self, submission: Submission, is_some: bool) -> None:
        submission.in_checkers = is_some
        for share in shares_of(submission):
            self._shares.put(share)

    def _check_forever(self) -> None:
        scratch = Scratch()
        while (jobs := self._shares.get()) is not None:
            size = _size(jobs)
            with contextlib.suppress(queue.Empty):
                while len(jobs) < _CHECKED_TOGETHER and size < SHARE_BYTES:
                    more = self._shares.get_nowait()
                    if more is None:
                        self._shares.put(None)  # for whoever it is meant for, maybe this thread
                        break
                    jobs += more
                    size += _size(more)
            for some in self._with_room(jobs):
                self._check(some, scratch)
                if any(submission.unchecked == 0 for submission, _ in some):
                    self._on_ready()

    def _with_room(self, jobs: list[_Job]) -> Iterator[Sequence[_Job]]:
        """All at once, but for those that may grow: a few at a time, when there is room."""
        growing = [job for job in jobs if _may_grow(job)]
        if len(growing) < len(jobs):
            yield [job for job in jobs if not _may_grow(job)]
        for start in range(0, len(growing), _GROWING_TOGETHER):
            self._backlog.wait_for_room()
            yield growing[start : start + _GROWING_TOGETHER]

    def _check(self, jobs: Sequence[_Job], scratch: Scratch | None = None) -> None:
        self._validate([job for job in jobs if not self._is_refused(job)], scratch)
        with self._counting:
            for submission, _ in jobs:
                submission.unchecked -= 1

    def _is_refused(self, job: _Job) -> bool:
        """Has its request grown so much that it need not be looked at?"""
        submission, index = job
        if not submission.is_full or not _may_grow(job):
            return False
        submission.errors[index] = _no_room(submission.parts[index])
        return True

    def _validate(self, jobs: Sequence[_Job], scratch: Scratch | None) -> None:
        parts = [submission.parts[index] for submission, index in jobs]
        outcomes = check_all([part for part in parts if isinstance(part, UncheckedPart)], scratch)
        for (submission, index), part, outcome in zip(jobs, parts, outcomes, strict=True):
            if not isinstance(outcome, AppendPart):
                submission.errors[index] = outcome
            elif self._backlog.resize(submission, outcome.size_bytes - part.size_bytes):
                submission.parts[index] = outcome
            else:
                submission.errors[index] = _no_room(part)


def shares_of(submission: Submission) -> list[list[_Job]]:
    """What is to be validated, cut wherever a share has reached SHARE_BYTES."""
    shares: list[list[_Job]] = []
    size = SHARE_BYTES
    for job in _jobs_of(submission):
        if size >= SHARE_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(job)
        size += submission.parts[job[1]].size_bytes
    return shares


def _jobs_of(submission: Submission) -> list[_Job]:
    """What is still to be validated: neither right nor wrong so far."""
    return [
        (submission, at)
        for at, part in enumerate(submission.parts)
        if isinstance(part, UncheckedPart) and at not in submission.errors
    ]


def _may_grow(job: _Job) -> bool:
    submission, index = job
    part = submission.parts[index]
    return isinstance(part, UncheckedPart) and part.may_grow


def _size(jobs: Sequence[_Job]) -> int:
    return sum(submission.parts[index].size_bytes for submission, index in jobs)


def _no_room(part: AppendPart | UncheckedPart) -> RetriableError:
    return RetriableError(
        "PUBLISH_BACKLOG_FULL",
        f"{part.topic}-{part.partition}: the request's batches, compressed as their topics' compression.type "
        f"has it, take more than a {REQUESTS_AT_LEAST}th of sparklog.publish.backlog.bytes",
        fix="send it again: some more of them fit each time. Fewer batches in a request, or "
        "compression.type=producer, avoid that",
    )


def _panic(error: BaseException) -> SparklogError:
    return SparklogError(
        "INTERNAL",
        f"validating a batch failed: {type(error).__name__}: {error}",
        fix="send it otherwise compressed; the broker's log has more",
    )


def _try(part: UncheckedPart, scratch: Scratch) -> AppendPart | None:
    try:
        return checked_at_once(part, scratch)
    except BaseException:  # noqa: BLE001 - a bug, or a panic of a codec: it happens again in `check_all`
        return None


def check_all(
    parts: Sequence[UncheckedPart], scratch: Scratch | None = None
) -> Sequence[AppendPart | Exception]:
    """What became of each; a bug must neither stop the thread nor hit the parts beside it."""
    try:
        return check_together(parts, scratch)
    except BaseException:  # noqa: BLE001 - see above; a panic of compiled code is no Exception
        _log.exception("validating %d batches together failed", len(parts))
    found: list[AppendPart | Exception] = []
    for part in parts:
        try:
            found.append(part.check())
        except BaseException as error:  # noqa: BLE001 - see above
            if not isinstance(error, SparklogError):
                _log.exception("validating a batch of %s-%d failed", part.topic, part.partition)
            found.append(as_value(error if isinstance(error, Exception) else _panic(error)))
    return found
