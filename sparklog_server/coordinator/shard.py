"""One partition of __consumer_offsets: its offsets in memory, kept equal to the log.

Records are applied strictly in the order of their offsets, by the same code live and after a start. What this
broker appends is applied from memory as soon as it is durable; what others append (Spark queries, the
embedded client) is read, found through new images:
1. own records arrive at offset 12, while everything up to 10 is applied: 10 and 11 are somebody else's;
2. applying 12 first and 10 later would bring back an older offset;
3. so 10 to 12 are read from the log before the commit of 12 is acknowledged.
Invariants: everything below `next_offset` is applied, nothing above; an append returns when it is durable and
    applied, so that whoever was acknowledged reads what it wrote.
Not here: groups' members (coordinator.py); making records durable (the publisher).
Concurrency: event loop; `_lock` while the log is being read.
After a crash: read again from the log start.
Sources: docs/design.md.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparklog.client.groups import OFFSETS_TOPIC
from sparklog.errors import InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.format.consumer_offsets import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.group_metadata import GroupValue, encode_group_value
from sparklog.format.schema import RecordColumns
from sparklog.metadata import PartitionState
from sparklog_server.coordinator.host import Host
from sparklog_server.coordinator.offsets import Offsets
from sparklog_server.coordinator.replay import Replayed, replay
from sparklog_server.publish.parts import PartOutcome

_log = logging.getLogger("sparklog_server.coordinator")
Record = tuple[OffsetKey, OffsetValue | None] | tuple[GroupKey, GroupValue | None]
MAX_RECORD_BYTES: Final = 16 << 20  # a group of thousands of members is one record
RETRY_LOAD_MS: Final = 5_000


# Append batches to a partition of __consumer_offsets, by its topic id; the one outcome is there once they are
# durable and visible. The order is that of the calls, not of the awaiting.
Append = Callable[[str, int, EncodedBatches], Awaitable[Sequence[PartOutcome]]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One call of `append`."""

    records: Sequence[Record]
    encoded: list[tuple[bytes, bytes | None]]
    future: asyncio.Future[None]


class ShardStatus(enum.Enum):
    """May the groups of this partition be served?"""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the log is damaged there
    CLOSED = "closed"


class Shard:
    """See the module's docstring."""

    def __init__(self, host: Host, append: Append, topic_id: str, partition: int) -> None:
        self.offsets = Offsets()
        self.partition = partition
        self.status = ShardStatus.LOADING
        self.next_offset = 0
        self._host = host
        self._append = append
        self._topic_id = topic_id
        self._lock = asyncio.Lock()
        self._waiting: list[_Waiting] = []
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, loaded: Callable[["Shard", dict[str, GroupValue]], None]) -> None:
        """Load, then call `loaded` with the groups that are in the log; at once if there is nothing."""
        state = self._state()
        if state is None:
            return
        if state.log_end_offset == state.log_start_offset:
            self.next_offset = state.log_end_offset
            self.status = ShardStatus.READY
            loaded(self, {})
        else:
            self._spawn(self._load(loaded))

    def close(self) -> None:
        """Stop whatever goes on; who waits for an append is told by an error."""
        self.status = ShardStatus.CLOSED
        waiting, self._waiting = self._waiting, []
        _fail(waiting, _closed())
        for task in list(self._tasks):
            task.cancel()

    def append(self, records: Sequence[Record]) -> asyncio.Future[None]:
        """Make records durable, then apply them, in the order of the calls, whenever the future is awaited.

        What is appended in one turn of the loop shares a batch. The future fails with a SparklogError: not
        appended, or (RetriableError, StorageError) perhaps not.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        try:
            if self.status is ShardStatus.CLOSED:
                raise _closed()
            encoded = [_encode_record(record) for record in records]
        except SparklogError as error:
            future.set_exception(error)
            return future
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append(_Waiting(records, encoded, future))
        return future

    def follow(self) -> None:
        """A new image is there: read what others have appended."""
        state = self._state()
        # While something of ours is on its way, its arrival will see to it: most of what is new is ours.
        if (
            state is not None
            and self.status is ShardStatus.READY
            and not self._in_flight
            and not self._lock.locked()
            and state.log_end_offset > self.next_offset
        ):
            self._spawn(self._follow_log())

    def _state(self) -> PartitionState | None:
        topic = self._host.root.image.topics.get(OFFSETS_TOPIC)
        if topic is None or topic.topic_id != self._topic_id or self.partition >= len(topic.partitions):
            return None
        return topic.partitions[self.partition]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Reading

    async def _load(self, loaded: Callable[["Shard", dict[str, GroupValue]], None]) -> None:
        while self.status is ShardStatus.LOADING:
            try:
                async with self._lock:
                    replayed = await self._read(0)
            except (RetriableError, StorageError) as error:
                _log.warning("loading %s-%d failed: %s", OFFSETS_TOPIC, self.partition, error)
                await asyncio.sleep(RETRY_LOAD_MS / 1000)
            except SparklogError:
                self.status = ShardStatus.FAILED
                _log.exception(
                    "%s-%d cannot be loaded: its groups stay closed", OFFSETS_TOPIC, self.partition
                )
            else:
                self.status = ShardStatus.READY
                groups = {name: value for name, value in replayed.groups.items() if value is not None}
                loaded(self, groups)
                self.follow()

    async def _follow_log(self) -> None:
        try:
            await self._catch_up(0)
        except SparklogError as error:
            _log.warning("following %s-%d failed: %s", OFFSETS_TOPIC, self.partition, error)

    async def _catch_up(self, at_least: int) -> None:
        """Apply everything that the newest image has, up to `at_least` or beyond."""
        async with self._lock:
            if self.next_offset < at_least or not at_least:
                await self._read(at_least)

    async def _read(self, at_least: int) -> Replayed:
        state = self._state()
        if state is None or state.log_end_offset < at_least:
            await self._host.root.run(self._host.root.log.refresh)
            state = self._state()
        if state is None:
            return Replayed()
        start_offset, end_offset = max(self.next_offset, state.log_start_offset), state.log_end_offset
        if start_offset >= end_offset:
            return Replayed()
        replayed = await self._host.root.run(
            replay, self._host.root.store, self._host.root.image, self.partition, start_offset, end_offset
        )
        for key, value in replayed.offsets.items():
            self.offsets.apply(key, value)
        if replayed.skipped:
            self._host.metrics.offsets_records_skipped += replayed.skipped
            where = f"{OFFSETS_TOPIC}-{self.partition}, offsets {start_offset} to {end_offset - 1}"
            _log.warning("%s: skipped %d records without a key", where, replayed.skipped)
        self.next_offset = end_offset
        return replayed

    # Writing

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        waiting = [one for one in waiting if not one.future.done()]
        if not waiting:
            return
        try:
            encoded = _encode([pair for one in waiting for pair in one.encoded], self._host.clock.now_ms())
            appended = self._append(self._topic_id, self.partition, encoded)
        except SparklogError as error:
            _fail(waiting, error)
            return
        self._in_flight += 1
        self._spawn(self._finish(waiting, encoded.record_count, appended))

    async def _finish(
        self, waiting: list[_Waiting], record_count: int, appended: Awaitable[Sequence[PartOutcome]]
    ) -> None:
        try:
            (outcome,) = await appended
            failpoint("broker.offsets.durable")
            if outcome.error is None:
                await self._apply_own(outcome.base_offset, record_count, waiting)
        except asyncio.CancelledError:
            _fail(waiting, _closed())
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            _fail(waiting, error)
        else:
            if outcome.error is not None:
                _fail(waiting, outcome.error)
            for one in waiting:
                if not one.future.done():
                    one.future.set_result(None)
        finally:
            self._in_flight -= 1
        self.follow()

    async def _apply_own(self, base_offset: int, record_count: int, waiting: list[_Waiting]) -> None:
        if base_offset != self.next_offset or self._lock.locked():
            await self._catch_up(base_offset)
        if base_offset != self.next_offset:
            return  # read from the log already
        for one in waiting:
            for key, value in one.records:
                if isinstance(key, OffsetKey):
                    assert value is None or isinstance(value, OffsetValue)
                    self.offsets.apply(key, value)
        self.next_offset = base_offset + record_count


def _closed() -> RetriableError:
    return RetriableError(
        "COORDINATOR_CLOSED",
        f"{OFFSETS_TOPIC}: its coordinator stops, or starts over, while an append is on its way",
        fix="try again",
    )


def _fail(waiting: list[_Waiting], error: Exception) -> None:
    for one in waiting:
        if not one.future.done():
            one.future.set_exception(error)


def _encode_record(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    encoded_key = encode_offset_key(key) if isinstance(key, OffsetKey) else encode_group_key(key)
    if value is None:
        return encoded_key, None
    encoded = encode_offset_value(value) if isinstance(value, OffsetValue) else encode_group_value(value)
    if len(encoded_key) + len(encoded) > MAX_RECORD_BYTES:
        # Found here, it harms nobody that shares the batch.
        raise InvalidRequestError(
            "RECORD_TOO_LARGE",
            f"group {key.group[:100]!r}: found a record of {len(encoded)} bytes, expected at most "
            f"{MAX_RECORD_BYTES}",
            fix="use smaller subscriptions and assignments, or fewer members",
        )
    return encoded_key, encoded


def _encode(records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> EncodedBatches:
    columns = RecordColumns(
        key=pa.array([key for key, _ in records], pa.binary()),
        value=pa.array([value for _, value in records], pa.binary()),
        timestamp_ms=np.full(len(records), now_ms, np.int64),
    )
    return encode_batches(columns, EncodeOptions(max_message_bytes=2 * MAX_RECORD_BYTES))
