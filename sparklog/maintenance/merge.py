"""Merging: the extents of a work become as few as they can be.

Pieces that are small share a new segment, sorted by partition, laid out as a writer's; the others get
segments of their own, laid out as Kafka's.
Invariants: what is returned may be published: the bytes are durable, and hold, offset for offset, the records
    of the extents that they replace.
Not here: which extents (choose.py), what becomes of a batch (rewrite.py), publishing (publish.py).
Concurrency: works may run beside each other, in any process.
After a crash: files that nothing refers to; nothing is lost, and the work is chosen again.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.format.encoded_batches import join_batches, parts_within
from sparklog.log.config import INT_MAX
from sparklog.log.writer import LogWriter
from sparklog.maintenance.merged_segment import MergedSegment
from sparklog.maintenance.rewrite import STEP_BYTES, Source, rewritten
from sparklog.maintenance.spool import Pace, Spool, no_pace, with_spool
from sparklog.maintenance.uncleanable import failure_of
from sparklog.maintenance.work import MergeWork, Piece
from sparklog.metadata import NO_HORIZON, DraftExtent, Extent, ReplaceExtents, replacement, sequenced
from sparklog.storage import Store

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
