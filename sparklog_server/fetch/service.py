"""Reading partitions for consumers: from the hot tail, else from storage; waiting where there is nothing.

Order of things in a fetch: check every partition against the newest image (checking.py); if there is too
little to read, wait (purgatory) until there is, or the time is over; then read once, in the order given,
until the bytes allowed are used up. The first partition that has records returns at least one batch, however
large (KIP-74).

Invariants: nothing is returned from beyond the log end of the image that the answer is checked against, or
    of the newer one by which a missing file was looked for, which it tells of then: high watermark = last
    stable offset = log end; a partition whose bytes are damaged or gone is answered
    with an error and logged, and harms no other.
Memory: what is being read and sent counts against sparklog.fetch.buffer.bytes; beyond it, fetches are
    answered with one batch each, so that slow consumers cannot make the broker hold as much as they ask for.
    What waits counts against sparklog.fetch.waiting.bytes; beyond it, a fetch waits CROWDED_WAIT_MS at most.
Not here: the protocol (api/fetch.py, response.py), sessions (sessions.py), reading from storage (rounds.py).
Concurrency: event loop; storage and the cache's copying run in storage threads.
Sources: Kafka ReplicaManager.fetchMessages, readFromLog; docs/design.md.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from sparklog.clock import Clock
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.metadata import Image, PartitionState, Topic
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.cluster.membership import Membership
from sparklog_server.fetch.batches import FetchedBatches
from sparklog_server.fetch.cache import TailCache
from sparklog_server.fetch.checking import Wanted, check
from sparklog_server.fetch.followed import FollowedPartitions
from sparklog_server.fetch.reader import READ_SECONDS, StoredReader
from sparklog_server.fetch.response import PartitionAnswer
from sparklog_server.fetch.rounds import Round, Rounds
from sparklog_server.fetch.sessions import MAX_EPOCH, FetchSessions, PartitionFetch
from sparklog_server.fetch.waiting import DelayedFetch
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.purgatory import Purgatory
from sparklog_server.runtime.timer import Timer
from sparklog_server.settings.fetch import FetchSettings

WAITING_BYTES = 1000  # what a partition takes while a fetch waits for it
CROWDED_WAIT_MS = 100
MISSED_AT_ONCE = 1000  # partitions that are looked up before a turn of reading: a millisecond or two
CLOSE_REMOVED_MS = 60_000
_log = logging.getLogger("sparklog_server.fetch")


@dataclass(slots=True)
class Fetched:
    """The answers of one fetch, and how to give back what their chunks lie in."""

    answers: list[PartitionAnswer]
    releases: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """Once, after sending."""
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
        """Listen for appends of this broker, and for new images."""
        self._root.on_image(self._on_image)
        self._timer.schedule(CLOSE_REMOVED_MS, self._close_removed)
        self._metrics.gauge(Gauge.PURGATORY_FETCH, lambda: len(self.purgatory))
        self._metrics.gauge(Gauge.CACHE_BYTES, lambda: self.cache.size_bytes)

    def _close_removed(self) -> None:
        """Once in a while: give back the space of what was swept while it was open here."""
        self._timer.schedule(CLOSE_REMOVED_MS, self._close_removed)
        self.reader.segments.close_removed()

    async def stop(self) -> None:
        """Close what is open."""
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
        """One answer per partition, in the order given. The caller releases it after sending.

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
        """Every partition against the image; and again, if an older one may be the reason for a refusal."""
        wanted = self._check_all(fetches, min_bytes, rack)
        if any(one.is_unsure for one in wanted):
            failure = await self._root.look(force=True)
            wanted = self._check_all(fetches, min_bytes, rack)
            if failure is not None:  # nobody knows: the client shall ask again
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
        """Would it be too much to wait for so many partitions more?"""
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
        """Read what there is, within the bytes that all fetches together may hold."""
        todo = [one for one in wanted if one.readable]
        possible = min(max_bytes, sum(max(0, one.fetch.max_bytes) for one in todo))
        reserved = max(0, min(possible, self._settings.fetch_buffer_bytes - self.in_flight_bytes))
        self.in_flight_bytes += reserved
        try:
            await self._read_in_turn(todo, reserved, fetched)
        finally:
            self.in_flight_bytes -= reserved

    async def _read_in_turn(self, todo: Sequence[Wanted], left: int, fetched: Fetched) -> None:
        """Read partition after partition. With the first that is not in memory come those after it that are
        not either, in a storage thread.
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
                    return  # with what there is; the rest is asked for again
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
        """Of the next partitions from this one on those that are not in memory."""
        return [
            number
            for number in range(start, min(start + MISSED_AT_ONCE, len(todo)))
            if number not in read and self._find_cached(todo[number], left, at_least_one=True) is None
        ]

    async def _read_in_thread(self, todo: Sequence[Wanted], left: int, at_least_one: bool) -> Round:
        """A client that goes away meanwhile must not leave files open."""
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
            # Older than its compaction, maybe: a value from here, and then no tombstone, would revive a key.
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
        """Does more follow than was found, and would it fit?"""
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
        """The publisher tells what it appended, before anybody sees the image with it. Any thread."""
        if not self._followed.is_followed(topic_id, partition):
            return
        state = _partition_of(self._root.image.topic_by_id.get(topic_id), partition)
        if state is not None:
            epoch = self._leadership.leader_of(state).epoch
            self.cache.append(topic_id, partition, base_offset, encoded, leader_epoch=epoch)

    def _on_image(self, old: Image, new: Image) -> None:
        """Wake whoever waits for a partition that changed: it is another object then.

        Only topics that somebody waits for are looked at.
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
    """Another broker may lead the partition: the client shall ask who does."""
    answer = PartitionAnswer(topic=fetch.topic, topic_id=fetch.topic_id, partition=fetch.partition)
    answer.error_code = ErrorCode.not_leader_or_follower.value
    return Wanted(fetch, None, answer)


def _release_round(reading: asyncio.Future[Round]) -> None:
    if reading.cancelled() or reading.exception() is not None:
        return
    for _, batches in reading.result():
        if batches is not None and batches.release is not None:
            batches.release()
