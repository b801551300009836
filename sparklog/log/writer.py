"""The segments of one process: batches are appended, made durable, and only then may be published.

Invariants:
    1. A segment file is created exclusively and written by one process only. After a fork the child drops
       the parent's segments and uses a new writer id. So does a clone of the process (a machine image that
       was resumed twice) when it finds one of its names taken.
    2. A draft may be published only after `sync(drafts)` returned: its bytes, its file's name and its
       directory are then durable.
    3. After a failed write or sync nothing is added to that segment: torn bytes are always
       its last, and no extent refers to them.
Stores whose files end with their sync (object stores): each sync ends the segment, and the next append begins
    another. flush.messages and flush.ms would only make objects small, and are ignored. The index is one more
    object, worth its request only for a segment of INDEXED_BYTES or more.
Isolated topics: a segment of one holds batches of this topic id only. At most MAX_ISOLATED of them are open;
    the least recently used one is synced and closed to make room, since it must not be shared instead. If the
    storage refuses the directory of one, only drafts in its segments fail (refused_topic.py).
Rolling: before an append that would exceed segment.bytes, segment.ms or segment.index.bytes of any topic in
    the segment (the strictest applies), or to a segment with a version before the sweep horizon, or whose
    file was removed. One append is never split over two segments.
Removed files: once all extents of a segment were merged or have expired, it may be swept while it is open
    here. Appended, unpublished data is lost with it: `sync` reports that (STAGING_EXPIRED) where it can be
    detected, else the publisher does. The next append begins another segment.
Not here: encoding (format), offsets and visibility (metadata), grouping rows (client/appender.py).
Concurrency: thread-safe by one lock.
After a crash: a new process has a new writer id; bytes without an extent are swept later.
Sources: docs/design.md; Kafka LogSegment.append, UnifiedLog.maybeRoll.
"""

import contextlib
import copy
import dataclasses
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from sparklog.clock import Clock
from sparklog.errors import (
    AlreadyExistsError,
    FatalStorageError,
    InvalidRequestError,
    RetriableError,
    StorageError,
    as_value,
)
from sparklog.failpoints import failpoint
from sparklog.forking import notify_after_fork
from sparklog.format.encode import EncodedBatches
from sparklog.format.encode_partitions import EncodedPartitions
from sparklog.format.index import encode_offset_entries
from sparklog.log.config import INT_MAX, TopicConfig
from sparklog.log.refused_topic import RefusedTopicError, naming_refused_topic, refused_topic
from sparklog.log.segment_file import INDEXED_BYTES, index_name, segment_name
from sparklog.metadata import DraftExtent, born_of, is_internal, is_isolated, isolated_prefix
from sparklog.storage import AppendFile, Store, StoreTraits

# --- lanes -------------------------------------------------------------------------------------------
#
# The topics whose batches may share a segment: those of one lane.
#
# A file is removed when nothing in it is live. Committed offsets are kept, and compacted now and then, unlike
# data that expires: in one segment, each would keep the other's bytes on the disk. So internal topics have
# their own segments. Where each flush creates a file anyway (object stores) they share it: another object for
# each flush would cost more than it frees, and merging separates them. With sparklog.segment.apart a topic
# shares segments only with topics of the same retention.
#
# The lane of an isolated topic is the prefix of its segments, and its id: the segments of a topic that is
# created again do not keep the bytes of the deleted one.
#
# Concurrency: pure functions.


SHARED = ""
INTERNAL = "internal"
MAX_NUMBER = 99_999_999  # of a segment: its name has eight digits
MAX_LANES = 16  # open segments of a process; further lanes share the first
MAX_ISOLATED = 64  # open segments of isolated topics; MAX_LANES on object stores, where each has a buffer


def lane_of(topic: str, topic_id: str, config: TopicConfig, traits: StoreTraits) -> str:
    """Return the lane of a topic with this name, id and settings."""
    if config.segment_isolation:
        return isolated_lane(topic, topic_id)
    if is_internal(topic):
        return INTERNAL if traits.appends_after_sync else SHARED
    if not config.segment_apart:
        return SHARED
    policy = ",".join(sorted(config.cleanup_policy))
    return f"{policy} {config.retention_ms} {config.retention_bytes}"


def isolated_lane(topic: str, topic_id: str) -> str:
    """Return the lane of an isolated topic."""
    return f"{isolated_prefix(topic)}{topic_id}"


def _prefix_of(lane: str) -> str:
    """Return the prefix of the names of a lane's segments."""
    return lane[: lane.rindex("/") + 1] if is_isolated(lane) else ""


# --- synced segments ---------------------------------------------------------------------------------
#
# Invariants: a draft passes only if a successful sync covered it, in whatever thread that sync ran.
# Bounds: MAX_SYNCED segments, those of drafts to be published; the least recently used one is evicted first.
#     An evicted segment counts as not durable. MAX_REFUSED errors are kept for drafts that another thread's
#     sync has covered.
# Concurrency: the writer's lock.


MAX_SYNCED = 100_000
MAX_REFUSED = 1_000


class SyncedSegments:
    """The durable size of each segment: the limit of what may be published."""

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}  # segment -> durable end; the least recently used first
        self._refused: dict[str, RefusedTopicError] = {}  # by segment, the oldest first

    def note(self, segment: str, position: int) -> None:
        """Record that the segment is durable up to `position`."""
        self._durable.pop(segment, None)
        self._durable[segment] = position

    def note_refused(self, segment: str, error: RefusedTopicError) -> None:
        """Record why the segment of an isolated topic is not durable beyond what was noted."""
        self._refused[segment] = as_value(error)

    def forget_oldest(self) -> None:
        """Evict down to MAX_SYNCED and MAX_REFUSED."""
        while len(self._durable) > MAX_SYNCED:
            del self._durable[next(iter(self._durable))]
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    def validate(self, draft: DraftExtent, store: Store) -> RefusedTopicError | None:
        """Refuse a draft that is not durable. Return the error if the storage refuses its topic's directory.

        Raises: RetriableError STAGING_EXPIRED, its segment is removed; FatalStorageError.
        """
        durable = self._durable.get(draft.segment, 0)
        if durable:
            self.note(draft.segment, durable)
        if draft.position + draft.size > durable:
            if draft.segment in self._refused:
                return self._refused[draft.segment]
            if not store.exists(draft.segment):
                raise removed_error(draft.segment)
            raise FatalStorageError(
                "WRITER_FAILED",
                f"{draft.segment}@{draft.position}: {draft.size} bytes are not durable, "
                f"only those up to {durable}: a sync of this segment failed",
                fix="Append the rows again; the writer has started a new segment",
            )
        return None


def removed_error(segment: str) -> RetriableError:
    """The error for a segment that was deleted while it was written to."""
    return RetriableError(
        "STAGING_EXPIRED",
        f"{segment}: the file was removed while it was written to, since nothing in it was live",
        fix="Append the rows again, to a new segment; none of these rows are or will be published",
    )


# --- drafts ------------------------------------------------------------------------------------------
#
# Drafts: the locations of just appended batches in their segment.
#
# Not here: what a draft is (metadata/model/extent_list.py).
# Concurrency: pure functions.


class Append(msgspec.Struct, frozen=True):
    """Batches of one partition with offsets from 0, and its topic's settings."""

    topic_id: str
    partition: int
    encoded: EncodedBatches
    config: TopicConfig


def draft_of(
    topic_id: str,
    partition: int,
    segment: str,
    position: int,
    encoded: EncodedBatches,
    extends: DraftExtent | None,
) -> DraftExtent:
    """Return the draft of the batches at `position`, merged with the draft that they continue."""
    first = extends.position if extends else position
    count = encoded.record_count + (extends.record_count if extends else 0)
    newest = max(encoded.max_timestamp_ms, extends.max_timestamp_ms if extends else -1)
    return DraftExtent(
        topic_id=topic_id,
        partition=partition,
        segment=segment,
        position=first,
        size=position + encoded.size_bytes - first,
        record_count=count,
        max_timestamp_ms=newest,
    )


def drafts_of(
    topic_id: str, partitions: Sequence[int], segment: str, position: int, encoded: EncodedPartitions
) -> list[DraftExtent]:
    """Return the drafts of the batches of these partitions, consecutive from `position` on."""
    columns = (
        partitions,
        (encoded.position + position).tolist(),
        encoded.size_bytes.tolist(),
        encoded.record_count.tolist(),
        encoded.max_timestamp_ms.tolist(),
    )
    return [
        DraftExtent(
            topic_id=topic_id,
            partition=partition,
            segment=segment,
            position=start,
            size=size,
            record_count=count,
            max_timestamp_ms=newest,
        )
        for partition, start, size, count, newest in zip(*columns, strict=True)
    ]


def drafts_together(appends: Sequence[Append], segment: str, position: int) -> list[DraftExtent]:
    """Return the drafts of appended batches, consecutive from `position` on."""
    drafts = []
    for appended in appends:
        drafts.append(
            draft_of(appended.topic_id, appended.partition, segment, position, appended.encoded, None)
        )
        position += appended.encoded.size_bytes
    return drafts


# --- growing index -----------------------------------------------------------------------------------
#
# An entry (offset of a batch within its extent, position of the batch) for the first batch that starts in
# each interval of index.interval.bytes.
# Invariants: entries refer to synced bytes only. They are hints: a failed write of an entry is no error, and
#     readers work without it. The file never gets shorter, since readers map it.
# Not here: reading an index (segment_file.py), its format (format/index.py).
# Concurrency: the writer's lock.
# After a crash: the last entry may be torn; readers check the batch of an entry.
# Sources: FORMAT.md#offset-index; Kafka LogSegment.append.


ENTRY_BYTES = 8


class GrowingIndex:
    """The sparse index of a segment that is being written: entries are buffered, and written at each sync."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._file: AppendFile | None = None
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._since_entry_bytes = 0
        self._is_broken = False
        self.size_bytes = 0  # including buffered entries

    def add(self, encoded: EncodedBatches, position: int, *, interval_bytes: int, limit_bytes: int) -> None:
        """Choose entries for batches appended at `position`, while the limit leaves room.

        A loop over batches: there are few in an append, and NumPy's price is per call. One batch takes 1 us
        where NumPy took 18, 64 take 10 (a broker appends eight times for each group commit).
        """
        if self._is_broken:
            return
        interval = max(1, interval_bytes)
        before, stretch = self._since_entry_bytes, 0
        columns = (encoded.size.tolist(), encoded.base_offset.tolist(), encoded.position.tolist())
        for size, offset, start in zip(*columns, strict=True):
            if before // interval > stretch:
                stretch = before // interval
                if self.size_bytes + ENTRY_BYTES <= limit_bytes:
                    self._offsets.append(offset)
                    self._positions.append(position + start)
                    self.size_bytes += ENTRY_BYTES
            before += size
        self._since_entry_bytes = before - stretch * interval

    def write(self) -> None:
        """Append the buffered entries to the index's file."""
        if not self._offsets:
            return
        try:
            if self._file is None:
                self._file = self._store.append_file(self._name, mapped=True)
            self._file.write(self._taken())
        except StorageError:
            self._is_broken = True  # it may end in a torn entry: append nothing after it
            self._taken()

    def put(self) -> None:
        """Write all entries as one object, where files do not grow."""
        if self._offsets:
            with contextlib.suppress(StorageError):
                self._store.put_hint(self._name, self._taken())

    def close(self) -> None:
        """Close the file; entries buffered since the last `write` are dropped."""
        if self._file is not None:
            with contextlib.suppress(StorageError, OSError):
                self._file.close()

    def _taken(self) -> bytes:
        entries = encode_offset_entries(
            np.array(self._offsets, np.int64), np.array(self._positions, np.int64)
        )
        self._offsets, self._positions = [], []
        return entries


# --- open segment ------------------------------------------------------------------------------------
#
# Invariants: batches refer to nothing before the segment's last sync. A segment grows for half of MAX_AGE_MS
#     at most, whatever segment.ms is: a sweep leaves written, unpublished data a week (adr/0019), half of
#     which is for the last draft.
# Concurrency: the writer's lock.


MAX_AGE_MS = 302_400_000  # half a week


@dataclasses.dataclass(slots=True, kw_only=True)
class OpenSegment:
    """A segment that a process appends to, and the strictest limits of its topics."""

    name: str
    lane: str
    file: AppendFile
    index: GrowingIndex
    created_ms: int
    synced_ms: int
    limit_bytes: int
    limit_ms: int
    limit_index_bytes: int
    unsynced_records: int = 0
    synced_position: int = 0

    def has_room(self, size_bytes: int, batches: int, config: TopicConfig, now_ms: int) -> bool:
        """True if this many bytes and batches more keep within the segment's and the topic's limits."""
        size = self.file.position + size_bytes
        index_bytes = self.index.size_bytes + ENTRY_BYTES * batches
        return (
            size <= min(self.limit_bytes, config.segment_bytes)
            and index_bytes <= min(self.limit_index_bytes, config.segment_index_bytes)
            and now_ms - self.created_ms <= min(self.limit_ms, config.segment_ms, MAX_AGE_MS)
        )

    def narrow(self, config: TopicConfig) -> None:
        """Add a topic's limits."""
        self.limit_bytes = min(self.limit_bytes, config.segment_bytes)
        self.limit_index_bytes = min(self.limit_index_bytes, config.segment_index_bytes)
        self.limit_ms = min(self.limit_ms, config.segment_ms)

    @property
    def is_removed(self) -> bool:
        """True if its file was removed while no data in it waited for a sync, so that nothing is lost."""
        return self.file.position == self.synced_position and self.file.is_removed

    def is_end(self, draft: DraftExtent) -> bool:
        """True if an append now would continue this draft."""
        return self.name == draft.segment and self.file.position == draft.position + draft.size

    def close_quietly(self) -> None:
        """Close files that need no sync: synced, failed, or the parent's."""
        with contextlib.suppress(StorageError, OSError):
            self.file.close()
        self.index.close()


# --- writer ------------------------------------------------------------------------------------------


class LogWriter:
    """Appends encoded batches of any topics to this process's segments."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        segment_bytes: int = INT_MAX,
        segment_ms: int | None = None,
        writer_id: str | None = None,
        seen: Callable[[], tuple[int, int]] | None = None,
        is_retired: Callable[[str], bool] = lambda _segment: False,
    ) -> None:
        """`seen`: the newest commit, for the names of segments, and the sweep horizon; None: unknown.
        `is_retired`: true if data in a segment can no longer be published, as of that commit.
        """
        self._seen = seen
        self._is_retired = is_retired
        self._store = store
        self._ends_with_sync = not store.traits.appends_after_sync
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._segment_ms = segment_ms
        self._start(writer_id or uuid.uuid4().hex)
        notify_after_fork(self)

    def _start(self, writer_id: str) -> None:
        self.writer_id = writer_id
        self._lock = threading.RLock()
        self._number = 0
        self._active: dict[str, OpenSegment] = {}  # by lane
        self._rolled: list[OpenSegment] = []  # full, but not all synced
        self._sync_error: StorageError | RetriableError | None = None  # for the end of the next sync
        self._synced = SyncedSegments()
        self._pid = os.getpid()

    def after_fork_in_child(self) -> None:
        """Drop the parent's segments; the child appends to its own."""
        inherited = [*self._rolled, *self._active.values()]
        self._start(uuid.uuid4().hex)
        for segment in inherited:
            segment.close_quietly()  # the child's copies of the descriptors only

    def append(
        self,
        topic_id: str,
        partition: int,
        encoded: EncodedBatches,
        config: TopicConfig,
        *,
        extends: DraftExtent | None = None,
        lane: str = SHARED,
    ) -> DraftExtent | None:
        """Write batches, not yet durable; return their location.

        Args:
            topic_id, partition: the partition of the extent.
            encoded: batches with offsets from 0, or from `extends.record_count`.
            config: the topic's settings: rolling, index interval, flushing.
            extends: a draft of the same partition that this append continues. The returned draft covers both,
                and replaces it.
            lane: batches of different lanes never share a segment (lane_of).

        Returns: the draft; None if `extends` was given and is no longer the end of the active segment: then
            nothing was written, and the batches must be encoded again, with offsets from 0.

        Raises:
            InvalidRequestError: no batches, or too many bytes; nothing was written.
            StorageError: the bytes that may have been written are unused; the next append starts a new
                segment. Drafts returned before stay valid.
        """
        if not len(encoded.size):
            raise InvalidRequestError(
                "INVALID_ROWS",
                "found no batches to append, expected at least one",
                fix="Append rows, or do not append",
            )
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane, [topic_id])
            segment = self._segment_for(encoded.size_bytes, config, lane)
            if extends is not None and (segment is None or not segment.is_end(extends)):
                return None
            if segment is None:
                segment = self._create(config, lane)
            position = self._write(segment, [encoded], [config])
            draft = draft_of(topic_id, partition, segment.name, position, encoded, extends)
            self._flush_if_due(segment, config)
            return draft

    def append_partitions(
        self,
        topic_id: str,
        partitions: Sequence[int],
        encoded: EncodedPartitions,
        config: TopicConfig,
        *,
        lane: str = SHARED,
    ) -> list[DraftExtent]:
        """As `append`, for several partitions of a topic, in one write if they fit into a segment.

        Args:
            partitions: of the extents, in the order of `encoded`.

        Raises: as `append`.
        """
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane, [topic_id])
            if not self._has_room(encoded.batches.size_bytes, encoded.batches.batch_count, config, lane):
                # Some of them begin another segment: `append` rolls it.
                parts = zip(partitions, encoded.split(), strict=True)
                drafts = [
                    self.append(topic_id, partition, batches, config, lane=lane)
                    for partition, batches in parts
                ]
                return [draft for draft in drafts if draft is not None]
            segment = self._segment_for(encoded.batches.size_bytes, config, lane) or self._create(
                config, lane
            )
            position = self._write(segment, [encoded.batches], [config])
            self._flush_if_due(segment, config)
            return drafts_of(topic_id, partitions, segment.name, position, encoded)

    def append_together(self, appends: Sequence[Append], *, lane: str = SHARED) -> list[DraftExtent]:
        """As `append`, for several partitions of any topics, in one write if a segment has room.

        Raises: as `append`; then none of them has a draft.
        """
        configs = list({id(appended.config): appended.config for appended in appends}.values())
        size, batches = (sum(column) for column in zip(*map(_room_of, appends), strict=True))
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane, (appended.topic_id for appended in appends))
            if not all(self._has_room(size, batches, config, lane) for config in configs):
                drafts = [
                    self.append(
                        appended.topic_id, appended.partition, appended.encoded, appended.config, lane=lane
                    )
                    for appended in appends
                ]
                return [draft for draft in drafts if draft is not None]
            segment = self._segment_for(size, configs[0], lane) or self._create(configs[0], lane)
            for config in configs[1:]:
                segment.narrow(config)
            position = self._write(
                segment, [appended.encoded for appended in appends], [appended.config for appended in appends]
            )
            for config in configs:
                self._flush_if_due(segment, config)
            return drafts_together(appends, segment.name, position)

    def sync(self, drafts: Sequence[DraftExtent] = ()) -> None:
        """Make everything appended so far durable: data, file names and directories.

        Args:
            drafts: to be published; checked to be durable, so that another thread's failed sync cannot go
                unnoticed.

        Raises:
            StorageError: durability is unknown. Do not publish; append again, to a new segment.
            RefusedTopicError: the storage refuses the directory of the topic of one of the drafts.
            RetriableError: STAGING_EXPIRED, the file was removed: append again.
        """
        for refused in self.sync_each(drafts):
            if refused is not None:
                raise copy.copy(refused)  # one that is kept would have the frames of each caller

    def sync_each(self, drafts: Sequence[DraftExtent]) -> list[RefusedTopicError | None]:
        """As `sync`, but return a RefusedTopicError for each draft to which it applies, None for the durable
        ones.
        """
        with self._lock:
            for segment in [*self._rolled, *self._active.values()]:
                self._try_sync(segment)
            self._rolled.clear()
            first_error, self._sync_error = self._sync_error, None
            if first_error is not None:
                raise first_error
            found = [self._synced.validate(draft, self._store) for draft in drafts]
            self._synced.forget_oldest()  # not before: the drafts may be in more segments than MAX_SYNCED
            return found

    def close(self) -> None:
        """Sync and close. The writer may be used again: it starts a new segment then."""
        with self._lock:
            try:
                self.sync()
            finally:
                for segment in self._active.values():
                    segment.close_quietly()
                self._active.clear()

    def is_end(self, draft: DraftExtent) -> bool:
        """True if an append now would continue this draft; other threads may change that."""
        with self._lock:
            return any(segment.is_end(draft) for segment in self._active.values())

    def lane_of(self, topic: str, topic_id: str, config: TopicConfig) -> str:
        """Return the lane of a topic's batches."""
        return lane_of(topic, topic_id, config, self._store.traits)

    def _open_lane(self, lane: str, appended: Iterable[str]) -> str:
        """Return the lane to use for batches of these topic ids: an isolated one is never shared."""
        if is_isolated(lane):
            assert all(lane.endswith(f"/{topic_id}") for topic_id in appended), f"{lane}: another topic's"
            return lane
        if lane in self._active or len(self._active) < MAX_LANES:
            return lane
        return lane if sum(not is_isolated(known) for known in self._active) < MAX_LANES else SHARED

    def _segment_for(self, size_bytes: int, config: TopicConfig, lane: str) -> OpenSegment | None:
        """Return the active segment, rolled if it has no room for the bytes; None if there is none."""
        if size_bytes > INT_MAX:
            raise InvalidRequestError(
                "APPEND_TOO_LARGE",
                f"found {size_bytes} bytes in one append, expected at most {INT_MAX}",
                fix="Append smaller batches",
            )
        segment = self._active.get(lane)
        if segment is None:
            return None
        now_ms = self._clock.now_ms()
        if self._is_over(segment) or not segment.has_room(size_bytes, 1, config, now_ms):
            self._retire(segment)
            return None
        segment.narrow(config)
        if is_isolated(lane):
            self._active[lane] = self._active.pop(lane)  # the most recently used one
        return segment

    def _is_over(self, segment: OpenSegment) -> bool:
        """True if the segment must not be used any more: its version is before the sweep horizon, so that
        its extents may be gone, or it was retired or swept.
        """
        is_too_old = self._seen is not None and born_of(segment.name) < self._seen()[1]
        return is_too_old or segment.is_removed or self._is_retired(segment.name)

    def _has_room(self, size_bytes: int, batches: int, config: TopicConfig, lane: str) -> bool:
        """True if the batches fit into the active segment, or into a new one.

        False if one of them would roll it: the layout must be as with separate appends.
        """
        segment = self._active.get(lane)
        if segment is not None:
            now_ms = self._clock.now_ms()
            return not self._is_over(segment) and segment.has_room(size_bytes, batches, config, now_ms)
        return (
            size_bytes <= min(config.segment_bytes, self._segment_bytes)
            and ENTRY_BYTES * batches <= config.segment_index_bytes
        )

    def _write(
        self, segment: OpenSegment, encoded: Sequence[EncodedBatches], configs: Sequence[TopicConfig]
    ) -> int:
        """Write batches, and choose their index entries; return the position of the first."""
        position = start = segment.file.position
        try:
            with naming_refused_topic(segment.name):
                segment.file.write(*[chunk for batches in encoded for chunk in batches.data])
        except BaseException:
            # Bytes may be torn (or an interrupt may have stopped the write): never append after them.
            self._retire(segment)
            raise
        failpoint("segment.written")
        for batches, config in zip(encoded, configs, strict=True):
            segment.index.add(
                batches,
                position,
                interval_bytes=config.index_interval_bytes,
                limit_bytes=segment.limit_index_bytes,
            )
            segment.unsynced_records += batches.record_count
            position += batches.size_bytes
        return start

    def _create(self, config: TopicConfig, lane: str) -> OpenSegment:
        if is_isolated(lane):
            self._bound_isolated()
        with naming_refused_topic(lane):
            name, file = self._create_file(_prefix_of(lane))
        now_ms = self._clock.now_ms()
        limit_ms = config.segment_ms if self._segment_ms is None else min(config.segment_ms, self._segment_ms)
        self._active[lane] = segment = OpenSegment(
            name=name,
            lane=lane,
            file=file,
            created_ms=now_ms,
            synced_ms=now_ms,
            limit_bytes=min(config.segment_bytes, self._segment_bytes),
            limit_ms=limit_ms,
            limit_index_bytes=config.segment_index_bytes,
            index=GrowingIndex(self._store, index_name(name)),
        )
        return segment

    def _bound_isolated(self) -> None:
        """Make room for one more segment of an isolated topic: sync and close the least recently used ones.

        The sync comes no earlier than it must: before these batches are published. If it fails, the next
        `sync` raises the error, and none of them is published.
        """
        limit = MAX_LANES if self._ends_with_sync else MAX_ISOLATED
        isolated = [segment for lane, segment in self._active.items() if is_isolated(lane)]
        for segment in isolated[: max(0, len(isolated) + 1 - limit)]:
            self._retire(segment)
            self._try_sync(segment)
            self._rolled = [rolled for rolled in self._rolled if rolled is not segment]

    def _create_file(self, prefix: str) -> tuple[str, AppendFile]:
        try:
            name = self._next_name(prefix)
            return name, self._store.append_file(name)
        except AlreadyExistsError:
            self._rename()
            name = self._next_name(prefix)
            return name, self._store.append_file(name)

    def _next_name(self, prefix: str) -> str:
        if self._number > MAX_NUMBER:
            self._rename()
        born = None if self._seen is None else self._seen()[0]
        name = segment_name(self.writer_id, self._number, born, prefix=prefix)
        self._number += 1  # also if creating fails: a name is tried only once
        return name

    def _rename(self) -> None:
        """Begin anew: another process has our writer id, and will use the next names; or none are left."""
        self.writer_id, self._number = uuid.uuid4().hex, 0

    def _retire(self, segment: OpenSegment) -> None:
        """Stop appending to an active segment; the next sync covers it."""
        self._leave(segment)
        self._rolled.append(segment)

    def _leave(self, segment: OpenSegment) -> None:
        if self._active.get(segment.lane) is segment:
            del self._active[segment.lane]

    def _drop(self, segment: OpenSegment) -> None:
        """Stop appending to a segment, and syncing it."""
        self._leave(segment)
        self._rolled = [rolled for rolled in self._rolled if rolled is not segment]
        segment.close_quietly()

    def _flush_if_due(self, segment: OpenSegment, config: TopicConfig) -> None:
        """flush.messages and flush.ms spread the disk's work; publishing syncs in any case."""
        if self._ends_with_sync:
            return
        age_ms = self._clock.now_ms() - segment.synced_ms
        if segment.unsynced_records >= config.flush_messages or age_ms >= config.flush_ms:
            self.sync()

    def _try_sync(self, segment: OpenSegment) -> None:
        """Sync a segment; the first error is kept for the end of `sync`. One of a topic: for its drafts."""
        try:
            self._sync_segment(segment)
        except (StorageError, RetriableError) as error:
            refused = refused_topic(segment.name, error)
            if refused is not None:
                self._synced.note_refused(segment.name, refused)
            else:
                self._sync_error = self._sync_error or error
            if isinstance(error, AlreadyExistsError):
                self._rename()
            self._drop(segment)
        except BaseException:
            if self._ends_with_sync:  # the file takes no more
                self._drop(segment)
            raise

    def _sync_segment(self, segment: OpenSegment) -> None:
        if segment.file.position > segment.synced_position:
            position = segment.file.position
            segment.file.sync()
            failpoint("segment.synced")
            if segment.file.is_removed:
                raise removed_error(segment.name)
            segment.synced_position = position
            segment.synced_ms = self._clock.now_ms()
            segment.unsynced_records = 0
            self._synced.note(segment.name, position)
            if not self._ends_with_sync:
                segment.index.write()
        if self._ends_with_sync:
            if segment.file.position >= INDEXED_BYTES:
                segment.index.put()
            self._leave(segment)
        elif is_isolated(segment.lane) and segment.is_removed:
            self._leave(segment)  # its topic was deleted: no append would find out, and it keeps its space
        if self._active.get(segment.lane) is not segment:
            segment.close_quietly()


def _room_of(appended: Append) -> tuple[int, int]:
    return appended.encoded.size_bytes, appended.encoded.batch_count
