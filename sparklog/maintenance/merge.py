"""Merging: the extents of a work become as few as they can be.

Pieces that are small share a new segment, sorted by partition, laid out as a writer's; the others get
segments of their own, laid out as Kafka's.
Invariants: what is returned may be published: the bytes are durable, and hold, offset for offset, the records
    of the extents that they replace.
Not here: which extents (choose.py), what becomes of a batch (rewrite.py).
Concurrency: works may run beside each other, in any process.
After a crash: files that nothing refers to; nothing is lost, and the work is chosen again.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

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
from sparklog.log.config import INT_MAX, TopicConfig
from sparklog.log.segment_file import (
    UnreadableSegmentError,
    index_name,
    merged_segment_name,
    time_index_name,
    took_patience,
)
from sparklog.log.writer import LogWriter
from sparklog.maintenance.budget import (
    NO_LIMIT,
    Meter,
    StoppedError,
    Uncleanable,
    alone,
    failure_of,
    uncleanable,
)
from sparklog.maintenance.choose import MergeLimits, MergeWork, Piece, choose_merges, named_topics
from sparklog.maintenance.rewrite import (
    STEP_BYTES,
    Pace,
    Source,
    Spool,
    in_turns,
    no_pace,
    rewritten,
    with_spool,
)
from sparklog.metadata import (
    NO_HORIZON,
    Action,
    DraftExtent,
    Extent,
    Image,
    MetadataLog,
    ReplaceExtents,
    new_id,
    plan_replacements,
    replacement,
    sequenced,
)
from sparklog.storage import AppendFile, Store

# --- merged segment ----------------------------------------------------------------------------------
#
# A merged segment: one partition, absolute offsets, laid out as Kafka's, with its .index and .timeindex.
#
#     <topic>-<p>/<20 digits of the first offset>-<born>-<id>.log
#
# Invariants: the segment is durable, with its name, before `finish` returns its extent; the indexes are
#     hints, and are complete or absent. A batch is never split over two segments.
# Limits: segment.bytes and segment.index.bytes of the topic; relative offsets and positions below 2^31.
# Not here: what is in it (rewrite.py).
# Concurrency: one thread.
# After a crash: a file that nothing refers to.
# Sources: FORMAT.md#offset-index, FORMAT.md#time-index; Kafka LogSegment.


_NO_ENTRIES = np.zeros(0, np.int64)


class MergedSegment:
    """One segment that is being written."""

    def __init__(
        self, store: Store, topic: str, partition: int, config: TopicConfig, base_offset: int, born: int
    ) -> None:
        """`born`: the birth, by the image that the work was chosen from."""
        self._store = store
        self._config = config
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.name = merged_segment_name(topic, partition, base_offset, born, new_id())
        self._file: AppendFile = store.append_file(self.name)
        self._max_timestamp_ms = -1
        self._columns: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]] = []
        self._entries = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.position

    def has_room(self, batches: EncodedBatches) -> bool:
        """Would it keep within its limits with these?"""
        config = self._config
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
        """Append batches, their offsets absolute."""
        position = self._file.write(*batches.data)
        failpoint("merge.written")
        last = batches.base_offset + batches.batch_record_count - 1
        self._columns.append(
            (batches.position + position, batches.size, last, batches.batch_max_timestamp_ms)
        )
        self._entries += len(batches.size)
        self._max_timestamp_ms = max(self._max_timestamp_ms, batches.max_timestamp_ms)
        self.next_offset = int(last[-1]) + 1

    def finish(self, topic_id: str, partition: int) -> Extent:
        """Make it durable, write its indexes, and close it. Returns the extent of all of it."""
        size = self.size
        self._file.sync()
        failpoint("merge.synced")
        self._file.close()
        self._write_indexes()
        return Extent(
            topic_id=topic_id,
            partition=partition,
            segment=self.name,
            position=0,
            size=size,
            base_offset=self.base_offset,
            record_count=self.next_offset - self.base_offset,
            max_timestamp_ms=self._max_timestamp_ms,
            offset_delta=0,
        )

    def close(self) -> None:
        """Give it up; what was written is left behind."""
        with contextlib.suppress(StorageError, OSError):
            self._file.close()

    def _write_indexes(self) -> None:
        position, size, last_offset, newest = map(np.concatenate, zip(*self._columns, strict=True))
        chosen = choose_entries(position, size, self._config.index_interval_bytes)
        # As Kafka: nothing for the segment's first batch, and the last offset of the others.
        offsets = encode_offset_entries(last_offset[chosen[1:]] - self.base_offset, position[chosen[1:]])
        times = _time_entries(newest, last_offset - self.base_offset, chosen)
        with contextlib.suppress(StorageError):
            self._store.put_hint(index_name(self.name), offsets)
            self._store.put_hint(time_index_name(self.name), times)
        failpoint("merge.indexed")


def _time_entries(newest: np.ndarray, last: np.ndarray, chosen: np.ndarray) -> bytes:
    """Of each index interval, the batch that made the largest timestamp so far, if one of it did.

    Args:
        newest: largest timestamp of each batch.
        last: relative offset of each batch's last record.
        chosen: batches with which intervals begin.

    An entry names a batch that has the timestamp that it says, so that a reader can hold it against the
    batch's header.
    """
    largest = np.maximum.accumulate(newest)
    rises = np.flatnonzero(np.diff(largest, prepend=-1) > 0)
    if not len(rises):
        return b""
    interval = np.searchsorted(chosen, rises, side="right")
    is_last = np.append(interval[1:] != interval[:-1], True)
    at = rises[is_last]
    return encode_time_entries(largest[at], last[at])


# --- publish -----------------------------------------------------------------------------------------
#
# Replacements become part of the log: one commit for those of a work.
#
# Invariants: a replacement is published only if the extents that it removes are there as they were, field for
#     field, in the image that the commit is planned against; if not, it is left out, and nothing is changed
#     for it. Nor if it took so long that what it made may have been swept, or if those before it in the
#     commit leave no room for the producers that it would merge. Appends beside it do not matter.
# Concurrency: any thread and process; the metadata log orders them.
# After a crash: the commit is there or not. If not, the new segments are files that nothing refers to.


@dataclass(frozen=True, slots=True)
class Published:
    """What came of replacements: those that were published, and how many were left out."""

    actions: tuple[ReplaceExtents, ...]
    left_out: int


def publish_replacements(metadata: MetadataLog, replacements: Sequence[ReplaceExtents]) -> Published:
    """Publish what still applies.

    Raises:
        RetriableError: PUBLISH_CONTENDED. StorageError: nothing was published, or PUBLISH_UNRESOLVED.
        FatalStorageError: it is not known whether it was; to do the work again does no harm.
    """

    def plan(image: Image) -> list[Action]:
        return [*plan_replacements(image, replacements)]

    failpoint("merge.publishing")
    result = metadata.publish(plan)
    actions = tuple(action for action in result.actions if isinstance(action, ReplaceExtents))
    return Published(actions, len(replacements) - len(actions))


def replacement_applies(image: Image, action: ReplaceExtents) -> bool:
    """Is everything that it removes in the image as it was?"""
    return bool(plan_replacements(image, [action]))


# --- merge -------------------------------------------------------------------------------------------


Told = Callable[[int], None]  # of stored bytes that were rewritten


def merge_each(
    store: Store,
    clock: Clock,
    works: Sequence[MergeWork],
    told: Told = lambda _bytes: None,
    *,
    pace: Pace = no_pace,
) -> Iterator[list[ReplaceExtents] | SparklogError]:
    """What came of each work, in their order, or why its files could not be read."""
    for work, spool in with_spool(store, works, pieces_of, pace=pace):
        try:
            yield run_merge(store, clock, work, told, spool=spool)
        except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
            yield failure_of(f"merging {_named(work)}", error)


def _named(work: MergeWork) -> str:
    first, more = work.pieces[0], len(work.pieces) - 1
    return f"{first.topic}-{first.partition}" + (f" and {more} more partitions" if more else "")


def pieces_of(work: MergeWork) -> Sequence[Piece]:
    """What it reads."""
    return work.pieces


def run_merge(
    store: Store,
    clock: Clock,
    work: MergeWork,
    told: Told = lambda _bytes: None,
    *,
    spool: Spool | None = None,
) -> list[ReplaceExtents]:
    """Do a work; one replacement for each of its pieces.

    Args:
        spool: what was fetched for it already.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged, or newer; publish
            nothing of the work. UnreadableSegmentError: the storage does not give one; the same.
        StorageError, FatalStorageError: it could not be written.
    """
    with Source(store, work.pieces, spool) as source:
        if work.pieces[0].is_shared:
            return _merge_shared(store, clock, source, work, told)
        return [_merge_apart(store, source, piece, told) for piece in work.pieces]


def _merge_shared(
    store: Store, clock: Clock, source: Source, work: MergeWork, told: Told
) -> list[ReplaceExtents]:
    writer = LogWriter(store, clock, seen=lambda: (work.pieces[0].born, NO_HORIZON))
    with contextlib.closing(writer):
        drafts = []
        for piece in work.pieces:
            drafts.append(_append_piece(writer, source, piece))
            told(piece.size)
        writer.sync(drafts)
    return [
        _replacement(piece, [sequenced(draft, piece.start_offset)])
        for piece, draft in zip(work.pieces, drafts, strict=True)
    ]


def _append_piece(writer: LogWriter, source: Source, piece: Piece) -> DraftExtent:
    """All batches of a piece, small enough for one extent."""
    made = list(rewritten(source, piece, origin=piece.start_offset))
    draft = writer.append(piece.topic_id, piece.partition, join_batches(made), piece.config)
    assert draft is not None  # it extends nothing
    return draft


def _merge_apart(store: Store, source: Source, piece: Piece, told: Told) -> ReplaceExtents:
    added: list[Extent] = []
    with contextlib.ExitStack() as unfinished:
        segment: MergedSegment | None = None
        # A step is never larger than a segment may be, but for one batch.
        step_bytes = min(STEP_BYTES, piece.config.segment_bytes)
        steps = rewritten(source, piece, step_bytes=step_bytes)
        for batches in (part for step in steps for part in parts_within(step, INT_MAX)):
            if segment is not None and not segment.has_room(batches):
                added.append(segment.finish(piece.topic_id, piece.partition))
                segment = None
            if segment is None:
                base_offset = int(batches.base_offset[0])
                segment = MergedSegment(
                    store, piece.topic, piece.partition, piece.config, base_offset, piece.born
                )
                unfinished.callback(segment.close)
            segment.write(batches)
            told(batches.size_bytes)
        assert segment is not None  # a piece has batches
        added.append(segment.finish(piece.topic_id, piece.partition))
    return _replacement(piece, added)


def _replacement(piece: Piece, added: list[Extent]) -> ReplaceExtents:
    return replacement(piece.extents, added, topic_id=piece.topic_id, partition=piece.partition)


# --- run ---------------------------------------------------------------------------------------------
#
# Maintenance as a whole: choose, do, publish, until nothing is due.
#
# Invariants: works are done and published one by one, so that whoever ends it loses one of them at most. The
#     choice is made anew from the newest image until there is none, or MAX_ROUNDS are over; of what was there
#     when it began, or else beside a writer each round would merge what the one before it has made.
#     What cannot be read is an error at the end: it keeps nothing from being merged but its own partition.
#     But a storage that says nothing is waited for once, and no other work begins.
# Not here: running it in several processes (each work can be done anywhere), or all the time.
# Concurrency: one at a time on a machine, if the store can hold names: two would do the same work, and all
#     but one of each pair in vain; it would do no harm.


MAX_ROUNDS = 8
# Does works, in their order; what came of each, or why its files could not be read.
RunMerges = Callable[[Sequence[MergeWork], Told], Iterator[list[ReplaceExtents] | SparklogError]]


class ChooseMerges(Protocol):
    """As choose_merges: which works are due."""

    def __call__(
        self,
        image: Image,
        limits: MergeLimits,
        topics: Collection[str] | None = None,
        *,
        since: Image | None = None,
    ) -> Iterator[MergeWork]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is, in stored bytes of the works that are known of."""

    done_bytes: int
    total_bytes: int


@dataclass(slots=True, kw_only=True)
class TopicReport:
    """What was done to a topic.

    Fields:
        extents_before, extents_after: of all its partitions.
        merged_extents: that were replaced; merged_bytes: stored bytes that were read for it.
        added_extents, added_bytes: that stand in their place.
        left_out: pieces that were done in vain, since their extents changed meanwhile, or are no fewer now.
    """

    extents_before: int
    extents_after: int = 0
    merged_extents: int = 0
    merged_bytes: int = 0
    added_extents: int = 0
    added_bytes: int = 0
    left_out: int = 0


@dataclass(slots=True)
class Report:
    """By topic, of those that were looked at; `is_cut`: more was due, but the budget was spent, or somebody
    asked for an end; `uncleanable`: what was left as it is, since it cannot be read.
    """

    topics: dict[str, TopicReport] = field(default_factory=dict)
    is_cut: bool = False
    uncleanable: list[Uncleanable] = field(default_factory=list)


def optimize(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: MergeLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunMerges | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
    choose: ChooseMerges | None = None,
) -> Report:
    """Merge what is due.

    Args:
        topics: None: all, internal ones too.
        limits: when extents are merged; by default whatever can be.
        dry_run: only say what would be merged, first.
        raises: whether what cannot be read is an error at the end; else it is in the report alone.
        meter: how much of it; None: all.
        run: does works; by default here, one after the other.
        choose: what is due; by default what makes fewer extents.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: `topics` is a text.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine does it.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; what
            else was due was merged. UnreadableSegmentError: the storage does not give one; the same, unless
            it did not answer.
        StorageError: see merge.py.
    """
    limits, choose = limits or MergeLimits(fan_in=None), choose or choose_merges
    image = metadata.refresh(force=True)
    names = sorted(image.topics) if topics is None else named_topics(image, topics)
    report = Report({name: TopicReport(extents_before=_extents(image, name)) for name in names})
    failed: list[SparklogError] = []
    meter = meter or Meter(NO_LIMIT, clock)
    if dry_run:
        for work in choose(image, limits, names):
            _count_merged(report, work)
    else:
        run = run or _run_here(metadata, clock, meter)
        with alone(metadata):
            try:
                _merge_all(metadata, limits, report, failed, meter, run, progress, choose)
            except StoppedError:
                report.is_cut = True
    if failed and raises:
        raise failed[0]
    image = metadata.image
    for name, one in report.topics.items():
        one.extents_after = _extents(image, name) if name in image.topics else 0
    return report


def _merge_all(
    metadata: MetadataLog,
    limits: MergeLimits,
    report: Report,
    failed: list[SparklogError],
    meter: Meter,
    run: RunMerges,
    progress: Callable[[Progress], None],
    choose: ChooseMerges,
) -> None:
    done = 0
    first = metadata.refresh(force=True)
    has_changed = True
    for _ in range(MAX_ROUNDS):
        if not has_changed or report.is_cut:
            break
        has_changed = False
        works = in_turns(choose(metadata.refresh(force=True), limits, report.topics, since=first))
        total = done + sum(work.size for work in works)

        def told(size: int) -> None:
            nonlocal done
            meter.spend(size)
            done += size
            progress(Progress(min(done, total), total))  # noqa: B023 - called within this round

        results = run(works, told)
        for work in works:
            if not meter.has_room():
                report.is_cut = True
                break
            started = done
            for part, result in _parts(run, told, work, next(results)):
                if not isinstance(result, SparklogError):
                    try:
                        has_changed |= _publish(metadata, report, part, result, fewer=choose is choose_merges)
                        continue
                    except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
                        result = failure_of("publishing what was merged", error)  # noqa: PLW2901
                if all(_is_there(metadata.refresh(force=True), piece) for piece in part.pieces):
                    failed.append(result)
                    found = [
                        uncleanable(piece.topic, piece.topic_id, piece.partition, piece.extents, result)
                        for piece in part.pieces
                    ]
                    report.uncleanable += found
                    limits = replace(limits, but=limits.but | {one.key for one in found})
                    if took_patience(result):
                        raise StoppedError
                else:  # its files went with its extents
                    has_changed |= _publish(metadata, report, part, [], fewer=True)
            done = started + work.size
            progress(Progress(done, total))


def _parts(
    run: RunMerges, told: Told, work: MergeWork, result: list[ReplaceExtents] | SparklogError
) -> Iterator[tuple[MergeWork, list[ReplaceExtents] | SparklogError]]:
    """The work, and what came of it. If it cannot be read, its halves, and so on: pieces share a work that
    have nothing else in common. What lies in a segment that the storage does not give is not tried again.
    """
    if not isinstance(result, SparklogError) or len(work.pieces) == 1:
        yield work, result
        return
    half = len(work.pieces) // 2
    parts = [work.pieces[:half], work.pieces[half:]]
    if isinstance(result, UnreadableSegmentError):
        refused, others = _lying_in(work, result.segment)
        yield MergeWork(refused), result
        parts = [others] if others else []
    for pieces in parts:
        part = MergeWork(pieces)
        yield from _parts(run, told, part, next(run([part], told)))


def _lying_in(work: MergeWork, segment: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The pieces that lie in a segment, also, and the others."""
    lies_in = [bool((piece.extents.segment == segment).any()) for piece in work.pieces]
    assert any(lies_in), f"{segment} was read for none of its pieces"
    refused = tuple(itertools.compress(work.pieces, lies_in))
    return refused, tuple(piece for piece, lies in zip(work.pieces, lies_in, strict=True) if not lies)


def _publish(
    metadata: MetadataLog,
    report: Report,
    work: MergeWork,
    replacements: Sequence[ReplaceExtents],
    *,
    fewer: bool,
) -> bool:
    """Publish them, or those that make fewer extents; True if it is worth to choose again."""
    wanted = [one for one in replacements if not fewer or len(one.added) < one.removed_count]
    there = set(publish_replacements(metadata, wanted).actions)
    for piece, action in itertools.zip_longest(work.pieces, replacements):
        _count(report.topics[piece.topic], piece, action if action in there else None)
    return bool(wanted or not replacements)


def _run_here(metadata: MetadataLog, clock: Clock, meter: Meter) -> RunMerges:
    def run(works: Sequence[MergeWork], told: Told) -> Iterator[list[ReplaceExtents] | SparklogError]:
        return merge_each(metadata.store, clock, works, told, pace=meter.rest)

    return run


def _is_there(image: Image, piece: Piece) -> bool:
    """Does the partition still have these extents?"""
    action = replacement(piece.extents, [], topic_id=piece.topic_id, partition=piece.partition)
    return replacement_applies(image, action)


def _count(one: TopicReport, piece: Piece, action: ReplaceExtents | None) -> None:
    if action is None:
        one.left_out += 1
        return
    one.merged_extents += len(piece.extents)
    one.merged_bytes += piece.size
    one.added_extents += len(action.added)
    one.added_bytes += sum(extent.size for extent in action.added)


def _count_merged(report: Report, work: MergeWork) -> None:
    for piece in work.pieces:
        report.topics[piece.topic].merged_extents += len(piece.extents)
        report.topics[piece.topic].merged_bytes += piece.size


def _extents(image: Image, name: str) -> int:
    return sum(len(state.extents) for state in image.topics[name].partitions)
