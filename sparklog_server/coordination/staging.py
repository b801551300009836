"""What open transactions have staged in a partition of an internal topic: records that may become its state.

A client that asks for stable offsets must not get what an open transaction is about to change. So each staged
record is in the state as such, until its transaction has ended and what it appended is applied:
1. a transaction stages offset 20 of a group, and is committed, by whichever broker;
2. this broker sees the commit, and has yet to read the records from the log;
3. a client that is answered now gets offset 10 as stable. So the record is staged until then.
It is staged from the moment at which its client was allowed to stage it, before it is durable. Otherwise:
1. member A of a group may commit, and its record is on its way; A is given up, and its partitions go to B;
2. B asks where to begin: nothing is staged yet, so it begins where A did;
3. A's record arrives, and A's transaction is committed: what A and B have read is processed twice.

A client that does not ask for stable offsets waits until what had ended is applied: its transaction's
end was answered, and no open one is waited for (`settled`).

What this broker has staged it knows; what others have (a leader before it, a client without a broker) is
read, found through images. Until that is done `is_unsure`: anything may be staged.
Invariants: all that is staged as of the newest image is staged in the state, or `is_unsure`. What ends
    leaves the state when all that the image of its end has is applied; what ended before it was known leaves
    it unsure until then.
Not here: the records in the log (state_log.py), which clients may stage what (the coordinator, publish/).
Concurrency: event loop.
After a crash, or taken over: read again.
Sources: docs/adr/0028; Kafka OffsetMetadataManager (pendingTransactionalOffsets), KIP-447.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol

from sparklog.errors import RetriableError, SparklogError, StorageError
from sparklog.metadata import Transaction
from sparklog_server.coordination.internal_topic import (
    RETRY_READ_MS,
    Host,
    InternalTopic,
    LedPartition,
    RecordT,
    Retry,
)
from sparklog_server.coordination.records import encode_record, encode_records, replay_staged
from sparklog_server.publish.parts import AppendPart, InTransaction
from sparklog_server.runtime.lifecycle import Background

_log = logging.getLogger("sparklog_server.coordinator")
# One read takes milliseconds, one that failed is tried again; clients must not hang with the storage.
SETTLE_MS: Final = RETRY_READ_MS + 500
_Number = tuple[int, int]  # of a transaction: its producer id, and how many there were under its id


class Stageable(Protocol):
    """A state; see state_log.State."""

    def stage(self, record: Any, /) -> None: ...
    def unstage(self, record: Any, /) -> None: ...


@dataclass(slots=True, eq=False)
class _Staged(Generic[RecordT]):
    """Of one transaction.

    Fields:
        end_offset: so far it is known; staged records count from 0.
        is_whole: there was no more of it when it was last seen.
        leaves_at: it has ended: up to which offset the log has to be applied before its records leave.
    """

    records: list[RecordT] = field(default_factory=list)
    end_offset: int = 0
    is_whole: bool = False
    leaves_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBy:
    """Whose records are staged."""

    producer_id: int
    producer_epoch: int
    transaction: InTransaction


class Staging(Generic[RecordT]):
    """Keeps the staged records of one partition in its state."""

    def __init__(
        self,
        host: Host,
        topic: InternalTopic[RecordT],
        led: LedPartition,
        state: Stageable,
    ) -> None:
        self._host = host
        self._topic = topic
        self._led = led
        self._name = f"{topic.name}-{led.partition}"
        self._state = state
        self._by_transaction: dict[_Number, _Staged[RecordT]] = {}
        self._own: dict[tuple[str, int], Sequence[RecordT]] = {}  # by where they are
        self._applied = 0
        self._has_more = False  # than is known: to be read
        self._unread_until = 0  # somewhere below, the log may have what was never staged in the state
        self._is_reading = False
        self._retry = Retry(host.timer, self.follow)
        self._settling: dict[asyncio.Future[None], int] = {}  # until the log is applied up to there
        self._background = Background()

    def close(self) -> None:
        """Stop reading."""
        self._retry.cancel()
        self._background.cancel()
        self.give_up()

    async def stage(self, records: Sequence[RecordT], by: StagedBy) -> None:
        """Stage records, durably. Raises SparklogError: not staged, or (RetriableError, StorageError) perhaps
        not.
        """
        pairs = [encode_record(self._topic, record, self._name) for record in records]
        encoded = encode_records(pairs, self._host.clock.now_ms())
        part = AppendPart(
            topic_id=self._led.topic_id,
            topic=self._topic.name,
            partition=self._led.partition,
            leader_epoch=self._led.leader_epoch,
            encoded=encoded,
            producer_id=by.producer_id,
            producer_epoch=by.producer_epoch,
            transaction=by.transaction,
        )
        for record in records:
            self._state.stage(record)
        try:
            (outcome,) = await self._host.publisher.submit([part])
            if outcome.error is not None:
                try:
                    raise outcome.error
                finally:
                    del outcome  # it has the error, whose traceback has this frame
            if outcome.place is not None:
                self._own[outcome.place] = records
                self._look()
                del self._own[outcome.place]
        finally:
            for record in records:
                self._state.unstage(record)

    # Following

    @property
    def is_unsure(self) -> bool:
        """True if more may be staged, or committed and not applied, than is in the state."""
        return self._has_more or self._applied < self._unread_until

    @property
    def is_settled(self) -> bool:
        """True if all is applied of transactions that have ended, as of the newest image."""
        self._look()
        return self._ended_at <= self._applied

    @property
    def _ended_at(self) -> int:
        """Where the log ended when the last of those ended that are not let go."""
        ended = (staged.leaves_at for staged in self._by_transaction.values() if staged.leaves_at is not None)
        return max(ended, default=0)

    async def settled(self) -> None:
        """Wait until all is applied of those that have ended so far; SETTLE_MS at most."""
        if self.is_settled:
            return
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._host.timer.schedule(SETTLE_MS, lambda: _wake(settled))
        self._settling[settled] = self._ended_at
        try:
            await settled
        finally:
            del self._settling[settled]
            alarm.cancel()

    def follow(self) -> None:
        """A new image may be there."""
        self._look()
        if self._has_more and not self._is_reading:
            self._is_reading = True
            self._background.spawn(self._follow())

    def applied(self, next_offset: int) -> None:
        """Everything below is."""
        self._applied = next_offset
        if self._by_transaction:
            self._let_go()
        for settled, until in self._settling.items():
            if until <= next_offset:
                _wake(settled)

    def give_up(self) -> None:
        """Let all that wait go on, although what has ended is not applied."""
        for settled in self._settling:
            _wake(settled)

    async def load(self) -> None:
        """Know all that is staged. Raises what reading raises."""
        self._look()
        while self._has_more:
            await self._read_some()
            self._look()

    def _look(self) -> None:
        """At the newest image."""
        image = self._host.root.image
        found, transactions = self._led.state_in(image), image.transactions
        staging = transactions.staging_in(self._led.topic_id, self._led.partition)
        self._has_more = False
        if found is None or not (staging or self._by_transaction):
            return  # as nearly always
        open_ones = [transactions.of_producer(producer_id) for producer_id in staging]
        numbers = {
            (transaction.producer_id, transaction.number): transaction
            for transaction in open_ones
            if transaction is not None
        }
        for number, staged in self._by_transaction.items():
            if number not in numbers and staged.leaves_at is None:
                staged.leaves_at = found.log_end_offset
                if not staged.is_whole:
                    self._unread_until = found.log_end_offset
        for number, transaction in numbers.items():
            staged = self._by_transaction.setdefault(number, _Staged())
            staged.is_whole = self._take_own(staged, transaction)
            self._has_more |= not staged.is_whole
        self._let_go()

    def _take_own(self, staged: _Staged[RecordT], transaction: Transaction) -> bool:
        """What this broker has just staged; False if there is more."""
        extents = transaction.staged_in(self._led.topic_id, self._led.partition)
        while staged.end_offset < extents.end_offset:
            (extent,) = extents.between(staged.end_offset, staged.end_offset + 1)
            records = self._own.get((extent.segment, extent.position))
            if records is None or len(records) != extent.record_count:  # others share the extent
                return False
            self._add(staged, records, extent.end_offset)
        return True

    def _add(self, staged: _Staged[RecordT], records: Sequence[RecordT], end_offset: int) -> None:
        staged.end_offset = end_offset
        staged.records += records
        for record in records:
            self._state.stage(record)

    def _let_go(self) -> None:
        """Of those that have ended, and of which all that was committed is applied."""
        gone = [
            number
            for number, staged in self._by_transaction.items()
            if staged.leaves_at is not None and staged.leaves_at <= self._applied
        ]
        for number in gone:
            for record in self._by_transaction.pop(number).records:
                self._state.unstage(record)

    # Reading

    async def _follow(self) -> None:
        try:
            # What is new may be this broker's own: `stage` gets its outcome in this turn of the loop.
            await asyncio.sleep(0)
            await self.load()
        except SparklogError as error:  # it stays unsure until it is tried again
            _log.warning("%s: what is staged there cannot be read: %s", self._name, error)
            if isinstance(error, RetriableError | StorageError):
                self._retry.schedule()
        finally:
            self._is_reading = False

    async def _read_some(self) -> None:
        """Of the transactions that have more than is known, one after the other."""
        root, led = self._host.root, self._led
        for number, staged in list(self._by_transaction.items()):
            transaction = root.image.transactions.of_producer(number[0])
            if staged.leaves_at is not None or transaction is None or transaction.number != number[1]:
                continue
            extents, start = transaction.staged_in(led.topic_id, led.partition), staged.end_offset
            if start < extents.end_offset:
                try:
                    records = await root.run_apart(replay_staged, root.store, self._topic, extents, start)
                except SparklogError:
                    if transaction is root.image.transactions.of_producer(number[0]):
                        raise
                    continue  # it has ended, or has more: look again
                # Meanwhile it may have ended, and have been let go: what is added then is never unstaged.
                if staged.end_offset == start and self._by_transaction.get(number) is staged:
                    self._add(staged, records, extents.end_offset)


def _wake(settled: "asyncio.Future[None]") -> None:
    if not settled.done():
        settled.set_result(None)
