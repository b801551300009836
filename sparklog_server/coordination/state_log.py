"""One partition of an internal topic, in one leader epoch: a coordinator's state, kept equal to the log.

Records are applied in the order of their offsets, by the same code live and after a start. What this broker
appends is applied from memory as soon as it is durable. What others append (Spark queries, the embedded
client) is read, found through new images:
1. own records arrive at offset 12, while everything up to 10 is applied: others have appended 10 and 11;
2. applying 12 first and 10 later would restore an older state;
3. so 10 to 12 are read from the log before the append of 12 is acknowledged.
What is appended says in which leader epoch it was accepted, and is published in that epoch only: what
waited while the partition went to another broker, and came back, is never in the log.

Appends wait in one queue until they are applied, or known not to be. What is planned by the state, and by
what is ahead of it in the queue, holds only if that arrives: a second deletion finds nothing to delete, and
must not be answered before the first one is durable. So it is submitted when nothing else is with the
publisher, and what came later, after it.
Invariants: once it is loaded, everything below `next_offset` is applied, nothing above; an append returns
    when it is durable and applied, so that its client reads what it wrote. Of a range that is read, only the
    latest record of each key is applied; where it was compacted before, tombstones may be gone and everything
    is read again. Nothing is applied after `close`. However much is loaded, the event loop has its turns.
Not here: what the state is (the coordinator's), which partitions are opened (shards.py), making records
    durable (the publisher).
Concurrency: event loop; `_lock` while the log is being read (records.py).
After a crash: read again from the log start.
Sources: docs/design.md; docs/adr/0026; Kafka CoordinatorRuntime, PartitionWriter.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.metadata import PartitionState
from sparklog_server.coordination.internal_topic import (
    Host,
    InternalTopic,
    LedPartition,
    LogStatus,
    OffsetListeners,
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


@dataclass(slots=True, eq=False)
class Append(Generic[RecordT]):
    """One call of `StateLog.append`.

    Fields:
        future: for the caller, who may cancel it.
        at_offset: the only one at which its first record may be; NO_OFFSET: any.
        plan_epoch: that of the log when this was planned.
        is_submitted: it is with the publisher.
        ended: True: in the log, and applied; False: not, or perhaps not.
    """

    records: Sequence[RecordT]
    encoded: list[tuple[bytes, bytes | None]]
    future: asyncio.Future[None]
    ended: asyncio.Future[bool]
    at_offset: int = NO_OFFSET
    plan_epoch: int = 0
    is_submitted: bool = False

    @property
    def is_planned(self) -> bool:
        """True if it is right only for the state by which it was planned."""
        return self.at_offset != NO_OFFSET


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: the caller may be gone


async def outcome_of(appended: Awaitable[None]) -> ErrorCode:
    """Wait for an append, and return the error for the client that asked for it."""
    try:
        await appended
    except FencedError:
        return ErrorCode.not_coordinator
    except InvalidRequestError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.unknown_server_error
    except OvertakenError as error:  # the caller plans it again, and warns if it gives up
        _log.debug("not written yet: %s", error)
        return ErrorCode.coordinator_not_available
    except SparklogError as error:
        _log.warning("not written: %s", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _not_ready(name: str) -> RetriableError:
    return RetriableError(
        "COORDINATOR_CLOSED",
        f"{name}: its coordinator loads it, stops, or starts over, and appends nothing meanwhile",
        fix="try again",
    )


# --- state log ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.coordinator")
RETRY_LOAD_MS, MAX_RETRY_LOAD_MS = 100, 5_000
APPLIED_AT_ONCE: Final = 2_000  # records, a millisecond or two


class StateLog(Generic[RecordT, StateT]):
    """A log and the state that its records add up to."""

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
        """`state`: empty; this log is its only writer."""
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
        self._why_closed: SparklogError = _not_ready(self.name)
        self._lock = asyncio.Lock()
        self._appends: list[Append[RecordT]] = []  # in the order of the calls; submitted ones come first
        self._appended_records = 0  # of all of these
        self._listeners = OffsetListeners()
        self._plan_epoch = 0  # grows with all that no plan counts on: what is read, and what does not arrive
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
        """Load; immediately if there is nothing in the log.

        Args:
            on_loading: what else is to be done before any client is answered, once everything is applied;
                the loop has a turn after each part of it.
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
        """Stop all work. Appends that wait, and later ones, fail with `why`."""
        self.status = LogStatus.CLOSED
        if why is not None:
            self._why_closed = why
        for append in self._appends:
            _fail(append.future, self._why_closed)
            if not append.ended.done():
                append.ended.set_result(False)
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
            _fail(future, error)
            return future
        if not self._appends or self._appends[-1].is_submitted:
            loop.call_soon(self._flush)
        at_offset = self.next_offset + self._appended_records if planned else NO_OFFSET
        for record in records:
            self.state.begin(record)
        self._appended_records += len(records)
        self._appends.append(
            Append(records, encoded, future, loop.create_future(), at_offset, self._plan_epoch)
        )
        return future

    async def write(self, records: Sequence[RecordT]) -> ErrorCode:
        """Append records, if there are any; return the error for the client that asked for it."""
        return await outcome_of(self.append(records)) if records else ErrorCode.none

    async def appended(self) -> bool:
        """Wait for all appends so far. False: some are not in the log, or perhaps not."""
        ended = [append.ended for append in self._appends]
        if ended:
            await asyncio.wait(ended)
        return all(future.result() for future in ended)

    def when_applied(self, end_offset: int, reached: Callable[[], None]) -> None:
        """Call `reached` when all below that offset is applied, and nothing above; now, if it has been."""
        if self.next_offset >= end_offset:
            reached()
        else:
            self._listeners.add(end_offset, reached)

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
        """True if more may be staged than the state has; see Staging."""
        return self._staging.is_unsure

    @property
    def is_settled(self) -> bool:
        """True if there is nothing to wait for that transactions have committed."""
        return self.status is not LogStatus.READY or self._is_unreadable or self._staging.is_settled

    async def settled(self) -> None:
        """Wait until what transactions have committed is applied; see Staging."""
        if not self.is_settled:
            await self._staging.settled()

    def follow(self) -> None:
        """A new image is there: read what others have appended."""
        found = self.current()
        if self.status is LogStatus.READY:
            self._staging.follow()
        # An append that is submitted follows when it arrives: most of what is new is this broker's own.
        if (
            found is not None
            and self.status is LogStatus.READY
            and not self._is_submitting
            and not self._lock.locked()
            and found.log_end_offset > self.next_offset
        ):
            self._background.spawn(self._follow_log())

    async def catch_up(self) -> bool:
        """Apply all that the newest image has, unless that is being done; False: not possible now."""
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
            except Exception:  # noqa: BLE001 - clients must not wait forever for it to load
                self.status = LogStatus.FAILED
                _log.exception("%s cannot be loaded: its groups are not served", self.name)
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

        Its publish installs the image with it before it is reported.
        """
        found = self.current()
        while found is not None and await self._read_on(found):
            pass

    async def _read_on(self, found: PartitionState) -> bool:
        """Read up to the next offset that is listened for, or the end; True if there is more."""
        start_offset, end_offset = max(self.next_offset, found.log_start_offset), found.log_end_offset
        is_compacted = 0 < self.next_offset < found.cleaned.first_dirty_offset
        if is_compacted:  # a tombstone may be gone with what it deleted
            start_offset = found.log_start_offset
        if start_offset >= end_offset:
            self._has_applied(start_offset)  # of what was below nothing is left
            return False
        end_offset = self._listeners.next_in(start_offset, end_offset)
        replayed = await self._reading.read(found, start_offset, end_offset)
        if is_compacted:
            self.state.clear()
        for number, record in enumerate(replayed.records, 1):
            self.state.apply(record)
            # Once it is loaded, all is applied in one turn: answers are given between turns.
            if self.status is LogStatus.LOADING and number % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if replayed.skipped:
            self._host.metrics.state_records_skipped[self._topic.name] += replayed.skipped
            where = f"{self.name}, offsets {start_offset} to {end_offset - 1}"
            _log.warning("%s: skipped %d records, the first: %s", where, replayed.skipped, replayed.why)
        self._plan_epoch += 1
        self._has_applied(end_offset)
        return end_offset < found.log_end_offset

    def _has_applied(self, next_offset: int) -> None:
        self.next_offset, self._is_unreadable = next_offset, False
        self._staging.applied(next_offset)
        self._listeners.applied(next_offset)

    # Writing

    @property
    def _is_submitting(self) -> bool:
        return bool(self._appends) and self._appends[0].is_submitted

    def _flush(self) -> None:
        waiting = [append for append in self._appends if not append.is_submitted]
        self._end([append for append in waiting if append.future.done()], is_applied=False)  # cancelled
        waiting = [append for append in waiting if not append.future.done()]
        for is_planned, run in itertools.groupby(waiting, key=lambda append: append.is_planned):
            if is_planned and self._is_submitting:
                return
            self._submit(list(run))

    def _submit(self, batch: list[Append[RecordT]]) -> None:
        first = batch[0]
        try:
            if first.is_planned and (first.at_offset, first.plan_epoch) != (
                self.next_offset,
                self._plan_epoch,
            ):
                raise OvertakenError(self.name, end_offset=self.next_offset, at_offset=first.at_offset)
            pairs = [pair for append in batch for pair in append.encoded]
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
            for append in batch:
                _fail(append.future, error)
            self._end(batch, is_applied=False)
            return
        for append in batch:
            append.is_submitted = True
        self._background.spawn(self._finish(batch, encoded.record_count, appended))

    async def _finish(
        self,
        batch: list[Append[RecordT]],
        record_count: int,
        appended: Awaitable[Sequence[PartOutcome]],
    ) -> None:
        is_applied = False
        try:
            (outcome,) = await appended
            failpoint("broker.state.durable")
            if outcome.error is None:
                await self._apply_own(outcome.base_offset, record_count, batch)
                is_applied = True
        except Exception as error:  # noqa: BLE001 - the callers get it, whatever it is
            for append in batch:
                _fail(append.future, error)
        else:
            for append in batch:
                if outcome.error is not None:
                    _fail(append.future, outcome.error)
                elif not append.future.done():
                    append.future.set_result(None)
        finally:
            self._plan_epoch += not is_applied
            self._end(batch, is_applied=is_applied)
            if self._appends and not self._is_submitting:
                self._flush()
        self.follow()

    def _end(self, batch: Sequence[Append[RecordT]], *, is_applied: bool) -> None:
        if not batch:
            return
        gone = set(batch)
        self._appends = [append for append in self._appends if append not in gone]
        for append in batch:
            self._appended_records -= len(append.records)
            for record in append.records:
                self.state.end(record)
            if not append.ended.done():
                append.ended.set_result(is_applied)

    async def _apply_own(self, base_offset: int, record_count: int, batch: Sequence[Append[RecordT]]) -> None:
        if base_offset != self.next_offset or self._lock.locked():
            await self._catch_up(base_offset)
        if base_offset != self.next_offset:
            return  # read from the log already
        for append in batch:
            for record in append.records:
                self.state.apply(record)
        self._has_applied(base_offset + record_count)


# --- planned writes ----------------------------------------------------------------------------------
#
# Writing what follows from a state: tombstones for what has expired, is deleted, or lost its topic.
#
# It is right for that state only:
# 1. an offset has expired, and its deletion is appended; 2. a Spark query commits 77 in its place; 3. the
# deletion arrives, and 77 is gone. So it says at which offset it must be, which is the end of all that it was
# planned by, and is planned again where others came first.
# The offset alone is not enough: an append that was counted on may fail, and as many records of others take
# its place; or it was read already, with what others have appended, and is counted twice. So it is submitted
# only when all that it was planned by has arrived, and nothing else has; later appends wait as long.
# Invariants: what is appended was planned by everything before it in the log. Where nothing is to be
#     appended, the client is answered only when everything that was counted on is durable.
# Concurrency: event loop.
# Sources: Kafka CoordinatorRuntime, where a write that makes no records waits for those before it.


PLANNED_AT_MOST: Final = 5  # times, while others append


async def write_planned(
    log: StateLog[RecordT, StateT], plan: Callable[[], Sequence[RecordT] | ErrorCode]
) -> ErrorCode:
    """Append what follows from a log's state; return the error for the client that asked for it.

    Args:
        plan: is called again whenever the state has changed before the records were appended. It may return
            an error instead: then nothing is appended.
    """
    for _ in range(PLANNED_AT_MOST):
        if not await log.catch_up():
            return ErrorCode.coordinator_not_available
        records = plan()
        if isinstance(records, ErrorCode):
            return records
        if not records:
            if await log.appended():
                return ErrorCode.none
            continue
        appended = log.append(records, planned=True)
        error = await outcome_of(appended)
        if appended.cancelled() or not isinstance(appended.exception(), OvertakenError):
            return error
    _log.warning(
        "%s: not written, since other records came first %d times; ask for it again",
        log.name,
        PLANNED_AT_MOST,
    )
    return ErrorCode.coordinator_not_available
