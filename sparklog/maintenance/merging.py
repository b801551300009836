"""Merging: replaces the extents of a work by as few as possible.

Small pieces share a new segment, sorted by partition, in a writer's layout; the others get their own
segments, in Kafka's layout. Pieces of an isolated topic share segments with each other only, in its
directory.
Invariants: the result may be published: the bytes are durable, and have the records of the replaced extents,
    offset for offset.
Not here: which extents (choose.py), rewriting of batches (rewrite.py), the loop (work_loop.py).
Concurrency: works may run concurrently, in any process.
After a crash: unreferenced files are left; nothing is lost, and the work is chosen again.
"""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Self

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.format.encode import EncodedBatches, join_batches, parts_within
from sparklog.format.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    choose_entries,
    encode_offset_entries,
    encode_time_entries,
)
from sparklog.log.config import INT_MAX
from sparklog.log.refused_topic import naming_refused_topic
from sparklog.log.segment_file import (
    UnreadableSegmentError,
    index_name,
    merged_segment_name,
    time_index_name,
)
from sparklog.log.writer import SHARED, LogWriter, isolated_lane
from sparklog.maintenance.budget import NO_LIMIT, Meter
from sparklog.maintenance.choose import (
    MergeLimits,
    MergeWork,
    PartitionKey,
    Piece,
    choose_merges,
    named_topics,
)
from sparklog.maintenance.rewrite import (
    STEP_BYTES,
    OnBytes,
    Source,
    Spool,
    ignore_bytes,
    in_turns,
    rewritten,
)
from sparklog.maintenance.work_loop import (
    Job,
    OnProgress,
    Outcome,
    RewriteReport,
    RunWorks,
    WorkLoop,
    ignore_progress,
    publish_replacements,
    run_each,
)
from sparklog.metadata import (
    NO_HORIZON,
    DraftExtent,
    Extent,
    Image,
    MetadataLog,
    ReplaceExtents,
    is_isolated,
    new_id,
    replacement,
    sequenced,
)
from sparklog.storage import AppendFile, Store

# --- merged segment ----------------------------------------------------------------------------------
#
# A merged segment: one partition, absolute offsets, Kafka's layout, with its .index and .timeindex.
#
#     <topic>-<p>/<20 digits of the first offset>-<born>-<id>.log      isolated: in isolated/<topic>/
#
# Invariants: the segment is durable, with its name, before `finish` returns its extent; the indexes are
#     hints, and are complete or absent. A batch is never split over two segments.
# Limits: segment.bytes and segment.index.bytes of the topic; relative offsets and positions below 2^31.
# Not here: its batches (rewrite.py).
# Concurrency: one thread.
# After a crash: an unreferenced file.
# Sources: FORMAT.md#offset-index, FORMAT.md#time-index; Kafka LogSegment.


_NO_ENTRIES = np.zeros(0, np.int64)


class MergedSegment:
    """One segment that is being written."""

    def __init__(self, store: Store, piece: Piece, base_offset: int) -> None:
        self._store, self._piece = store, piece
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.name = merged_segment_name(
            piece.topic,
            piece.partition,
            base_offset,
            piece.born,
            new_id(),
            isolated=piece.config.segment_isolation,
        )
        with naming_refused_topic(self.name):
            self._file: AppendFile = store.append_file(self.name)
        self._max_timestamp_ms = -1
        self._columns: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]] = []
        self._entries = 0

    @property
    def size(self) -> int:
        """Return the bytes so far."""
        return self._file.position

    def has_room(self, batches: EncodedBatches) -> bool:
        """True if the segment stays within its limits with these batches."""
        config = self._piece.config
        size = self.size + batches.size_bytes
        entries = self._entries + len(batches.size)
        index_bytes = (1 + size // max(1, config.index_interval_bytes)) * max(
            OFFSET_ENTRY.size, TIME_ENTRY.size
        )
        index_bytes = min(index_bytes, entries * TIME_ENTRY.size)
        last = int(batches.base_offset[-1]) + int(batches.batch_record_count[-1])
        return (
            size <= min(config.segment_bytes, INT_MAX)
            and index_bytes <= config.segment_index_bytes
            and last - self.base_offset <= INT_MAX
        )

    def write(self, batches: EncodedBatches) -> None:
        """Append batches with absolute offsets."""
        with naming_refused_topic(self.name):
            position = self._file.write(*batches.data)
        failpoint("merge.written")
        last = batches.base_offset + batches.batch_record_count - 1
        self._columns.append(
            (batches.position + position, batches.size, last, batches.batch_max_timestamp_ms)
        )
        self._entries += len(batches.size)
        self._max_timestamp_ms = max(self._max_timestamp_ms, batches.max_timestamp_ms)
        self.next_offset = int(last[-1]) + 1

    def finish(self) -> Extent:
        """Sync the segment, write its indexes, and close it; return the extent of all its batches."""
        size = self.size
        with naming_refused_topic(self.name):
            self._file.sync()
        failpoint("merge.synced")
        self._file.close()
        self._write_indexes()
        return Extent(
            topic_id=self._piece.topic_id,
            partition=self._piece.partition,
            segment=self.name,
            position=0,
            size=size,
            base_offset=self.base_offset,
            record_count=self.next_offset - self.base_offset,
            max_timestamp_ms=self._max_timestamp_ms,
            offset_delta=0,
        )

    def close(self) -> None:
        """Abandon the segment; vacuum removes the file later."""
        with contextlib.suppress(StorageError, OSError):
            self._file.close()

    def _write_indexes(self) -> None:
        position, size, last_offset, newest = map(np.concatenate, zip(*self._columns, strict=True))
        chosen = choose_entries(position, size, self._piece.config.index_interval_bytes)
        # As in Kafka: no entry for the segment's first batch, and the last offset of the others.
        offsets = encode_offset_entries(last_offset[chosen[1:]] - self.base_offset, position[chosen[1:]])
        times = _time_entries(newest, last_offset - self.base_offset, chosen)
        with contextlib.suppress(StorageError):
            self._store.put_hint(index_name(self.name), offsets)
            self._store.put_hint(time_index_name(self.name), times)
        failpoint("merge.indexed")


def _time_entries(newest: np.ndarray, last: np.ndarray, chosen: np.ndarray) -> bytes:
    """Return an entry for each index interval with a new largest timestamp: the batch that has it.

    Args:
        newest: largest timestamp of each batch.
        last: relative offset of each batch's last record.
        chosen: batches with which intervals begin.

    An entry names a batch that has its timestamp, so that a reader can check it against the batch's header.
    """
    largest = np.maximum.accumulate(newest)
    rises = np.flatnonzero(np.diff(largest, prepend=-1) > 0)
    if not len(rises):
        return b""
    interval = np.searchsorted(chosen, rises, side="right")
    is_last = np.append(interval[1:] != interval[:-1], True)
    at = rises[is_last]
    return encode_time_entries(largest[at], last[at])


class MergedSegments:
    """The segments for a piece's batches; created on the first write."""

    def __init__(self, store: Store, piece: Piece) -> None:
        self._store, self._piece = store, piece
        self._segment: MergedSegment | None = None
        self._added: list[Extent] = []

    def write(self, batches: EncodedBatches) -> None:
        """Append batches, to a new segment if the last one has no room."""
        for part in parts_within(batches, INT_MAX):
            if self._segment is not None and not self._segment.has_room(part):
                self._finish_segment(self._segment)
            if self._segment is None:
                self._segment = MergedSegment(self._store, self._piece, int(part.base_offset[0]))
            self._segment.write(part)

    def finish(self) -> list[Extent]:
        """Sync the segments; return their extents."""
        if self._segment is not None:
            self._finish_segment(self._segment)
        return self._added

    def _finish_segment(self, segment: MergedSegment) -> None:
        self._added.append(segment.finish())
        self._segment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._segment is not None:
            self._segment.close()


# --- merging a work ----------------------------------------------------------------------------------


def run_merge(
    store: Store,
    clock: Clock,
    work: MergeWork,
    on_bytes: OnBytes = ignore_bytes,
    *,
    spool: Spool | None = None,
) -> list[ReplaceExtents]:
    """Run a work; return one replacement for each of its pieces.

    Args:
        on_bytes: called with stored bytes that were rewritten.
        spool: the bytes that were fetched for it in advance.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged, or newer; publish
            nothing of the work. UnreadableSegmentError: a segment is unreadable; the same.
        RefusedTopicError: the storage refuses the directory of a topic; the same.
        StorageError, FatalStorageError: it could not be written.
    """
    with Source(store, work.pieces, spool) as source:
        if work.pieces[0].is_shared:
            return _merge_shared(store, clock, source, work, on_bytes)
        return [_merge_apart(store, source, piece, on_bytes) for piece in work.pieces]


def _merge_shared(
    store: Store, clock: Clock, source: Source, work: MergeWork, on_bytes: OnBytes
) -> list[ReplaceExtents]:
    writer = LogWriter(store, clock, seen=lambda: (work.pieces[0].born, NO_HORIZON))
    with contextlib.closing(writer):
        drafts = []
        for piece in work.pieces:
            drafts.append(_append_piece(writer, source, piece))
            on_bytes(piece.size)
        writer.sync(drafts)
    return [
        _replacement(piece, [sequenced(draft, piece.start_offset)])
        for piece, draft in zip(work.pieces, drafts, strict=True)
    ]


def _append_piece(writer: LogWriter, source: Source, piece: Piece) -> DraftExtent:
    """Append all batches of a piece that fits into one extent."""
    made = list(rewritten(source, piece, origin=piece.start_offset))
    lane = isolated_lane(piece.topic, piece.topic_id) if piece.config.segment_isolation else SHARED
    draft = writer.append(piece.topic_id, piece.partition, join_batches(made), piece.config, lane=lane)
    assert draft is not None  # it extends nothing
    return draft


def _merge_apart(store: Store, source: Source, piece: Piece, on_bytes: OnBytes) -> ReplaceExtents:
    with MergedSegments(store, piece) as segments:
        # A step is never larger than a segment's limit, except for a single batch.
        step_bytes = min(STEP_BYTES, piece.config.segment_bytes)
        for batches in rewritten(source, piece, step_bytes=step_bytes):
            segments.write(batches)
            on_bytes(batches.size_bytes)
        return _replacement(piece, segments.finish())


def _replacement(piece: Piece, added: list[Extent]) -> ReplaceExtents:
    return replacement(piece.extents, added, topic_id=piece.topic_id, partition=piece.partition)


# --- optimize ----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class MergedTopic:
    """The results for a topic.

    Fields:
        extents_before, extents_after: of all its partitions.
        merged_extents: replaced extents; merged_bytes: stored bytes that were read for them.
        added_extents, added_bytes: of the replacements.
        left_out: pieces that were rewritten but not published, since their extents changed concurrently, or
            would not have become fewer.
    """

    extents_before: int
    extents_after: int = 0
    merged_extents: int = 0
    merged_bytes: int = 0
    added_extents: int = 0
    added_bytes: int = 0
    left_out: int = 0


class MergeReport(RewriteReport[MergedTopic]):
    """The results for the examined topics."""


def optimize(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: MergeLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunWorks[MergeWork, list[ReplaceExtents]] | None = None,
    progress: OnProgress = ignore_progress,
    segments: Collection[str] | None = None,
) -> MergeReport:
    """Merge the due extents.

    Args:
        topics: None: all, internal ones too.
        limits: when extents are merged; by default all that can be.
        dry_run: only report the first works.
        raises: raise an error at the end for unreadable partitions; else only report them.
        meter: the budget; None: no limit.
        run: runs works; by default in this process, one by one.
        segments: move all extents out of these segments; None: merge to reduce the number of extents.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: `topics` is a str.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine maintains the root.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; the
            other due extents were merged. UnreadableSegmentError: a segment is unreadable; the same, unless
            the storage did not answer. RefusedTopicError: the storage refuses the directory of a topic; the
            same.
        StorageError, FatalStorageError: see WorkLoop.run.
    """
    limits = limits or MergeLimits(fan_in=None)
    meter = meter or Meter(NO_LIMIT, clock)
    image = metadata.refresh(force=True)
    names = sorted(image.topics) if topics is None else named_topics(image, topics)
    report = MergeReport({name: MergedTopic(extents_before=_extents(image, name)) for name in names})
    job = _Merging(metadata, limits, report, segments)
    if dry_run:
        for work in choose_merges(image, limits, names, segments=segments):
            for piece in work.pieces:
                report.topics[piece.topic].merged_extents += len(piece.extents)
                report.topics[piece.topic].merged_bytes += piece.size
    else:
        run = run or partial(run_each, run_merge, metadata.store, clock, on_read_ahead=meter.rest)
        loop = WorkLoop(metadata, job, report, meter, run, progress)
        loop.run()
        if loop.failed and raises:
            raise loop.failed[0]
    image = metadata.image
    for name, counts in report.topics.items():
        counts.extents_after = _extents(image, name) if name in image.topics else 0
    return report


class _Merging(Job[MergeWork, list[ReplaceExtents]]):
    def __init__(
        self,
        metadata: MetadataLog,
        limits: MergeLimits,
        report: MergeReport,
        segments: Collection[str] | None,
    ) -> None:
        self._metadata, self._limits, self._report, self._segments = metadata, limits, report, segments

    def choose(self, image: Image, since: Image, skip: frozenset[PartitionKey]) -> Sequence[MergeWork]:
        limits = replace(self._limits, skip=self._limits.skip | skip)
        return in_turns(
            choose_merges(image, limits, self._report.topics, since=since, segments=self._segments)
        )

    def publish(self, work: MergeWork, result: list[ReplaceExtents]) -> Outcome:
        """Publish the replacements that reduce the extents, or move them; all of them to empty segments."""
        is_fewer = [
            self._segments is not None or len(made.added) < made.removed_count or _moves(piece, made)
            for piece, made in zip(work.pieces, result, strict=True)
        ]
        wanted = list(compress(result, is_fewer))
        published = set(publish_replacements(self._metadata, wanted).actions)
        for piece, made in zip(work.pieces, result, strict=True):
            self._count(piece, made if made in published else None)
        useless = {piece.key for piece, fewer in zip(work.pieces, is_fewer, strict=True) if not fewer}
        return Outcome(bool(published), useless)

    def count_left_out(self, work: MergeWork) -> None:
        for piece in work.pieces:
            self._count(piece, None)

    def split(self, work: MergeWork, error: SparklogError) -> tuple[MergeWork | None, list[MergeWork]]:
        """Halve the work: its pieces are independent. Pieces in an unreadable segment are given up."""
        pieces = work.pieces
        if len(pieces) == 1:
            return work, []
        if not isinstance(error, UnreadableSegmentError):
            half = len(pieces) // 2
            return None, [MergeWork(pieces[:half]), MergeWork(pieces[half:])]
        is_refused = [bool((piece.extents.segment == error.segment).any()) for piece in pieces]
        assert any(is_refused), f"{error.segment} was read for none of its pieces"
        others = tuple(piece for piece, refused in zip(pieces, is_refused, strict=True) if not refused)
        return MergeWork(tuple(compress(pieces, is_refused))), [MergeWork(others)] if others else []

    def _count(self, piece: Piece, made: ReplaceExtents | None) -> None:
        counts = self._report.topics[piece.topic]
        if made is None:
            counts.left_out += 1
            return
        counts.merged_extents += len(piece.extents)
        counts.merged_bytes += piece.size
        counts.added_extents += len(made.added)
        counts.added_bytes += sum(extent.size for extent in made.added)


def _moves(piece: Piece, made: ReplaceExtents) -> bool:
    return piece.moves and all(is_isolated(extent.segment) for extent in made.added)


def _extents(image: Image, name: str) -> int:
    return sum(len(state.extents) for state in image.topics[name].partitions)
