"""Reads partitions for consumers: from the tail cache, else from storage; waits if there are too few bytes.

Steps of a fetch: check every partition against the newest image; if there are too few bytes, wait (purgatory)
for more, or for the time-out; then read once, in the order given, until the allowed bytes are used up. The
first partition that has records returns at least one batch, however large (KIP-74).

Invariants: nothing is returned from beyond the log end of the image that the answer is checked against, or
    of the newer one that was loaded to find a missing file, and whose end is then in the answer: high
    watermark = last stable offset = log end; a partition with damaged or missing bytes is answered with an
    error and logged, without effect on others.
Memory: bytes that are read and sent count against sparklog.fetch.buffer.bytes; beyond it, fetches are
    answered with one batch each, so that slow consumers cannot exhaust the broker's memory. Waiting fetches
    count against sparklog.fetch.waiting.bytes; beyond it, a fetch waits CROWDED_WAIT_MS at most.
Not here: the protocol (api/fetch.py, sessions.py), sessions (sessions.py).
Concurrency: event loop; storage and the cache's copying run in storage threads.
Sources: Kafka ReplicaManager.fetchMessages, readFromLog; docs/design.md.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from sparklog.clock import Clock
from sparklog.errors import OffsetOutOfRangeError, SparklogError, UnknownTopicError
from sparklog.format.encode import EncodedBatches
from sparklog.log.partition_reader import validate_missing
from sparklog.log.read_plan import validate_range
from sparklog.log.segment_file import SegmentMissingError
from sparklog.metadata import NO_NODE, Image, PartitionState, Topic
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Membership
from sparklog_server.fetch.cache import FetchedBatches, FollowedPartitions, TailCache
from sparklog_server.fetch.reader import READ_SECONDS, Gathered, Place, StoredReader
from sparklog_server.fetch.sessions import MAX_EPOCH, FetchSessions, PartitionAnswer, PartitionFetch
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timing import DelayedOperation, Purgatory, Timer, WatchKey
from sparklog_server.settings.broker import FetchSettings

# --- waiting -----------------------------------------------------------------------------------------
#
# The bytes available to a fetch, from the metadata alone, and the wait until they are enough.
#
# Invariants: the sum over an operation's partitions is updated from the changed partition only; an error, a
#     deleted topic or another leader ends the wait immediately.
# Not here: waking up (runtime/timing.py).
# Concurrency: event loop only.
# Sources: Kafka DelayedFetch.


def countable_bytes(state: PartitionState, fetch: PartitionFetch, min_bytes: int) -> int:
    """Return the bytes of a partition that count for the fetch; counting stops at `min_bytes`."""
    return state.extents.bytes_from(fetch.offset, max(1, min(fetch.max_bytes, min_bytes)))


class DelayedFetch(DelayedOperation):
    """A fetch that waits until its partitions have `min_bytes`."""

    __slots__ = ("_bytes", "_fetches", "_get_image", "_leaderships", "_min_bytes", "_total", "done")

    def __init__(
        self,
        fetches: Sequence[tuple[PartitionFetch, PartitionState, int]],
        min_bytes: int,
        get_image: Callable[[], Image],
        done: asyncio.Future[None],
    ) -> None:
        """The integers are the bytes that are available in each partition now."""
        super().__init__()
        self.done = done
        self._get_image = get_image
        self._min_bytes = min_bytes
        self._fetches: Mapping[WatchKey, PartitionFetch] = {
            (state.topic_id, state.partition): fetch for fetch, state, _ in fetches
        }
        self._leaderships = {(state.topic_id, state.partition): state.leadership for _, state, _ in fetches}
        self._bytes: dict[WatchKey, int] = {}
        self._total = sum(size for _, _, size in fetches)
        for _, state, size in fetches:
            if size:
                self._bytes[state.topic_id, state.partition] = size

    @property
    def keys(self) -> list[WatchKey]:
        """Return the keys to watch."""
        return list(self._fetches)

    def try_complete(self, key: WatchKey) -> bool:
        topic = self._get_image().topic_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return True
        state, fetch = topic.partitions[key[1]], self._fetches[key]
        if fetch.offset < state.log_start_offset or state.leadership != self._leaderships[key]:
            return True
        size = countable_bytes(state, fetch, self._min_bytes)
        self._total += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        return self._total >= self._min_bytes

    def on_complete(self, *, expired: bool) -> None:
        del expired  # same answer: with the available records
        if not self.done.done():
            self.done.set_result(None)


# --- checking ----------------------------------------------------------------------------------------
#
# Checks whether a fetch may read a partition here: by this broker's role, and by its image.
#
# |this broker|serves|
# |leader|all consumers; if rack-aware, names a replica in the consumer's rack instead (KIP-392)|
# |replica|consumers that support replicas (Fetch version 11 or later), up to the end of its image|
# |neither|none: NOT_LEADER_OR_FOLLOWER|
#
# An offset beyond the log's end is out of range only if the image was the newest when the consumer asked:
# 1. a consumer reads at broker B, to offset 100, and moves to A, whose image ends at 90;
# 2. A answers OFFSET_OUT_OF_RANGE, and the consumer applies auto.offset.reset: it loses records, or reads 100
#    of them again.
# So the image is refreshed first, and everything is checked again. If the refresh fails, the range is
# unknown: the consumer has to find the leader again. A replica never answers out of range: it sends the
# consumer to the leader, as in Kafka.
#
# Invariants: pure, for one image.
# Concurrency: any thread.
# Sources: KIP-392; Kafka Partition.readRecords, ReplicaManager.findPreferredReadReplica,
#     RackAwareReplicaSelector.


@dataclass(slots=True)
class Wanted:
    """A partition of a fetch, with its answer.

    Fields:
        readable: bytes, as far as they matter for min_bytes; 0: nothing.
        is_unsure: a newer image may give another result.
    """

    fetch: PartitionFetch
    state: PartitionState | None
    answer: PartitionAnswer
    readable: int = 0
    is_unsure: bool = False


def check(
    image: Image,
    leadership: Leadership,
    fetch: PartitionFetch,
    *,
    min_bytes: int,
    rack: str | None,
    is_rack_aware: bool,
) -> Wanted:
    """Check a partition of a fetch against an image.

    Args:
        rack: of the consumer, "" if it has none; None: it must be served by leaders.
        is_rack_aware: True if consumers are sent to replicas in their racks.
    """
    topic_id = fetch.topic_id
    topic = image.topic_by_id.get(topic_id) if topic_id else image.topics.get(fetch.topic)
    name = fetch.topic if topic is None else topic.name
    answer = PartitionAnswer(topic=name, topic_id=topic_id, partition=fetch.partition)
    if topic is None or not 0 <= fetch.partition < len(topic.partitions):
        is_id_unknown = topic is None and topic_id
        answer.error_code = (
            ErrorCode.unknown_topic_id if is_id_unknown else ErrorCode.unknown_topic_or_partition
        ).value
        return Wanted(fetch, None, answer)
    state = topic.partitions[fetch.partition]
    leader = leadership.leader_of(state)
    error = leader.epoch_error(fetch.leader_epoch)
    if error:
        answer.error_code = error.value
        return Wanted(fetch, None, answer, is_unsure=error is ErrorCode.unknown_leader_epoch)
    is_leader = leader.node_id == leadership.node_id
    if not is_leader and (rack is None or leadership.node_id not in state.leadership.replicas):
        answer.error_code = ErrorCode.not_leader_or_follower.value
        return Wanted(fetch, None, answer)
    answer.tell(state)
    is_beyond = fetch.offset > state.log_end_offset
    if is_beyond or fetch.offset < state.log_start_offset:
        can_tell = is_leader or not is_beyond
        answer.error_code = (
            ErrorCode.offset_out_of_range if can_tell else ErrorCode.offset_not_available
        ).value
        return Wanted(fetch, state, answer, is_unsure=is_beyond)
    if is_leader and rack and is_rack_aware:
        answer.preferred_read_replica = preferred_replica(image, state, rack)
        if answer.preferred_read_replica != NO_NODE:
            return Wanted(fetch, state, answer)
    return Wanted(fetch, state, answer, countable_bytes(state, fetch, min_bytes))


def preferred_replica(image: Image, state: PartitionState, rack: str) -> int:
    """Return a replica in the rack, unless the leader is in it, too; NO_NODE: the leader serves.

    Several replicas in the rack share the partitions.
    """
    brokers, leadership = image.brokers, state.leadership
    leader = brokers.get(leadership.leader)
    if leader is None or leader.rack == rack:
        return NO_NODE
    there = [
        one.node_id
        for one in map(brokers.get, leadership.replicas)
        if one is not None and one.rack == rack and not (one.is_fenced or one.in_controlled_shutdown)
    ]
    return there[state.partition % len(there)] if there else NO_NODE


# --- rounds ------------------------------------------------------------------------------------------
#
# Invariants: a round ends when enough is read, or READ_SECONDS after it began, except for bytes in memory:
#     the consumer fetches the rest later. A partition with damaged or missing bytes is answered with an error
#     and logged, without effect on others. A missing file has been merged or has expired, as the newest image
#     shows; the bytes that were fetched of the partition before that are discarded.
# Memory: MAX_STORAGE_ROUND_BYTES, and one batch more, however large.
# Concurrency: one storage thread per round.


FRESH_BYTES = 8 << 20  # reads that end this close to the log's end are kept for the next consumer
MAX_STORAGE_ROUND_BYTES = 4 << 20
Round = list[tuple[Wanted, FetchedBatches | None]]


class Rounds:
    """Reads from storage in rounds: some partitions of a fetch, one after the other."""

    def __init__(self, root: LiveRoot, reader: StoredReader, cache: TailCache) -> None:
        self._root = root
        self._reader = reader
        self._cache = cache

    def read(self, todo: Sequence[Wanted], left: int, at_least_one: bool) -> Round:
        """Read some partitions in order, enough for one round."""
        end = monotonic() + READ_SECONDS
        try:
            gathered = self._gather(todo, left)
        except SparklogError as error:
            _log.error("fetch of %d partitions: %s", len(todo), error)
            for one in todo:
                one.answer.error_code = error_code(error).value
            return [(one, None) for one in todo]
        results: Round = []
        size = 0
        for number, one in enumerate(todo):
            limit = min(left - size, one.fetch.max_bytes)
            if results and (limit <= 0 or size >= MAX_STORAGE_ROUND_BYTES):
                break
            if results and monotonic() >= end:
                if gathered is None:
                    break
                if not gathered.has_any(number):
                    results.append((one, None))
                    continue
            batches = self._read_one(
                one, limit, at_least_one, None if gathered is None else (gathered, number)
            )
            results.append((one, batches))
            if batches is not None and batches.size:
                at_least_one = False
                size += batches.size
        return results

    def _gather(self, todo: Sequence[Wanted], left: int) -> Gathered | None:
        places = []
        for one in todo:
            assert one.state is not None
            places.append(
                Place(
                    topic=one.answer.topic,
                    state=one.state,
                    offset=one.fetch.offset,
                    max_bytes=one.fetch.max_bytes,
                )
            )
        return self._reader.gather(places, max_bytes=min(left, MAX_STORAGE_ROUND_BYTES))

    def _read_one(
        self, one: Wanted, limit: int, at_least_one: bool, gathered: tuple[Gathered, int] | None
    ) -> FetchedBatches | None:
        assert one.state is not None
        topic, state, offset = one.answer.topic, one.state, one.fetch.offset
        misses = 0
        try:
            while True:
                try:
                    return self._read_stored(topic, state, offset, limit, at_least_one, gathered)
                except SegmentMissingError as error:  # merged or expired since, or lost
                    gathered = None
                    misses += 1
                    state = self._root.newest(state.topic_id, state.partition)
                    validate_missing(error, state, offset, misses=misses, topic=topic)
                    validate_range(topic, state, offset, state.log_end_offset)
                    one.answer.tell(state)  # the read may go beyond the answered log end
        except (OffsetOutOfRangeError, UnknownTopicError) as error:
            one.answer.error_code = error_code(error).value
        except SparklogError as error:
            _log.error("fetch of %s-%d from offset %d: %s", topic, one.fetch.partition, offset, error)
            one.answer.error_code = error_code(error).value
        return None

    def _read_stored(
        self,
        topic: str,
        state: PartitionState,
        offset: int,
        limit: int,
        at_least_one: bool,
        gathered: tuple[Gathered, int] | None,
    ) -> FetchedBatches:
        found, block = self._reader.read(
            topic, state, offset, max_bytes=limit, at_least_one=at_least_one, gathered=gathered
        )
        is_dirty = found.next_offset > state.cleaned.first_dirty_offset  # reads below it bypass the cache
        is_fresh = is_dirty and state.extents.bytes_from(found.next_offset, FRESH_BYTES) < FRESH_BYTES
        if block is not None and is_fresh:
            self._cache.insert(state.topic_id, state.partition, block)
        return found


# --- service -----------------------------------------------------------------------------------------


WAITING_BYTES = 1000  # memory of a partition while a fetch waits for it
CROWDED_WAIT_MS = 100
MISSED_AT_ONCE = 1000  # cache lookups before a reading round: a millisecond or two
CLOSE_REMOVED_MS = 60_000
_log = logging.getLogger("sparklog_server.fetch")


@dataclass(slots=True)
class Fetched:
    """The answers of one fetch; `release` frees the buffers and files of their chunks."""

    answers: list[PartitionAnswer]
    releases: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """Free the chunks; call it once, after sending."""
        while self.releases:
            self.releases.pop()()


class FetchService:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        leadership: Leadership,
        settings: FetchSettings,
        *,
        timer: Timer,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._root = root
        self._membership = membership
        self._leadership = leadership
        self._settings = settings
        self._metrics = metrics
        self._timer = timer
        self.cache = TailCache(settings.fetch_cache_bytes)
        self._followed = FollowedPartitions(clock.monotonic_ms)
        self.reader = StoredReader(root.store, leadership)
        self._rounds = Rounds(root, self.reader, self.cache)
        self.sessions = FetchSessions(
            slots=settings.fetch_session_slots,
            new_id=_new_session_id,
            max_bytes=settings.fetch_session_bytes,
        )
        self.purgatory = Purgatory(timer.schedule)
        self.in_flight_bytes = 0
        self.waiting_bytes = 0

    async def start(self) -> None:
        """Subscribe to appends of this broker, and to new images."""
        self._root.on_image(self._on_image)
        self._timer.schedule(CLOSE_REMOVED_MS, self._close_removed)
        self._metrics.gauge(Gauge.PURGATORY_FETCH, lambda: len(self.purgatory))
        self._metrics.gauge(Gauge.CACHE_BYTES, lambda: self.cache.size_bytes)

    def _close_removed(self) -> None:
        """Periodically free the space of segments that were swept while they were open here."""
        self._timer.schedule(CLOSE_REMOVED_MS, self._close_removed)
        self.reader.segments.close_removed()

    async def stop(self) -> None:
        """Unsubscribe, and close all files."""
        self.reader.close()

    # --- fetching -----------------------------------------------------------------------------------

    async def fetch(
        self,
        fetches: Sequence[PartitionFetch],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        is_read_committed: bool = False,
        rack: str | None = None,
    ) -> Fetched:
        """Return one answer per partition, in the order given. The caller releases it after sending.

        Args:
            rack: the consumer's, "" if it has none; None: it must be served by leaders.
        """
        max_bytes = min(max_bytes, self._settings.fetch_max_bytes)
        min_bytes = min(min_bytes, max_bytes)
        image = self._root.image  # before the check: it may advance at any time, in other threads
        wanted = await self._checked(fetches, min_bytes, rack)
        if not self._is_enough(wanted, min_bytes, max_wait_ms):
            if self._is_crowded_by(len(wanted)):
                wanted.clear()
                await asyncio.sleep(min(max_wait_ms, CROWDED_WAIT_MS) / 1000)
            else:
                await self._wait(wanted, min_bytes, max_wait_ms)
            if not wanted or self._root.image is not image or not self._membership.is_in_charge:
                wanted = await self._checked(fetches, min_bytes, rack)
        fetched = Fetched([one.answer for one in wanted])
        for one in wanted:
            one.answer.is_read_committed = is_read_committed
        try:
            await self._read_all(wanted, max_bytes, fetched)
        except BaseException:
            fetched.release()
            raise
        return fetched

    # --- checking and waiting -----------------------------------------------------------------------

    async def _checked(
        self, fetches: Sequence[PartitionFetch], min_bytes: int, rack: str | None
    ) -> list[Wanted]:
        """Check all partitions against the image; again if a stale image may be the reason for a refusal."""
        wanted = self._check_all(fetches, min_bytes, rack)
        if any(one.is_unsure for one in wanted):
            failure = await self._root.look(force=True)
            wanted = self._check_all(fetches, min_bytes, rack)
            if failure is not None:  # unknown: the client has to retry
                wanted = [_not_led(one.fetch) if one.is_unsure else one for one in wanted]
        if not self._membership.is_in_charge:
            wanted = [_not_led(fetch) for fetch in fetches]
        return wanted

    def _check_all(self, fetches: Sequence[PartitionFetch], min_bytes: int, rack: str | None) -> list[Wanted]:
        image, is_rack_aware = self._root.image, self._settings.is_rack_aware
        return [
            check(image, self._leadership, one, min_bytes=min_bytes, rack=rack, is_rack_aware=is_rack_aware)
            for one in fetches
        ]

    def _is_enough(self, wanted: Sequence[Wanted], min_bytes: int, max_wait_ms: int) -> bool:
        if max_wait_ms <= 0 or not wanted:
            return True
        return (
            any(one.answer.error_code or one.answer.preferred_read_replica >= 0 for one in wanted)
            or sum(one.readable for one in wanted) >= min_bytes
        )

    def _is_crowded_by(self, partitions: int) -> bool:
        """True if waiting for so many more partitions would exceed the memory limit."""
        return self.waiting_bytes + WAITING_BYTES * partitions > self._settings.fetch_waiting_bytes

    async def _wait(self, wanted: Sequence[Wanted], min_bytes: int, max_wait_ms: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = [(one.fetch, one.state, one.readable) for one in wanted if one.state is not None]
        operation = DelayedFetch(waiting, min_bytes, lambda: self._root.image, done)
        size = WAITING_BYTES * len(wanted)
        self.waiting_bytes += size
        self.purgatory.watch(operation, operation.keys, max_wait_ms)
        try:
            await done
        finally:
            operation.cancel()
            self.waiting_bytes -= size

    # --- reading ------------------------------------------------------------------------------------

    async def _read_all(self, wanted: Sequence[Wanted], max_bytes: int, fetched: Fetched) -> None:
        """Read the available records, within the memory that all fetches may use together."""
        todo = [one for one in wanted if one.readable]
        possible = min(max_bytes, sum(max(0, one.fetch.max_bytes) for one in todo))
        reserved = max(0, min(possible, self._settings.fetch_buffer_bytes - self.in_flight_bytes))
        self.in_flight_bytes += reserved
        try:
            await self._read_in_turn(todo, reserved, fetched)
        finally:
            self.in_flight_bytes -= reserved

    async def _read_in_turn(self, todo: Sequence[Wanted], left: int, fetched: Fetched) -> None:
        """Read partition by partition. The first one that is not cached is read in a storage thread, together
        with the next ones that are not cached.
        """
        at_least_one = True
        read: set[int] = set()
        end = monotonic() + READ_SECONDS
        for number, one in enumerate(todo):
            if number in read:
                continue
            if left <= 0 and not at_least_one:
                return
            found = self._read_cached(one, left, at_least_one)
            results: Round = [(one, found)]
            if found is None:
                if not at_least_one and monotonic() >= end:
                    return  # with the records so far; the consumer fetches the rest later
                missed = [number, *self._also_missed(todo, number + 1, left, read)]
                results = await self._read_in_thread([todo[one] for one in missed], left, at_least_one)
                read.update(missed[: len(results)])
            for wanted, batches in results:
                if batches is None or not batches.size:
                    continue
                wanted.answer.chunks, wanted.answer.size = batches.chunks, batches.size
                self._hold(batches, fetched)
                left -= batches.size
                at_least_one = False

    def _also_missed(self, todo: Sequence[Wanted], start: int, left: int, read: set[int]) -> list[int]:
        """Return the next partitions, from this one on, that are not cached."""
        return [
            number
            for number in range(start, min(start + MISSED_AT_ONCE, len(todo)))
            if number not in read and self._find_cached(todo[number], left, at_least_one=True) is None
        ]

    async def _read_in_thread(self, todo: Sequence[Wanted], left: int, at_least_one: bool) -> Round:
        """Read in a thread; if the client disconnects during the read, close the files."""
        reading = asyncio.ensure_future(self._root.run(self._rounds.read, todo, left, at_least_one))
        try:
            results = await asyncio.shield(reading)
        except asyncio.CancelledError:
            reading.add_done_callback(_release_round)
            raise
        finally:
            del reading  # it may hold the exception that holds this frame
        for _, batches in results:
            self._metrics.cache_miss(0 if batches is None else batches.size)
        return results

    def _read_cached(self, one: Wanted, left: int, at_least_one: bool) -> FetchedBatches | None:
        found = self._find_cached(one, left, at_least_one)
        if found is not None:
            self._metrics.cache_hit(found.size)
        return found

    def _find_cached(self, one: Wanted, left: int, at_least_one: bool) -> FetchedBatches | None:
        assert one.state is not None
        limit = min(left, one.fetch.max_bytes)
        self._followed.note(one.state.topic_id, one.state.partition)
        if one.fetch.offset < one.state.cleaned.first_dirty_offset:
            # Possibly older than the compaction: a cached value without its tombstone would revive a key.
            return None
        found = self.cache.read(
            one.state.topic_id,
            one.state.partition,
            one.fetch.offset,
            end_offset=one.state.log_end_offset,
            max_bytes=limit,
            at_least_one=at_least_one,
        )
        # A small piece before a gap would cost the consumer a round trip: the storage has more.
        if found is None or (found.is_cut and self._is_more_behind(one.state, found, limit)):
            return None
        return found

    def _is_more_behind(self, state: PartitionState, found: FetchedBatches, limit: int) -> bool:
        """True if more bytes follow in the log, and fit into the limit."""
        size = found.size
        return 2 * size < limit and state.extents.bytes_from(found.next_offset, size + 1) > size

    def _hold(self, batches: FetchedBatches, fetched: Fetched) -> None:
        """Count the bytes until they are sent."""
        self.in_flight_bytes += batches.size

        def release(size: int = batches.size) -> None:
            self.in_flight_bytes -= size

        fetched.releases.append(release)
        if batches.release is not None:
            fetched.releases.append(batches.release)

    # --- news ---------------------------------------------------------------------------------------

    def on_appended(self, topic_id: str, partition: int, base_offset: int, encoded: EncodedBatches) -> None:
        """Cache appended batches; the publisher calls it before it installs the image. Any thread."""
        if not self._followed.is_followed(topic_id, partition):
            return
        state = _partition_of(self._root.image.topic_by_id.get(topic_id), partition)
        if state is not None:
            epoch = self._leadership.leader_of(state).epoch
            self.cache.append(topic_id, partition, base_offset, encoded, leader_epoch=epoch)

    def _on_image(self, old: Image, new: Image) -> None:
        """Wake the fetches that wait for a changed partition (another object in the new image).

        Only topics with waiting fetches are checked.
        """
        for topic_id in self.purgatory.topics():
            before, after = old.topic_by_id.get(topic_id), new.topic_by_id.get(topic_id)
            if before is after:
                continue
            for partition in self.purgatory.partitions(topic_id):
                if _partition_of(before, partition) is not _partition_of(after, partition):
                    self.purgatory.check(topic_id, partition)


def _new_session_id() -> int:
    return 1 + secrets.randbelow(MAX_EPOCH)


def _partition_of(topic: Topic | None, partition: int) -> PartitionState | None:
    return topic.partitions[partition] if topic is not None and partition < len(topic.partitions) else None


def _not_led(fetch: PartitionFetch) -> Wanted:
    """Return NOT_LEADER_OR_FOLLOWER: the client has to find the leader again."""
    answer = PartitionAnswer(topic=fetch.topic, topic_id=fetch.topic_id, partition=fetch.partition)
    answer.error_code = ErrorCode.not_leader_or_follower.value
    return Wanted(fetch, None, answer)


def _release_round(reading: asyncio.Future[Round]) -> None:
    if reading.cancelled() or reading.exception() is not None:
        return
    for _, batches in reading.result():
        if batches is not None and batches.release is not None:
            batches.release()
