"""Compaction as a whole: choose, do, publish, until nothing is left that can be compacted.

Invariants: a round's replacements and how far it came are published in one commit, or not at all: not when
    any of the extents that it removes has changed, when somebody else has compacted the partition meanwhile,
    or when its topic is not to be compacted any more. So two compactors bring nothing back: what one has
    removed, the other one's extents do not show any more as they were.
    Rounds are done one by one, so that whoever ends it loses one of them at most; of what was there when it
    began, or else beside a writer there would be no end.
Not here: running it in several processes (each work can be done anywhere), or all the time.
Concurrency: one at a time on a machine, as merging.
After a crash: the commit is there or not. If not, the new segments are files that nothing refers to.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.failpoints import failpoint
from sparklog.format.batch_table import BatchTable
from sparklog.format.decode import parse_bodies
from sparklog.format.encode import EncodedBatches, parts_within
from sparklog.format.key_hashes import SEED_BYTES, KeyHasher
from sparklog.log.config import INT_MAX
from sparklog.log.reader import plain_parts
from sparklog.log.segment_file import took_patience
from sparklog.maintenance.budget import (
    NO_LIMIT,
    Meter,
    StoppedError,
    Uncleanable,
    alone,
    failure_of,
    uncleanable,
)
from sparklog.maintenance.choose import (
    CompactionLimits,
    CompactionWork,
    Piece,
    choose_compactions,
    is_compacted,
    named_topics,
)
from sparklog.maintenance.compacted_batches import OPAQUE_MASK, Counts, OffsetMap, Round, codec_of, compacted
from sparklog.maintenance.merge import MergedSegment, Progress, replacement_applies
from sparklog.maintenance.retain import both_now_ms, shown_now_ms, sober_now_ms
from sparklog.maintenance.rewrite import (
    STEP_BYTES,
    Pace,
    Source,
    Spool,
    kept_batches,
    no_pace,
    read_steps,
    with_spool,
)
from sparklog.metadata import (
    Action,
    Cleaned,
    Extent,
    ExtentColumns,
    Image,
    MetadataLog,
    ReplaceExtents,
    plan_note_cleaned,
    plan_replacements,
    replacement,
)
from sparklog.storage import Store

# --- run compaction ----------------------------------------------------------------------------------
#
# A round of compaction over one partition: anywhere, from a work to replacements that may be published.
#
# 1. The dirty part is read; of each key the last offset is remembered, as long as there is room.
# 2. Everything up to where that came is read, and what survives is written to segments of the partition's
#    own, in Kafka's layout, since there are gaps. Extents of which nothing changes stay where they are.
#
# Invariants: what is returned is durable, and belongs together: tombstones go, or get their horizon, because
#     all before them was seen. So it is published as a whole, or not at all.
# Memory: a few times `step_bytes`, what one batch may decompress to, and the map of keys.
# Not here: which partitions (choose.py), which records (compacted_batches.py).
# Concurrency: works may run beside each other, in any process.
# After a crash: files that nothing refers to; nothing is lost, and the work is chosen again.
# Sources: Kafka Cleaner (buildOffsetMap, cleanSegments).


Told = Callable[[int], None]  # of stored bytes that were read


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What came of a work.

    Fields:
        replacements: of runs of extents, ascending.
        bytes_before: of the extents that they remove.
        cleaned: how far the partition is compacted once they are published.
    """

    work: CompactionWork
    replacements: tuple[ReplaceExtents, ...]
    bytes_before: int
    cleaned: Cleaned
    counts: Counts


def compact_each(
    store: Store,
    clock: Clock,
    works: Sequence[CompactionWork],
    told: Told = lambda _bytes: None,
    *,
    pace: Pace = no_pace,
) -> Iterator[CompactionResult | SparklogError]:
    """What came of each work, in their order, or why its files could not be read."""
    for work, spool in with_spool(store, works, pieces_of, pace=pace, reads=2):
        try:
            yield run_compaction(store, clock, work, told, spool=spool)
        except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
            yield failure_of(f"compacting {work.topic}-{work.partition}", error)


def run_compaction(
    store: Store,
    clock: Clock,
    work: CompactionWork,
    told: Told = lambda _bytes: None,
    *,
    step_bytes: int = STEP_BYTES,
    spool: Spool | None = None,
) -> CompactionResult:
    """Do a work.

    Args:
        spool: what was fetched for it already.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged, or newer; publish
            nothing of the work. UnreadableSegmentError: the storage does not give one; the same.
        StorageError, FatalStorageError: it could not be written.
    """
    stored = _Stored(store, spool)
    step_bytes = min(step_bytes, work.config.segment_bytes)
    most_keys = work.end_offset - work.first_dirty_offset
    earlier_ms, later_ms = both_now_ms(store, clock)
    round_ = Round(
        hasher=KeyHasher(os.urandom(SEED_BYTES)),
        keys=OffsetMap(work.dedupe_buffer_bytes, most_keys),
        end_offset=work.end_offset,
        now_ms=earlier_ms,
        marked_ms=max(later_ms, work.newest_ms),
        delete_retention_ms=work.config.delete_retention_ms,
    )
    round_.end_offset = _map_keys(stored, work, round_, told, step_bytes)
    replacements, bytes_before = [], 0
    for group in _groups(work, round_.end_offset):
        action = _rewrite(stored, work, round_, group, told, step_bytes)
        if action is not None:
            replacements.append(action)
            bytes_before += int(group.column("size").sum())
    return CompactionResult(
        work=work,
        replacements=tuple(replacements),
        bytes_before=bytes_before,
        cleaned=Cleaned(round_.end_offset, round_.latest_horizon_ms),
        counts=round_.counts,
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the extents are, and what is here of them already."""

    store: Store
    spool: Spool | None

    def source(self, piece: Piece) -> Source:
        return Source(self.store, [piece], self.spool)


# --- 1: the last offset of each key ------------------------------------------------------------------------


def _map_keys(stored: _Stored, work: CompactionWork, round_: Round, told: Told, step_bytes: int) -> int:
    """Where the part ends whose keys are all mapped."""
    dirty = np.flatnonzero(work.extents.end_offset > work.first_dirty_offset)
    if work.first_dirty_offset >= work.end_offset or not len(dirty):
        return work.end_offset
    piece = _piece(work, work.extents.slice(int(dirty[0]), len(work.extents)))
    with stored.source(piece) as source:
        for data, table in read_steps(source, piece, step_bytes):
            end = _map_step(work, round_, data, table, step_bytes)
            if end is not None:
                return end
            told(len(data))
    return work.end_offset


def _map_step(
    work: CompactionWork, round_: Round, data: memoryview, table: BatchTable, step_bytes: int
) -> int | None:
    """The offset of the first record that there is no room for, or that cannot be judged; None: there is
    none.
    """
    opaque = np.flatnonzero((table.attributes & OPAQUE_MASK) != 0)
    end = None
    if len(opaque):
        end = max(work.first_dirty_offset, int(table.base_offset[opaque[0]]))
        table = table.select(slice(0, int(opaque[0])))
        if not len(table):
            return end
    for body, plain, _ in plain_parts(data, table, step_bytes, _where(work, table)):
        parsed = parse_bodies(body, plain, where=_where(work, plain))
        offset = plain.base_offset[parsed.batch_of] + parsed.fields.offset_delta
        rows = np.flatnonzero((parsed.fields.key_length >= 0) & (offset >= work.first_dirty_offset))
        fields, offset = parsed.fields, offset[rows]
        keys = round_.hasher.hash(parsed.bodies.data, fields.key_position[rows], fields.key_length[rows])
        taken = round_.keys.put(keys, offset)
        if taken < len(rows):
            return int(offset[taken])
    return end


# --- 2: what survives --------------------------------------------------------------------------------------


def _groups(work: CompactionWork, end_offset: int) -> Iterator[ExtentColumns]:
    """Runs of extents below the end, each of about a segment's size, or one that is larger by itself."""
    extents = work.extents
    extents = extents.slice(0, int(np.searchsorted(extents.base_offset, end_offset, side="left")))
    ends = np.cumsum(extents.column("size"))
    start = 0
    while start < len(extents):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + work.config.segment_bytes, side="right"))
        stop = max(stop, start + 1)
        yield extents.slice(start, stop)
        start = stop


def _rewrite(
    stored: _Stored, work: CompactionWork, round_: Round, group: ExtentColumns, told: Told, step_bytes: int
) -> ReplaceExtents | None:
    """None: nothing of it changes."""
    piece = _piece(work, group)
    codec = codec_of(work.config.compression_type)
    unchanged = 0
    with _Output(stored.store, piece) as output, stored.source(piece) as source:
        for data, table in read_steps(source, piece, step_bytes):
            size = len(data)
            made = compacted(round_, data, table, codec, step_bytes, _where(work, table))
            if unchanged >= 0 and not made.is_changed:
                unchanged += 1
            else:
                if unchanged > 0:
                    _copy_first(stored, piece, unchanged, output, step_bytes)
                unchanged = -1
                for batches in made.parts:
                    output.write(batches)
            told(size)
        if unchanged >= 0:
            return None
        added = output.finish()
    return replacement(group, added, topic_id=work.topic_id, partition=work.partition)


def _copy_first(stored: _Stored, piece: Piece, count: int, output: "_Output", step_bytes: int) -> None:
    """The first steps of a piece, as they are."""
    with stored.source(piece) as source:
        for _, (data, table) in zip(range(count), read_steps(source, piece, step_bytes), strict=False):
            output.write(kept_batches(data, table, 0))


class _Output:
    """The segments that a piece's batches go to; made when there is something to write."""

    def __init__(self, store: Store, piece: Piece) -> None:
        self._store, self._piece = store, piece
        self._segment: MergedSegment | None = None
        self._added: list[Extent] = []

    def write(self, batches: EncodedBatches) -> None:
        for part in parts_within(batches, INT_MAX):
            self._write(part)

    def _write(self, batches: EncodedBatches) -> None:
        piece = self._piece
        if self._segment is not None and not self._segment.has_room(batches):
            self._finish_segment(self._segment)
        if self._segment is None:
            base_offset = int(batches.base_offset[0])
            self._segment = MergedSegment(
                self._store, piece.topic, piece.partition, piece.config, base_offset, piece.born
            )
        self._segment.write(batches)

    def finish(self) -> list[Extent]:
        """The extents, durable."""
        if self._segment is not None:
            self._finish_segment(self._segment)
        return self._added

    def _finish_segment(self, segment: MergedSegment) -> None:
        self._added.append(segment.finish(self._piece.topic_id, self._piece.partition))
        self._segment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._segment is not None:
            self._segment.close()


def pieces_of(work: CompactionWork) -> list[Piece]:
    """What it reads."""
    return [_piece(work, work.extents)]


def _piece(work: CompactionWork, extents: ExtentColumns) -> Piece:
    return Piece(
        born=work.born,
        topic=work.topic,
        topic_id=work.topic_id,
        partition=work.partition,
        config=work.config,
        extents=extents,
        is_shared=False,
    )


def _where(work: CompactionWork, table: BatchTable) -> str:
    first = int(table.base_offset[0]) if len(table) else work.first_dirty_offset
    return f"{work.topic}-{work.partition} from offset {first}"


# --- compact -----------------------------------------------------------------------------------------


_MAX_VAIN_ROUNDS = 8
# Does works, in their order; what came of each, or why its files could not be read.
RunCompactions = Callable[[Sequence[CompactionWork], Told], Iterator[CompactionResult | SparklogError]]


@dataclass(slots=True, kw_only=True)
class CompactedTopic:
    """What was done to a topic.

    Fields:
        partitions: that were, or would be, compacted.
        clean_bytes, dirty_bytes: of them, before the first round.
        rounds: that were published.
        bytes_before, bytes_after: of extents that were replaced, and of what stands in their place.
        records_read: that might have gone; the others of these fields are of them.
        superseded: a later record had their key; keyless: had no key, and went.
        tombstones_removed: their delete horizon had come; tombstones_kept: as of the last round.
        left_out: rounds that were done in vain, since the partition changed meanwhile.
    """

    partitions: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    rounds: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_read: int = 0
    superseded: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    tombstones_kept: int = 0
    left_out: int = 0

    @property
    def records_removed(self) -> int:
        """However they went."""
        return self.superseded + self.keyless + self.tombstones_removed


@dataclass(slots=True)
class CompactionReport:
    """By topic, of those that are to be compacted; `is_cut`: more was due, but the budget was spent, or
    somebody asked for an end; `uncleanable`: what was left as it is, since it cannot be read.
    """

    topics: dict[str, CompactedTopic] = field(default_factory=dict)
    is_cut: bool = False
    uncleanable: list[Uncleanable] = field(default_factory=list)


def compact(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: CompactionLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunCompactions | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> CompactionReport:
    """Keep the last record of each key, in the topics whose cleanup.policy has compact.

    Args:
        topics: None: all of them, internal ones too.
        limits: when partitions are compacted; by default whatever can be.
        dry_run: only say what would be compacted, first.
        raises: whether what cannot be read is an error at the end; else it is in the report alone.
        meter: how much of it; None: all.
        run: does works; by default here, one after the other.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: NOT_COMPACTED, a topic of `topics` keeps all of its records; `topics` is a text.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine does it.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; the
            other partitions were compacted. UnreadableSegmentError: the storage does not give one; the same,
            unless it did not answer.
        StorageError, FatalStorageError: see merge.py.
    """
    limits = limits or CompactionLimits()
    first = metadata.refresh(force=True)
    names = _names(first, topics)
    report = CompactionReport({name: CompactedTopic() for name in names})
    now_ms = (shown_now_ms if dry_run else sober_now_ms)(metadata.store, clock)
    works = choose_compactions(first, now_ms, limits, names)
    for work in works:
        one = report.topics[work.topic]
        one.partitions += 1
        one.clean_bytes += work.clean_bytes
        one.dirty_bytes += work.dirty_bytes
    if not dry_run and works:
        with alone(metadata):
            meter = meter or Meter(NO_LIMIT, clock)
            compactor = _Compactor(metadata, clock, limits, names, report, meter, progress)
            try:
                compactor.run(run or _run_here(metadata, clock, meter))
            except StoppedError:
                report.is_cut = True
            if raises:
                compactor.raise_failure()
    return report


def _run_here(metadata: MetadataLog, clock: Clock, meter: Meter) -> RunCompactions:
    def run(works: Sequence[CompactionWork], told: Told) -> Iterator[CompactionResult | SparklogError]:
        return compact_each(metadata.store, clock, works, told, pace=meter.rest)

    return run


def _names(image: Image, topics: Collection[str] | None) -> list[str]:
    if topics is None:
        return [name for name in sorted(image.topics) if is_compacted(image.topics[name], image)]
    names = named_topics(image, topics)
    for name in names:
        if not is_compacted(image.topics[name], image):
            raise InvalidRequestError(
                "NOT_COMPACTED",
                f"topic {name!r}: found a cleanup.policy without compact, expected one with it",
                fix="leave the topic out, or give it the policy: "
                f"sparklog topics alter --topic {name} --config cleanup.policy=compact",
            )
    return names


class _Compactor:
    """Rounds, until there is nothing more to do."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        limits: CompactionLimits,
        names: Sequence[str],
        report: CompactionReport,
        meter: Meter,
        progress: Callable[[Progress], None],
    ) -> None:
        self._metadata, self._clock, self._limits, self._names = metadata, clock, limits, names
        self._report, self._meter, self._progress = report, meter, progress
        self._done = self._total = 0
        self._tombstones: dict[tuple[str, int], int] = {}  # kept by the last round
        self._failed: list[SparklogError] = []
        self._left_alone: set[tuple[str, int]] = set()  # what failed, or does not get any further

    def run(self, run: RunCompactions) -> None:
        first = self._metadata.refresh(force=True)
        vain = 0
        while vain < _MAX_VAIN_ROUNDS:
            image = self._metadata.refresh(force=True)
            now_ms = sober_now_ms(self._metadata.store, self._clock)
            works = choose_compactions(image, now_ms, self._limits, self._names, since=first)
            works = [work for work in works if _partition(work) not in self._left_alone]
            if not works:
                break
            self._total = self._done + sum(work.size for work in works)
            came_further = False
            results = run(works, self._told)
            for work in works:
                if not self._meter.has_room():
                    raise StoppedError
                came_further |= self._round(work, results)
            vain = 0 if came_further else vain + 1

    def raise_failure(self) -> None:
        """Of the first partition that could not be read."""
        if self._failed:
            raise self._failed[0]

    def _round(self, work: CompactionWork, results: Iterator[CompactionResult | SparklogError]) -> bool:
        """Did it get any further?"""
        started = self._done
        result: CompactionResult | SparklogError | None = next(results)
        published = False
        if result is not None and not isinstance(result, SparklogError):
            try:
                published = publish_compaction(self._metadata, result)
            except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
                result = failure_of(f"publishing the compaction of {work.topic}-{work.partition}", error)
        if isinstance(result, SparklogError):
            if self._is_there(work):  # else its files went with its extents: others have changed them
                self._failed.append(result)
                self._report.uncleanable.append(
                    uncleanable(work.topic, work.topic_id, work.partition, work.extents, result)
                )
                self._left_alone.add(_partition(work))
                if took_patience(result):
                    raise StoppedError
            result = None
        self._done = started + work.size
        self._progress(Progress(self._done, self._total))
        one = self._report.topics[work.topic]
        if result is None or not published:
            one.left_out += 1
            return False
        self._count(one, result)
        if result.cleaned == work.cleaned:
            self._left_alone.add(_partition(work))
            return False
        return True

    def _told(self, size: int) -> None:
        self._meter.spend(size)
        self._done += size
        self._progress(Progress(min(self._done, self._total), self._total))

    def _count(self, one: CompactedTopic, result: CompactionResult) -> None:
        counts, partition = result.counts, _partition(result.work)
        one.rounds += 1
        one.bytes_before += result.bytes_before
        one.bytes_after += sum(extent.size for action in result.replacements for extent in action.added)
        one.records_read += counts.read
        one.superseded += counts.superseded
        one.keyless += counts.keyless
        one.tombstones_removed += counts.tombstones_removed
        one.tombstones_kept += counts.tombstones_kept - self._tombstones.get(partition, 0)
        self._tombstones[partition] = counts.tombstones_kept

    def _is_there(self, work: CompactionWork) -> bool:
        """Does the partition still have these extents?"""
        action = replacement(work.extents, [], topic_id=work.topic_id, partition=work.partition)
        return replacement_applies(self._metadata.refresh(force=True), action)


def _partition(work: CompactionWork) -> tuple[str, int]:
    return work.topic_id, work.partition


def publish_compaction(metadata: MetadataLog, result: CompactionResult) -> bool:
    """Publish a round, as a whole; False: it does not apply any more.

    Raises: as publish_replacements.
    """
    applied = False

    def plan(image: Image) -> list[Action]:
        nonlocal applied
        applied = _applies(image, result)
        if not applied:
            return []
        work = result.work
        noted = plan_note_cleaned(image, work.topic_id, work.partition, result.cleaned)
        return [*result.replacements, *([] if noted is None else [noted])]

    failpoint("compact.publishing")
    metadata.publish(plan)
    return applied


def _applies(image: Image, result: CompactionResult) -> bool:
    work = result.work
    topic = image.topic_by_id.get(work.topic_id)
    return (
        topic is not None
        and is_compacted(topic, image)
        and topic.partitions[work.partition].cleaned == work.cleaned
        and len(plan_replacements(image, result.replacements)) == len(result.replacements)
    )
