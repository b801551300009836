"""The segments of one process: batches are appended, made durable, and only then may be published.

Invariants:
    1. A segment file is created exclusively and written by one process only. After a fork the child
       forgets the parent's segments and starts under a writer id of its own. So does a clone of the
       process (a machine's image that was resumed twice) once it finds one of its names taken.
    2. A draft may be published only after `sync(drafts)` returned: its bytes, its file's name and its
       directory are then durable.
    3. After a failed write or sync nothing is ever added to that segment again: torn bytes are always
       its last, and no extent refers to them.
Stores whose files end with their sync (object stores): each sync ends the segment, and the next append begins
    another. flush.messages and flush.ms would only make objects small, and are not followed. The index is
    one more object, and worth its request only beside a segment of INDEXED_BYTES or more.
Rolling: before an append that would exceed segment.bytes, segment.ms or segment.index.bytes of any
    topic in the segment (the strictest counts; open_segment.py), or that goes to a segment born before the
    sweep horizon, or one whose file was removed. One append is never split over two segments.
Removed files: once all extents of a segment were merged away or have expired, it may be swept while it is
    open here. What is appended and not published then is gone with it: `sync` says so (STAGING_EXPIRED),
    where it can be seen, else who publishes. The next append begins another segment.
Not here: the index beside a segment (growing_index.py), encoding (format), offsets and visibility
    (metadata), grouping rows (client/appender.py).
Concurrency: thread-safe by one lock.
After a crash: a new process means a new writer id; bytes without an extent are swept later.
Sources: docs/design.md; Kafka LogSegment.append, UnifiedLog.maybeRoll.
"""

import os
import threading
import uuid
from collections.abc import Callable, Sequence

from sparklog.clock import Clock
from sparklog.errors import AlreadyExistsError, InvalidRequestError, RetriableError, StorageError
from sparklog.failpoints import failpoint
from sparklog.forking import tell_after_fork
from sparklog.format.encode import EncodedBatches
from sparklog.format.encode_partitions import EncodedPartitions
from sparklog.log.config import INT_MAX, TopicConfig
from sparklog.log.drafts import Append, draft_of, drafts_of, drafts_together
from sparklog.log.growing_index import ENTRY_BYTES, GrowingIndex
from sparklog.log.lanes import MAX_LANES, SHARED, lane_of
from sparklog.log.names import INDEXED_BYTES, index_name, segment_name
from sparklog.log.open_segment import OpenSegment
from sparklog.log.synced_segments import SyncedSegments, removed_error
from sparklog.metadata import DraftExtent, born_of
from sparklog.storage import AppendFile, Store


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
        """`seen`: the birth of a new segment, and the sweep horizon; None: segments are born before all.
        `is_retired`: True if nothing can be published in a segment any more, as of that commit.
        """
        self._seen = seen
        self._is_retired = is_retired
        self._store = store
        self._ends_with_sync = not store.traits.appends_after_sync
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._segment_ms = segment_ms
        self._start(writer_id or uuid.uuid4().hex)
        tell_after_fork(self)

    def _start(self, writer_id: str) -> None:
        self.writer_id = writer_id
        self._lock = threading.RLock()
        self._number = 0
        self._active: dict[str, OpenSegment] = {}  # by lane
        self._rolled: list[OpenSegment] = []  # full, but not all synced
        self._synced = SyncedSegments()
        self._pid = os.getpid()

    def after_fork_in_child(self) -> None:
        """Forget the parent's segments; what the child appends goes to segments of its own."""
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
        """Write batches, not yet durable, and say where they are.

        Args:
            topic_id, partition: whom the extent will belong to.
            encoded: batches that count their offsets from 0, or from `extends.record_count`.
            config: the topic's settings: rolling, index interval, flushing.
            extends: a draft of the same partition that this append should continue. The draft returned
                then covers both, and replaces it.
            lane: batches of different lanes never share a segment (lane_of).

        Returns: the draft; None if `extends` was given and is no longer the end of the active segment
            (nothing was written then: encode again, counting from 0).

        Raises:
            InvalidRequestError: no batches, or too many bytes; nothing was written.
            StorageError: nothing refers to what may have been written; the next append starts a new
                segment. Drafts returned before stay good.
        """
        if not len(encoded.size):
            raise InvalidRequestError(
                "INVALID_ROWS",
                "found no batches to append, expected at least one",
                fix="append rows, or do not append",
            )
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane)
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
        """As `append` for each of several partitions of a topic, in one write where they fit into a segment.

        Args:
            partitions: whom the extents will belong to, in the order of `encoded`.

        Raises: as `append`.
        """
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane)
            if not self._has_room(encoded.batches.size_bytes, encoded.batches.batch_count, config, lane):
                # Some of them begin another segment: `append` finds out which.
                parts = zip(partitions, encoded.split(), strict=True)
                drafts = [
                    self.append(topic_id, partition, one, config, lane=lane) for partition, one in parts
                ]
                return [draft for draft in drafts if draft is not None]
            segment = self._segment_for(encoded.batches.size_bytes, config, lane) or self._create(
                config, lane
            )
            position = self._write(segment, [encoded.batches], [config])
            self._flush_if_due(segment, config)
            return drafts_of(topic_id, partitions, segment.name, position, encoded)

    def append_together(self, appends: Sequence[Append], *, lane: str = SHARED) -> list[DraftExtent]:
        """As `append` for each of several partitions, of any topics, in one write where a segment has room.

        Raises: as `append`. Then there is no draft of any of them.
        """
        configs = list({id(one.config): one.config for one in appends}.values())
        size, batches = (sum(column) for column in zip(*map(_room_of, appends), strict=True))
        with self._lock:
            assert self._pid == os.getpid(), "after_fork_in_child did not run"
            lane = self._open_lane(lane)
            if not all(self._has_room(size, batches, config, lane) for config in configs):
                drafts = [
                    self.append(one.topic_id, one.partition, one.encoded, one.config, lane=lane)
                    for one in appends
                ]
                return [draft for draft in drafts if draft is not None]
            segment = self._segment_for(size, configs[0], lane) or self._create(configs[0], lane)
            for config in configs[1:]:
                segment.narrow(config)
            position = self._write(segment, [one.encoded for one in appends], [one.config for one in appends])
            for config in configs:
                self._flush_if_due(segment, config)
            return drafts_together(appends, segment.name, position)

    def sync(self, drafts: Sequence[DraftExtent] = ()) -> None:
        """Make everything appended so far durable: data, file names and directories.

        Args:
            drafts: what is about to be published; checked to be durable, so that another thread's failed
                sync cannot go unnoticed.

        Raises:
            StorageError: durability is unknown. Do not publish; append again, to a new segment.
            RetriableError: STAGING_EXPIRED, the file was removed: the same.
        """
        with self._lock:
            first_error: BaseException | None = None
            for segment in [*self._rolled, *self._active.values()]:
                try:
                    self._sync_segment(segment)
                except (StorageError, RetriableError) as error:
                    first_error = first_error or error
                    if isinstance(error, AlreadyExistsError):
                        self._rename()
                    self._drop(segment)
                except BaseException:
                    if self._ends_with_sync:  # it takes no other
                        self._drop(segment)
                    raise
            self._rolled.clear()
            if first_error is not None:
                raise first_error
            for draft in drafts:
                self._synced.validate(draft, self._store)
            self._synced.forget_oldest()  # not before: the drafts may lie in more than are remembered

    def close(self) -> None:
        """Make durable and close. The writer may be used again: it starts a new segment then."""
        with self._lock:
            try:
                self.sync()
            finally:
                for segment in self._active.values():
                    segment.close_quietly()
                self._active.clear()

    def is_end(self, draft: DraftExtent) -> bool:
        """Would an append now continue this draft? (Another thread's append, or rolling, may change it.)"""
        with self._lock:
            return any(segment.is_end(draft) for segment in self._active.values())

    def lane_of(self, topic: str, config: TopicConfig) -> str:
        """Which of its segments a topic's batches belong to (lanes.py)."""
        return lane_of(topic, config, self._store.traits)

    def _open_lane(self, lane: str) -> str:
        return lane if lane in self._active or len(self._active) < MAX_LANES else SHARED

    def _segment_for(self, size_bytes: int, config: TopicConfig, lane: str) -> OpenSegment | None:
        """The active segment if it can take so many bytes, after rolling it if it cannot."""
        if size_bytes > INT_MAX:
            raise InvalidRequestError(
                "APPEND_TOO_LARGE",
                f"found {size_bytes} bytes in one append, expected at most {INT_MAX}",
                fix="append in smaller pieces",
            )
        segment = self._active.get(lane)
        if segment is None:
            return None
        now_ms = self._clock.now_ms()
        if self._is_over(segment) or not segment.has_room(size_bytes, 1, config, now_ms):
            self._retire(segment)
            return None
        segment.narrow(config)
        return segment

    def _is_over(self, segment: OpenSegment) -> bool:
        """Was it born before the sweep horizon? If its extents are gone, none can be published any more.
        Or was it retired, or swept already?
        """
        is_too_old = self._seen is not None and born_of(segment.name) < self._seen()[1]
        return is_too_old or segment.is_removed or self._is_retired(segment.name)

    def _has_room(self, size_bytes: int, batches: int, config: TopicConfig, lane: str) -> bool:
        """Do so many batches fit into the active segment, or into one that is still to be made?

        Only if none of them would roll it: so they lie as if each had been appended by itself.
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
        """Write batches, and choose their entries of the index; returns where they begin."""
        position = start = segment.file.position
        try:
            segment.file.write(*[chunk for one in encoded for chunk in one.data])
        except BaseException:
            # Bytes may be torn (or an interrupt may have cut the write): never append after them.
            self._retire(segment)
            raise
        failpoint("segment.written")
        for one, config in zip(encoded, configs, strict=True):
            segment.index.add(
                one,
                position,
                interval_bytes=config.index_interval_bytes,
                limit_bytes=segment.limit_index_bytes,
            )
            segment.unsynced_records += one.record_count
            position += one.size_bytes
        return start

    def _create(self, config: TopicConfig, lane: str) -> OpenSegment:
        name, file = self._create_file()
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

    def _create_file(self) -> tuple[str, AppendFile]:
        try:
            name = self._next_name()
            return name, self._store.append_file(name)
        except AlreadyExistsError:
            self._rename()
            name = self._next_name()
            return name, self._store.append_file(name)

    def _next_name(self) -> str:
        born = None if self._seen is None else self._seen()[0]
        name = segment_name(self.writer_id, self._number, born)
        self._number += 1  # also when creating fails: a name is tried once
        return name

    def _rename(self) -> None:
        """Somebody else has our id, and will use the names that follow, too."""
        self.writer_id, self._number = uuid.uuid4().hex, 0

    def _retire(self, segment: OpenSegment) -> None:
        """Stop appending to an active segment; what it holds is synced with the next sync."""
        self._leave(segment)
        self._rolled.append(segment)

    def _leave(self, segment: OpenSegment) -> None:
        if self._active.get(segment.lane) is segment:
            del self._active[segment.lane]

    def _drop(self, segment: OpenSegment) -> None:
        """Nothing is appended to it any more, nor synced."""
        self._leave(segment)
        self._rolled = [one for one in self._rolled if one is not segment]
        segment.close_quietly()

    def _flush_if_due(self, segment: OpenSegment, config: TopicConfig) -> None:
        """flush.messages and flush.ms: spread the disk's work; publishing syncs in any case."""
        if self._ends_with_sync:
            return
        age_ms = self._clock.now_ms() - segment.synced_ms
        if segment.unsynced_records >= config.flush_messages or age_ms >= config.flush_ms:
            self.sync()

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
        if self._active.get(segment.lane) is not segment:
            segment.close_quietly()


def _room_of(one: Append) -> tuple[int, int]:
    return one.encoded.size_bytes, one.encoded.batch_count
