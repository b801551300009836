"""Compaction: keeps the last record of each key.

Invariants: a round's replacements and its progress are published in one commit, or not at all: not if an
    extent that it removes has changed, if another process has compacted the partition concurrently, or if the
    topic is no longer compacted. So two concurrent compactors never bring a removed record back: the extents
    of the second one have changed.
Not here: which partitions (choose.py), the loop (work_loop.py).
Concurrency: works may run concurrently, in any process.
After a crash: the commit is there or not. If not, the new segments are unreferenced files.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError
from sparklog.failpoints import failpoint
from sparklog.format.batch_table import BatchTable
from sparklog.format.decode import parse_bodies
from sparklog.format.key_hashes import SEED_BYTES, KeyHasher
from sparklog.log.reader import plain_parts
from sparklog.maintenance.budget import NO_LIMIT, Meter
from sparklog.maintenance.choose import (
    CompactionLimits,
    CompactionWork,
    PartitionKey,
    Piece,
    choose_compactions,
    cut,
    is_compacted,
    named_topics,
)
from sparklog.maintenance.compacted_batches import OPAQUE_MASK, Counts, OffsetMap, Round, codec_of, compacted
from sparklog.maintenance.merging import MergedSegments
from sparklog.maintenance.retain import both_now_ms, earlier_now_ms, shown_now_ms
from sparklog.maintenance.rewrite import (
    STEP_BYTES,
    OnBytes,
    Source,
    Spool,
    ignore_bytes,
    kept_batches,
    read_steps,
)
from sparklog.maintenance.work_loop import (
    Job,
    OnProgress,
    Outcome,
    RewriteReport,
    RunWorks,
    WorkLoop,
    ignore_progress,
    run_each,
)
from sparklog.metadata import (
    Action,
    Cleaned,
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
# A compaction round of one partition, in any process: from a work to replacements that may be published.
#
# 1. Read the dirty part; map the last offset of each key, while the map has room.
# 2. Read everything below the end of the mapped part, and write the surviving records to segments of the
#    partition, in Kafka's layout, since there are gaps. Unchanged extents stay in place.
#
# Invariants: the result is durable, and atomic: tombstones are removed, or get their horizon, because all
#     records before them were read. So it is published as a whole, or not at all.
# Memory: a few times `step_bytes`, the decompressed size of one batch, and the map of keys.
# Not here: which partitions (choose.py), which records (compacted_batches.py).
# Sources: Kafka Cleaner (buildOffsetMap, cleanSegments).


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of a work.

    Fields:
        replacements: of runs of extents, ascending.
        bytes_before: of the extents that they remove.
        cleaned: the compaction state of the partition after the publish.
    """

    work: CompactionWork
    replacements: tuple[ReplaceExtents, ...]
    bytes_before: int
    cleaned: Cleaned
    counts: Counts


def run_compaction(
    store: Store,
    clock: Clock,
    work: CompactionWork,
    on_bytes: OnBytes = ignore_bytes,
    *,
    step_bytes: int = STEP_BYTES,
    spool: Spool | None = None,
) -> CompactionResult:
    """Run a work.

    Args:
        on_bytes: called with stored bytes that were read.
        spool: the bytes that were fetched for it in advance.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged, or newer; publish
            nothing of the work. UnreadableSegmentError: a segment is unreadable; the same.
        RefusedTopicError: the storage refuses the directory of the topic; the same.
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
    round_.end_offset = _map_keys(stored, work, round_, on_bytes, step_bytes)
    replacements, bytes_before = [], 0
    for group in _groups(work, round_.end_offset):
        action = _rewrite(stored, work, round_, group, on_bytes, step_bytes)
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
    """The store of the extents, and the spool with fetched bytes."""

    store: Store
    spool: Spool | None

    def source(self, piece: Piece) -> Source:
        return Source(self.store, [piece], self.spool)


# --- 1: the last offset of each key ------------------------------------------------------------------------


def _map_keys(
    stored: _Stored, work: CompactionWork, round_: Round, on_bytes: OnBytes, step_bytes: int
) -> int:
    """Map the keys of the dirty part; return the end of the mapped part."""
    dirty = np.flatnonzero(work.extents.end_offset > work.first_dirty_offset)
    if work.first_dirty_offset >= work.end_offset or not len(dirty):
        return work.end_offset
    piece = work.piece(work.extents.slice(int(dirty[0]), len(work.extents)))
    with stored.source(piece) as source:
        for data, table in read_steps(source, piece, step_bytes):
            end = _map_step(work, round_, data, table, step_bytes)
            if end is not None:
                return end
            on_bytes(len(data))
    return work.end_offset


def _map_step(
    work: CompactionWork, round_: Round, data: memoryview, table: BatchTable, step_bytes: int
) -> int | None:
    """Return the offset of the first record that has no room in the map, or cannot be read; None if there
    is none.
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
    """Yield runs of extents below the end, each of about a segment's size, or a single larger extent."""
    count = int(np.searchsorted(work.extents.base_offset, end_offset, side="left"))
    for start, stop in cut(work.extents.column("size")[:count], work.config.segment_bytes, max(1, count)):
        yield work.extents.slice(start, stop)


def _rewrite(
    stored: _Stored,
    work: CompactionWork,
    round_: Round,
    group: ExtentColumns,
    on_bytes: OnBytes,
    step_bytes: int,
) -> ReplaceExtents | None:
    """Return the replacement of a run; None if nothing changes."""
    piece = work.piece(group)
    codec = codec_of(work.config.compression_type)
    unchanged = 0
    with MergedSegments(stored.store, piece) as output, stored.source(piece) as source:
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
            on_bytes(size)
        if unchanged >= 0:
            return None
        added = output.finish()
    return replacement(group, added, topic_id=work.topic_id, partition=work.partition)


def _copy_first(stored: _Stored, piece: Piece, count: int, output: MergedSegments, step_bytes: int) -> None:
    """Copy the first steps of a piece unchanged."""
    with stored.source(piece) as source:
        for _, (data, table) in zip(range(count), read_steps(source, piece, step_bytes), strict=False):
            output.write(kept_batches(data, table, 0))


def _where(work: CompactionWork, table: BatchTable) -> str:
    first = int(table.base_offset[0]) if len(table) else work.first_dirty_offset
    return f"{work.topic}-{work.partition} from offset {first}"


# --- compact -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CompactedTopic:
    """The results for a topic.

    Fields:
        partitions: compacted, or due in a dry run.
        clean_bytes, dirty_bytes: of these partitions, before the first round.
        rounds: published rounds.
        bytes_before, bytes_after: of the replaced extents, and of their replacements.
        records_read: the removable records; the next fields are parts of them.
        superseded: a later record had their key; keyless: removed, without a key.
        tombstones_removed: past their delete horizon; tombstones_kept: as of the last round.
        left_out: rounds that were not published, since the partition changed concurrently.
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
        """Return the number of records removed for any reason."""
        return self.superseded + self.keyless + self.tombstones_removed


class CompactionReport(RewriteReport[CompactedTopic]):
    """The results for the topics with cleanup.policy=compact."""


def compact(
    metadata: MetadataLog,
    clock: Clock,
    topics: Collection[str] | None = None,
    limits: CompactionLimits | None = None,
    *,
    dry_run: bool = False,
    raises: bool = True,
    meter: Meter | None = None,
    run: RunWorks[CompactionWork, CompactionResult] | None = None,
    progress: OnProgress = ignore_progress,
) -> CompactionReport:
    """Keep the last record of each key, in the topics whose cleanup.policy has compact.

    Args:
        topics: None: all of them, internal ones too.
        limits: when partitions are compacted; by default all that can be.
        dry_run: only report the first works.
        raises: raise an error at the end for unreadable partitions; else only report them.
        meter: the budget; None: no limit.
        run: runs works; by default in this process, one by one.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: NOT_COMPACTED, the policy of a topic in `topics` has no compact; `topics` is a
            str.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine maintains the root.
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, damaged or newer; the
            other partitions were compacted. UnreadableSegmentError: a segment is unreadable; the same, unless
            the storage did not answer. RefusedTopicError: the storage refuses the directory of a topic; the
            same.
        StorageError, FatalStorageError: see WorkLoop.run.
    """
    limits, store = limits or CompactionLimits(), metadata.store
    first = metadata.refresh(force=True)
    names = _names(first, topics)
    report = CompactionReport({name: CompactedTopic() for name in names})
    now_ms = (shown_now_ms if dry_run else earlier_now_ms)(store, clock)
    works = choose_compactions(first, now_ms, limits, names)
    for work in works:
        counts = report.topics[work.topic]
        counts.partitions += 1
        counts.clean_bytes += work.clean_bytes
        counts.dirty_bytes += work.dirty_bytes
    if not dry_run and works:
        meter = meter or Meter(NO_LIMIT, clock)
        job = _Compacting(metadata, clock, limits, report)
        run = run or partial(run_each, run_compaction, store, clock, on_read_ahead=meter.rest)
        loop = WorkLoop(metadata, job, report, meter, run, progress)
        loop.run()
        if raises and loop.failed:
            raise loop.failed[0]
    return report


def _names(image: Image, topics: Collection[str] | None) -> list[str]:
    if topics is None:
        return [name for name in sorted(image.topics) if is_compacted(image.topics[name], image)]
    names = named_topics(image, topics)
    for name in names:
        if not is_compacted(image.topics[name], image):
            raise InvalidRequestError(
                "NOT_COMPACTED",
                f"topic {name!r}: found a cleanup.policy without compact, expected one with it",
                fix="omit the topic, or set its policy: "
                f"sparklog topics alter --topic {name} --config cleanup.policy=compact",
            )
    return names


class _Compacting(Job[CompactionWork, CompactionResult]):
    def __init__(
        self, metadata: MetadataLog, clock: Clock, limits: CompactionLimits, report: CompactionReport
    ) -> None:
        self._metadata, self._clock, self._limits, self._report = metadata, clock, limits, report
        self._tombstones: dict[PartitionKey, int] = {}  # kept by the last round

    def choose(self, image: Image, since: Image, skip: frozenset[PartitionKey]) -> Sequence[CompactionWork]:
        now_ms = earlier_now_ms(self._metadata.store, self._clock)
        limits = replace(self._limits, skip=self._limits.skip | skip)
        return choose_compactions(image, now_ms, limits, self._report.topics, since=since)

    def publish(self, work: CompactionWork, result: CompactionResult) -> Outcome:
        if not publish_compaction(self._metadata, result):
            self.count_left_out(work)
            return Outcome(is_progress=False)
        self._count(self._report.topics[work.topic], result)
        if result.cleaned == work.cleaned:  # no further progress
            return Outcome(is_progress=False, done=[work.pieces[0].key])
        return Outcome(is_progress=True)

    def count_left_out(self, work: CompactionWork) -> None:
        self._report.topics[work.topic].left_out += 1

    def _count(self, counts: CompactedTopic, result: CompactionResult) -> None:
        records, key = result.counts, result.work.pieces[0].key
        counts.rounds += 1
        counts.bytes_before += result.bytes_before
        counts.bytes_after += sum(extent.size for action in result.replacements for extent in action.added)
        counts.records_read += records.read
        counts.superseded += records.superseded
        counts.keyless += records.keyless
        counts.tombstones_removed += records.tombstones_removed
        counts.tombstones_kept += records.tombstones_kept - self._tombstones.get(key, 0)
        self._tombstones[key] = records.tombstones_kept


def publish_compaction(metadata: MetadataLog, result: CompactionResult) -> bool:
    """Publish a round as a whole; return False if it no longer applies.

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
