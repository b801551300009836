"""One partition of an internal topic, in one leader epoch: a coordinator's state, kept equal to the log.

Records are applied strictly in the order of their offsets, by the same code live and after a start. What this
broker appends is applied from memory as soon as it is durable; what others append (Spark queries, the
embedded client) is read, found through new images:
1. own records arrive at offset 12, while everything up to 10 is applied: 10 and 11 are somebody else's;
2. applying 12 first and 10 later would bring back an older state;
3. so 10 to 12 are read from the log before the append of 12 is acknowledged.
What is appended says in which leader epoch it was accepted, and is published in that epoch only: what
waited while the partition went to another broker, and came back, is never in the log.
Invariants: once it is loaded, everything below `next_offset` is applied, nothing above; an append returns
    when it is durable and applied, so that whoever was acknowledged reads what it wrote. Of a stretch that is
    read, only the latest record of each key is applied; where it was compacted before, tombstones may be gone
    and everything is read again. Nothing is applied after `close`. However much is
    loaded, the loop has its turns.
Not here: what the state is (the coordinator's), which partitions are opened (shards.py), making records
    durable (the publisher).
Concurrency: event loop; `_lock` while the log is being read (records.py).
After a crash: read again from the log start.
Sources: docs/design.md; docs/adr/0026; Kafka CoordinatorRuntime, PartitionWriter.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.metadata import PartitionState
from sparklog_server.coordination.internal_topic import (
    Host,
    InternalTopic,
    Landmarks,
    LedPartition,
    LogStatus,
    RecordT,
    Retry,
    StateT,
)
from sparklog_server.coordination.records import Reading, encode_record, encode_records
from sparklog_server.coordination.staging import StagedBy, Staging
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.publish.parts import NO_OFFSET, AppendPart, OvertakenError, PartOutcome
from sparklog_server.runtime.lifecycle import Background

# --- appends -----------------------------------------------------------------------------------------
#
# Those who wait for records to be appended, and what they are told.
#
# Concurrency: event loop.


@dataclass(slots=True, eq=False)
class Waiting(Generic[RecordT]):
    """One call of `append`.

    Fields:
        at_offset: the only one at which its first record may be; NO_OFFSET: any.
        surprises: how many the log had seen when this was planned.
    """

    records: Sequence[RecordT]
    encoded: list[tuple[bytes, bytes | None]]
    future: asyncio.Future[None]
    at_offset: int = NO_OFFSET
    surprises: int = 0

    @property
    def is_planned(self) -> bool:
        """Is it right only for the state by which it was planned?"""
        return self.at_offset != NO_OFFSET


def tell(future: asyncio.Future[None], error: Exception) -> None:
    """Let it fail."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: whoever waited may be gone


def fail(waiting: Sequence[Waiting[Any]], error: Exception) -> None:
    """Let all of them fail."""
    for one in waiting:
        tell(one.future, error)


def has_failed(appended: asyncio.Future[None]) -> bool:
    """Is it known that it is not there, or may not be?"""
    return appended.done() and (appended.cancelled() or appended.exception() is not None)


def was_overtaken(appended: asyncio.Future[None]) -> bool:
    """Was nothing appended, because others came first?"""
    return not appended.cancelled() and isinstance(appended.exception(), OvertakenError)


async def outcome_of(appended: Awaitable[None]) -> ErrorCode:
    """What to tell whoever asked for an append, once it is durable and applied, or could not be."""
    try:
        await appended
    except FencedError:
        return ErrorCode.not_coordinator
    except InvalidRequestError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.unknown_server_error
    except OvertakenError as error:  # whoever planned it plans it anew, and warns if that is given up
        _log.debug("not written yet: %s", error)
        return ErrorCode.coordinator_not_available
    except SparklogError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def not_ready(name: str) -> RetriableError:
    """Why nothing can be appended to this log."""
    return RetriableError(
        "COORDINATOR_CLOSED",
        f"{name}: its coordinator loads it, stops, or starts over, and appends nothing meanwhile",
        fix="try again",
    )


# --- own batches -------------------------------------------------------------------------------------
#
# What this broker appends to one log, until its outcome is told: what waits, and batches at the publisher.
#
# What is planned by what is on its way holds only if that arrives: a second deletion finds nothing to delete,
# and must not be told so before the first one is durable.
# Invariants: a batch is here until it is applied, or known not to be, or the log is closed. What is planned
#     by what is on its way is handed over when nothing is any more, and what came after it, after it.
# Concurrency: event loop.


@dataclass(slots=True, eq=False)
class OwnBatch(Generic[RecordT]):
    """One of them.

    Fields:
        waiting: whose records it has.
        ended: whether they are in the log, and applied.
    """

    waiting: list[Waiting[RecordT]]
    ended: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OwnBatches(Generic[RecordT]):
    """See the module's docstring. Its length: of the batches."""

    def __init__(self) -> None:
        self.waiting: list[Waiting[RecordT]] = []
        self._batches: list[OwnBatch[RecordT]] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[OwnBatch[RecordT]]:
        return iter(self._batches)

    def take_cancelled(self) -> list[Waiting[RecordT]]:
        """Those of which nobody wants to know any more, and which are not handed over."""
        gone = [one for one in self.waiting if one.future.done()]
        self.waiting = [one for one in self.waiting if not one.future.done()]
        return gone

    def take_ready(self) -> Iterator[list[Waiting[RecordT]]]:
        """What is to be handed over now, in batches; `add` each before the next is asked for."""
        waiting, self.waiting = self.waiting, []
        runs = itertools.groupby(waiting, key=lambda one: one.is_planned)
        for is_planned, run in runs:
            if is_planned and self._batches:
                self.waiting += [*run, *(one for _, later in runs for one in later)]
                return
            yield list(run)

    def add(self, waiting: list[Waiting[RecordT]]) -> OwnBatch[RecordT]:
        """One that is handed over now."""
        batch = OwnBatch(waiting)
        self._batches.append(batch)
        return batch

    def end(self, batch: OwnBatch[RecordT], *, is_applied: bool) -> None:
        """Its outcome is told."""
        self._batches.remove(batch)
        if not batch.ended.done():
            batch.ended.set_result(is_applied)

    def close(self) -> None:
        """Of those that are left nobody will hear."""
        for batch in self._batches:
            if not batch.ended.done():
                batch.ended.set_result(False)

    async def arrived(self) -> bool:
        """Wait for all that there are now. False: some are not in the log, or perhaps not."""
        ended, waiting = [one.ended for one in self._batches], [one.future for one in self.waiting]
        futures: list[asyncio.Future[Any]] = [*ended, *waiting]
        if futures:
            await asyncio.wait(futures)
        return all(one.result() for one in ended) and not any(map(has_failed, waiting))


# --- state log ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.coordinator")
RETRY_LOAD_MS, MAX_RETRY_LOAD_MS = 100, 5_000
APPLIED_AT_ONCE: Final = 2_000  # records, a millisecond or two


class StateLog(Generic[RecordT, StateT]):
    """See the module's docstring."""

    def __init__(
        self,
        host: Host,
        topic: InternalTopic[RecordT],
        led: LedPartition,
        state: StateT,
        *,
        reading: Reading[RecordT],
        load_turns: asyncio.Semaphore,
    ) -> None:
        """`state`: an empty one, of which this log is the only writer."""
        self.state = state
        self.led = led
        self.partition = led.partition
        self.name = f"{topic.name}-{led.partition}"
        self.status = LogStatus.LOADING
        self.next_offset = 0
        self._host = host
        self._topic = topic
        self._reading = reading
        self._load_turns = load_turns
        self._why_closed: SparklogError = not_ready(self.name)
        self._lock = asyncio.Lock()
        self._coming = 0  # records that wait, or are with the publisher
        self.own: OwnBatches[RecordT] = OwnBatches()
        self._landmarks = Landmarks()
        self._surprises = 0  # what was read, and what did not arrive: what is planned does not know of it
        self._retry = Retry(host.timer, self.follow)
        self._is_unreadable = False  # no further try would help
        self._background = Background()
        self._staging = Staging(host, topic, led, state)

    def start(
        self,
        *,
        on_loading: Callable[["StateLog[RecordT, StateT]"], Iterable[None]],
        on_loaded: Callable[["StateLog[RecordT, StateT]"], None],
    ) -> None:
        """Load; at once if there is nothing in the log.

        Args:
            on_loading: what else is to be done before anybody is answered, once everything is applied; the
                loop has a turn after each part of it.
            on_loaded: the log is ready.
        """
        found = self.current()
        if found is None:
            return
        is_empty = found.log_end_offset == found.log_start_offset
        if is_empty and not self._host.root.image.transactions.is_staged_in(found.topic_id, found.partition):
            self._has_applied(found.log_end_offset)
            self.status = LogStatus.READY
            on_loaded(self)
        else:
            self._background.spawn(self._load(on_loading, on_loaded))

    def release(self) -> None:
        """Append and follow nothing more; what is on its way arrives. One that is loading is closed."""
        if self.status is LogStatus.LOADING:
            self.close()
        elif self.status is LogStatus.READY:
            self.status = LogStatus.RELEASED
            self._staging.give_up()

    def close(self, why: SparklogError | None = None) -> None:
        """Stop whatever goes on; who waits for an append, or wants one later, is told why."""
        self.status = LogStatus.CLOSED
        if why is not None:
            self._why_closed = why
        for waiting in (self.own.waiting, *(one.waiting for one in self.own)):
            fail(waiting, self._why_closed)
        self.own.close()
        self._retry.cancel()
        self._staging.close()
        self._background.cancel()

    def append(self, records: Sequence[RecordT], *, planned: bool = False) -> asyncio.Future[None]:
        """Make records durable, then apply them, in the order of the calls, whenever the future is awaited.

        What is appended in one turn of the loop shares a batch. The future fails with a SparklogError: not
        appended, or (RetriableError, StorageError) perhaps not.

        Args:
            planned: by the state of this moment, and what is on its way to it: only if
                nothing else comes first. OvertakenError: something did.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        try:
            if self.status is not LogStatus.READY:
                raise self._why_closed
            encoded = [encode_record(self._topic, record, self.name) for record in records]
        except SparklogError as error:
            tell(future, error)
            return future
        if not self.own.waiting:
            loop.call_soon(self._flush)
        at_offset = self.next_offset + self._coming if planned else NO_OFFSET
        for record in records:
            self.state.begin(record)
        self._coming += len(records)
        self.own.waiting.append(Waiting(records, encoded, future, at_offset, self._surprises))
        return future

    async def write(self, records: Sequence[RecordT]) -> ErrorCode:
        """Append records, if there are any; what to tell whoever asked for it."""
        return await outcome_of(self.append(records)) if records else ErrorCode.none

    def when_applied(self, end_offset: int, reached: Callable[[], None]) -> None:
        """Call `reached` in the moment in which all below that offset is applied, and nothing above; now, if
        that has been before.
        """
        if self.next_offset >= end_offset:
            reached()
        else:
            self._landmarks.add(end_offset, reached)

    async def stage(self, records: Sequence[RecordT], by: StagedBy) -> None:
        """Stage records in a transaction, durably: in the state as such from this moment on.

        Raises:
            SparklogError: not staged, or (RetriableError, StorageError) perhaps not.
        """
        if self.status is not LogStatus.READY:
            raise self._why_closed
        await self._staging.stage(records, by)

    @property
    def is_unsure(self) -> bool:
        """See Staging."""
        return self._staging.is_unsure

    @property
    def is_settled(self) -> bool:
        """Is there nothing that transactions have committed to be waited for?"""
        return self.status is not LogStatus.READY or self._is_unreadable or self._staging.is_settled

    async def settled(self) -> None:
        """See Staging."""
        if not self.is_settled:
            await self._staging.settled()

    def follow(self) -> None:
        """A new image is there: read what others have appended."""
        found = self.current()
        if self.status is LogStatus.READY:
            self._staging.follow()
        # While something of ours is on its way, its arrival will see to it: most of what is new is ours.
        if (
            found is not None
            and self.status is LogStatus.READY
            and not self.own
            and not self._lock.locked()
            and found.log_end_offset > self.next_offset
        ):
            self._background.spawn(self._follow_log())

    async def catch_up(self) -> bool:
        """Apply all that the newest image has, as far as nobody applies it already; False: not now."""
        found = self.current()
        if found is not None and found.log_end_offset > self.next_offset:
            try:
                await self._catch_up(found.log_end_offset)
            except SparklogError as error:
                _log.warning("following %s failed: %s", self.name, error)
                return False
            finally:
                self.follow()  # what came meanwhile was left to this
        return self.status is LogStatus.READY

    def current(self) -> PartitionState | None:
        """The partition as of the newest image, shown or not."""
        return self.led.state_in(self._host.root.image)

    # Reading

    async def _load(
        self,
        on_loading: Callable[["StateLog[RecordT, StateT]"], Iterable[None]],
        on_loaded: Callable[["StateLog[RecordT, StateT]"], None],
    ) -> None:
        retry_ms = RETRY_LOAD_MS
        while self.status is LogStatus.LOADING:
            try:
                async with self._load_turns, self._lock:
                    await self._read()
                    await self._staging.load()
                    await self._read()  # what was committed before it was known to be staged
                for _ in on_loading(self):
                    await asyncio.sleep(0)
            except (RetriableError, StorageError) as error:
                _log.warning("loading %s failed: %s", self.name, error)
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, MAX_RETRY_LOAD_MS)
            except Exception:  # noqa: BLE001 - who asks must not be told for ever that it loads
                self.status = LogStatus.FAILED
                _log.exception("%s cannot be loaded: nobody is answered from it", self.name)
            else:
                self.status = LogStatus.READY
                on_loaded(self)
                self.follow()

    async def _follow_log(self) -> None:
        try:
            await self._catch_up(0)
        except SparklogError as error:
            _log.warning("following %s failed: %s", self.name, error)
            if isinstance(error, RetriableError | StorageError):
                self._retry.schedule()
            else:
                self._is_unreadable = True
                self._staging.give_up()
        else:
            self.follow()  # images that came meanwhile were left to this

    async def _catch_up(self, at_least: int) -> None:
        """Apply everything that the newest image has, up to `at_least` or beyond."""
        async with self._lock:
            if self.next_offset < at_least or not at_least:
                await self._read()

    async def _read(self) -> None:
        """Apply everything that the newest image has: an append of this broker, too, once it is durable.

        Its publish installs the image with it before anything is told about it.
        """
        found = self.current()
        while found is not None and await self._read_on(found):
            pass

    async def _read_on(self, found: PartitionState) -> bool:
        """Up to the next landmark, or the end; is there more?"""
        start_offset, end_offset = max(self.next_offset, found.log_start_offset), found.log_end_offset
        is_overtaken = 0 < self.next_offset < found.cleaned.first_dirty_offset
        if is_overtaken:  # by compaction: a tombstone may be gone with what it deleted
            start_offset = found.log_start_offset
        if start_offset >= end_offset:
            self._has_applied(start_offset)  # of what was below nothing is left
            return False
        end_offset = self._landmarks.next_in(start_offset, end_offset)
        replayed = await self._reading.read(found, start_offset, end_offset)
        if is_overtaken:
            self.state.clear()
        for number, record in enumerate(replayed.records, 1):
            self.state.apply(record)
            # What is followed later is applied at once: answers are given between turns.
            if self.status is LogStatus.LOADING and number % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if replayed.skipped:
            self._host.metrics.state_records_skipped[self._topic.name] += replayed.skipped
            where = f"{self.name}, offsets {start_offset} to {end_offset - 1}"
            _log.warning("%s: skipped %d records, the first: %s", where, replayed.skipped, replayed.why)
        self._surprises += 1
        self._has_applied(end_offset)
        return end_offset < found.log_end_offset

    def _has_applied(self, next_offset: int) -> None:
        self.next_offset, self._is_unreadable = next_offset, False
        self._staging.applied(next_offset)
        self._landmarks.applied(next_offset)

    # Writing

    def _flush(self) -> None:
        self._end(self.own.take_cancelled())
        for waiting in self.own.take_ready():
            self._submit(waiting)

    def _submit(self, waiting: list[Waiting[RecordT]]) -> None:
        """As one batch."""
        first = waiting[0]
        try:
            if first.is_planned and (first.at_offset, first.surprises) != (self.next_offset, self._surprises):
                raise OvertakenError(self.name, end_offset=self.next_offset, at_offset=first.at_offset)
            pairs = [pair for one in waiting for pair in one.encoded]
            encoded = encode_records(pairs, self._host.clock.now_ms())
            part = AppendPart(
                topic_id=self.led.topic_id,
                topic=self._topic.name,
                partition=self.partition,
                leader_epoch=self.led.leader_epoch,
                encoded=encoded,
                at_offset=first.at_offset,
            )
            appended = self._host.publisher.submit([part])
        except SparklogError as error:
            fail(waiting, error)
            self._end(waiting)
            return
        self._background.spawn(self._finish(self.own.add(waiting), encoded.record_count, appended))

    async def _finish(
        self,
        batch: OwnBatch[RecordT],
        record_count: int,
        appended: Awaitable[Sequence[PartOutcome]],
    ) -> None:
        waiting, is_applied = batch.waiting, False
        try:
            (outcome,) = await appended
            failpoint("broker.state.durable")
            if outcome.error is None:
                await self._apply_own(outcome.base_offset, record_count, waiting)
                is_applied = True
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            fail(waiting, error)
        else:
            if outcome.error is not None:
                fail(waiting, outcome.error)
            for one in waiting:
                if not one.future.done():
                    one.future.set_result(None)
        finally:
            self._surprises += not is_applied
            self.own.end(batch, is_applied=is_applied)
            self._end(waiting)
            if self.own.waiting and not self.own:
                self._flush()
        self.follow()

    def _end(self, waiting: Sequence[Waiting[RecordT]]) -> None:
        for one in waiting:
            self._coming -= len(one.records)
            for record in one.records:
                self.state.end(record)

    async def _apply_own(self, base_offset: int, record_count: int, waiting: list[Waiting[RecordT]]) -> None:
        if base_offset != self.next_offset or self._lock.locked():
            await self._catch_up(base_offset)
        if base_offset != self.next_offset:
            return  # read from the log already
        for one in waiting:
            for record in one.records:
                self.state.apply(record)
        self._has_applied(base_offset + record_count)


# --- planned writes ----------------------------------------------------------------------------------
#
# Writing what follows from a state: tombstones for what has expired, is deleted, or lost its topic.
#
# It is right for that state only:
# 1. an offset has expired, and its deletion is on its way; 2. a Spark query commits 77 in its place; 3. the
# deletion arrives, and 77 is gone. So it says at which offset it must be, which is the end of all that it was
# planned by, and is planned anew where others came first.
# Offsets alone do not tell: what was counted on may fail, and as many records of others take its place; or it
# was read already, with what others have appended, and is counted twice. So it is handed over only when all
# that it was planned by has arrived, and nothing else has; what is appended behind it waits as long.
# Invariants: what is appended was planned by everything before it in the log. Where nothing is to be
#     appended, that is told only when everything that was counted on is durable.
# Concurrency: event loop.
# Sources: Kafka CoordinatorRuntime, where a write that makes no records waits for those before it.


PLANNED_AT_MOST: Final = 5  # times, while others append


async def write_planned(
    log: StateLog[RecordT, StateT], plan: Callable[[], Sequence[RecordT] | ErrorCode]
) -> ErrorCode:
    """Append what follows from a log's state; what to tell whoever asked for it.

    Args:
        plan: called again whenever the state has turned out to be another one before the records were there.
            An error: nothing is to be appended, and this is why.
    """
    for _ in range(PLANNED_AT_MOST):
        if not await log.catch_up():
            return ErrorCode.coordinator_not_available
        records = plan()
        if isinstance(records, ErrorCode):
            return records
        if not records:
            if await log.own.arrived():
                return ErrorCode.none
            continue
        appended = log.append(records, planned=True)
        error = await outcome_of(appended)
        if not was_overtaken(appended):
            return error
    _log.warning(
        "%s: not written, since other records came first %d times; ask for it again",
        log.name,
        PLANNED_AT_MOST,
    )
    return ErrorCode.coordinator_not_available
