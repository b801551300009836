"""A round of compaction over one partition: anywhere, from a work to replacements that may be published.

1. The dirty part is read; of each key the last offset is remembered, as long as there is room.
2. Everything up to where that came is read, and what survives is written to segments of the partition's own,
   in Kafka's layout, since there are gaps. Extents of which nothing changes stay where they are.

Invariants: what is returned is durable, and belongs together: tombstones go, or get their horizon, because
    all before them was seen. So it is published as a whole, or not at all.
Memory: a few times `step_bytes`, what one batch may decompress to, and the map of keys.
Not here: which partitions (choose_compactions.py), which records (surviving.py), publishing (compact.py).
Concurrency: works may run beside each other, in any process.
After a crash: files that nothing refers to; nothing is lost, and the work is chosen again.
Sources: Kafka Cleaner (buildOffsetMap, cleanSegments).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.format.batch_table import BatchTable
from sparklog.format.decode import parse_bodies
from sparklog.format.encoded_batches import EncodedBatches, parts_within
from sparklog.format.key_hashes import SEED_BYTES, KeyHasher
from sparklog.log.config import INT_MAX
from sparklog.log.plain_parts import plain_parts
from sparklog.maintenance.choose_compactions import CompactionWork
from sparklog.maintenance.compacted_batches import codec_of, compacted
from sparklog.maintenance.merged_segment import MergedSegment
from sparklog.maintenance.offset_map import OffsetMap
from sparklog.maintenance.rewrite import STEP_BYTES, Source, kept_batches, read_steps
from sparklog.maintenance.sober_time import both_now_ms
from sparklog.maintenance.spool import Pace, Spool, no_pace, with_spool
from sparklog.maintenance.surviving import OPAQUE_MASK, Counts, Round
from sparklog.maintenance.uncleanable import failure_of
from sparklog.maintenance.work import Piece
from sparklog.metadata import Cleaned, Extent, ExtentColumns, ReplaceExtents, replacement
from sparklog.storage import Store

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
