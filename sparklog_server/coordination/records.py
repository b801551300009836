"""A state log's records, from bytes and to bytes.

Invariants: of a stretch that is read, the last record of each key counts; only those are decoded, so that a
    long history costs little more than its bytes. What has no key, or what the topic's `decode` does not
    know, is skipped and counted: one writer must not close the partition to all others. Bytes that
    a disk has changed are found by the checksums of batches, and are an error. A record that is too large is
    found before it shares a batch with others.
Concurrency: pure functions; `replay` and `replay_together` read, in a thread that may wait.
Sources: Kafka CoordinatorLoaderImpl.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic

import numpy as np
import pyarrow as pa

from sparklog.client.consumer import read_batches
from sparklog.errors import (
    CorruptLogError,
    InvalidRequestError,
    SparklogError,
    UnsupportedVersionError,
    as_value,
)
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.partition_reader import Stretch, read_together
from sparklog.log.reader import plan_read, read_ranges
from sparklog.log.segment_file import SegmentMissingError
from sparklog.metadata import ExtentList, Image, MetadataLog, PartitionState
from sparklog.storage import Store
from sparklog_server.coordination.internal_topic import InternalTopic, RecordT
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background

MAX_RECORD_BYTES: Final = 16 << 20  # all that is said of a thing is one record
_MAX_ARRAY_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Replayed(Generic[RecordT]):
    """What a stretch says: a record of each key, how many say nothing, and what the first of these is."""

    records: list[RecordT]
    skipped: int
    why: str = "it has no key"


def replay_together(
    store: Store,
    topic: InternalTopic[RecordT],
    stretches: Sequence[Stretch],
    *,
    is_wanted: Callable[[], bool],
) -> Iterator[tuple[int, Replayed[RecordT] | SparklogError]]:
    """(number of a stretch, what it says or what went wrong), each as soon as it is read.

    Args:
        is_wanted: asked now and then; if not, the rest is left.
    """
    kept = [_Kept() for _ in stretches]
    for number, found in read_together(store, stretches):
        if not is_wanted():
            return
        if isinstance(found, SparklogError):
            yield number, found
        elif found is not None:
            kept[number].add(found.key, found.value)
        else:
            one = stretches[number]
            try:
                yield number, kept[number].replayed(topic, one.state.partition)
            except SparklogError as error:
                yield number, error
            kept[number] = _Kept()


def replay(
    metadata: MetadataLog,
    image: Image,
    topic: InternalTopic[RecordT],
    partition: int,
    start_offset: int,
    end_offset: int,
) -> Replayed[RecordT]:
    """The records of [start_offset, end_offset) of a partition.

    Raises:
        CorruptLogError, DataLossError, UnsupportedVersionError: the partition cannot be served.
        StorageError: perhaps later.
    """
    kept = _Kept()
    for arrow_batch in read_batches(
        metadata,
        image,
        topic.name,
        partition,
        start_offset=start_offset,
        end_offset=end_offset,
        skip_expired=True,
    ):
        kept.add(arrow_batch.column("key"), arrow_batch.column("value"))
    return kept.replayed(topic, partition)


class _Kept:
    """Of each key the last record, undecoded."""

    def __init__(self) -> None:
        self._latest: dict[bytes | None, bytes | None] = {}
        self._skipped = 0

    def add(self, keys: pa.Array, values: pa.Array) -> None:
        self._latest.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
        self._skipped += keys.null_count

    def replayed(self, topic: InternalTopic[RecordT], partition: int) -> Replayed[RecordT]:
        where = f"{topic.name}-{partition}"
        pairs = ((key, value) for key, value in self._latest.items() if key is not None)
        records, unknown = decode_known(topic, pairs, where)
        why = {"why": str(unknown[0])} if unknown else {}
        return Replayed(records, self._skipped + len(unknown), **why)


def decode_known(
    topic: InternalTopic[RecordT], pairs: Iterable[tuple[bytes, bytes | None]], where: str
) -> tuple[list[RecordT], list[SparklogError]]:
    """What can be decoded, and why the others cannot."""
    records: list[RecordT] = []
    unknown: list[SparklogError] = []
    for key, value in pairs:
        try:
            records.append(topic.decode(key, value, where))
        except (CorruptLogError, UnsupportedVersionError) as error:
            unknown.append(as_value(error))
    return records, unknown


def replay_staged(
    store: Store, topic: InternalTopic[RecordT], extents: ExtentList, start_offset: int
) -> list[RecordT]:
    """The records that a transaction has staged in a partition, in order, from one on; those that say nothing
    are left out, and counted when they are read again, once they are committed.

    Raises: as `replay`; DataLossError also if the transaction was aborted meanwhile, and all that is swept.
    """
    end_offset = extents.end_offset
    state = PartitionState(
        topic_id=extents.topic_id,
        partition=extents.partition,
        log_start_offset=0,
        log_end_offset=end_offset,
        extents=extents,
    )
    plan = plan_read(store, state, start_offset, end_offset, topic=topic.name)
    where = f"{topic.name}-{extents.partition}, staged"
    records = []
    for decoded in read_ranges(store, plan):
        pairs = zip(decoded.key.to_pylist(), decoded.value.to_pylist(), strict=True)
        records += decode_known(topic, ((key, value) for key, value in pairs if key is not None), where)[0]
    return records


def encode_record(topic: InternalTopic[RecordT], record: RecordT, where: str) -> tuple[bytes, bytes | None]:
    """Key and value.

    Raises:
        InvalidRequestError: RECORD_TOO_LARGE, or what the topic refuses.
    """
    key, value = topic.encode(record)
    size = len(key) + len(value or b"")
    if size > MAX_RECORD_BYTES:
        raise InvalidRequestError(
            "RECORD_TOO_LARGE",
            f"{where}: found a record of {size} bytes under the key {key[:100]!r}, expected at most "
            f"{MAX_RECORD_BYTES}",
            fix=topic.too_large_fix,
        )
    return key, value


def encode_records(records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> EncodedBatches:
    """Several, of which each fits, as batches of one append."""
    columns = RecordColumns(
        key=_binary_array([key for key, _ in records]),
        value=_binary_array([value for _, value in records]),
        timestamp_ms=np.full(len(records), now_ms, np.int64),
    )
    return encode_batches(columns, EncodeOptions(max_message_bytes=2 * MAX_RECORD_BYTES))


def _binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Made of buffers: pa.array() would import pandas, 0.3 s in which the event loop does nothing else, and
    seconds where others use the processor, in the middle of a group's first write.
    """
    count = len(values)
    ends = np.zeros(count + 1, np.int64)
    np.cumsum([0 if value is None else len(value) for value in values], out=ends[1:])
    if int(ends[-1]) > _MAX_ARRAY_BYTES:
        raise InvalidRequestError(
            "RECORD_TOO_LARGE",
            f"found records of {ends[-1]} bytes in one append, expected at most {_MAX_ARRAY_BYTES}",
            fix="reduce the size of the request",
        )
    is_there = np.fromiter((value is not None for value in values), np.bool_, count)
    there = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    return pa.Array.from_buffers(pa.binary(), count, [there, pa.py_buffer(ends.astype(np.int32)), data])


# --- reading -----------------------------------------------------------------------------------------
#
# A coordinator that takes partitions over reads them all from their start. One after the other, in the
# threads that serve consumers, each would ask for every small commit by itself, after consumers that do the
# same for records, while the members of its groups wait.
#
# Invariants: each caller gets its own range, records or error, as soon as that is read.
# Not here: when to read, and what becomes of the records (state_log.py).
# Concurrency: `read` on the event loop; reading in threads that are for nothing else.
# After a crash: nothing stays.


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted(Generic[RecordT]):
    """One call of `read`."""

    stretch: Stretch
    future: "asyncio.Future[Replayed[RecordT]]"


class Reading(Generic[RecordT]):
    """Reading state logs: what is wanted in one turn of the loop together, in threads of their own."""

    def __init__(self, root: LiveRoot, topic: InternalTopic[RecordT]) -> None:
        self._root = root
        self._topic = topic
        self._wanted: list[_Wanted[RecordT]] = []
        self._background = Background()

    async def read(self, state: PartitionState, start_offset: int, end_offset: int) -> Replayed[RecordT]:
        """What the records of [start_offset, end_offset) say.

        Raises:
            CorruptLogError, DataLossError, UnsupportedVersionError: the partition cannot be served.
            StorageError: perhaps later.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Replayed[RecordT]] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._begin)
        stretch = Stretch(topic=self._topic.name, state=state, start=start_offset, end=end_offset)
        self._wanted.append(_Wanted(stretch, future))
        try:
            return await future
        finally:
            del future  # it may hold the exception that holds this frame

    def _begin(self) -> None:
        wanted, self._wanted = self._wanted, []
        wanted = [call for call in wanted if not call.future.done()]
        if wanted:
            self._background.spawn(self._read_all(wanted))

    async def _read_all(self, wanted: Sequence[_Wanted[RecordT]]) -> None:
        try:
            await self._root.run_apart(self._work, asyncio.get_running_loop(), wanted)
            await asyncio.sleep(0)  # the last caller gets its outcome before this goes on
        except Exception as error:  # noqa: BLE001 - the callers get it, whatever it is
            for call in wanted:
                _resolve(call.future, error)
        finally:
            for call in wanted:
                call.future.cancel()  # the broker stops

    def _work(self, loop: asyncio.AbstractEventLoop, wanted: Sequence[_Wanted[RecordT]]) -> None:
        """In a thread."""
        outcomes = replay_together(
            self._root.store,
            self._topic,
            [call.stretch for call in wanted],
            is_wanted=lambda: not all(call.future.done() for call in wanted),
        )
        for number, outcome in outcomes:
            call = wanted[number]
            if isinstance(outcome, SegmentMissingError):  # merged or compacted since; or lost
                outcome = self._read_alone(call.stretch)  # noqa: PLW2901
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, call.future, outcome)

    def _read_alone(self, wanted: Stretch) -> Replayed[RecordT] | SparklogError:
        root = self._root
        try:
            return replay(
                root.metadata, root.image, self._topic, wanted.state.partition, wanted.start, wanted.end
            )
        except SparklogError as error:
            return error


def _resolve(future: "asyncio.Future[Replayed[RecordT]]", outcome: Replayed[RecordT] | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
