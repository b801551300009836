"""The batches that a round of compaction makes of those that are stored.

A batch all of whose records stay keeps its bytes. Of others the records that stay are laid out anew, with
their offsets, timestamps, keys, values and headers, byte for byte; an empty batch is left out. Those, and
what is small, are put together with what follows them: a batch for each record that is left would cost 61
bytes and nine tenths of the speed of reading.

Invariants: offsets and their order stay what they are; so does the offset with which the last batch of the
    round ends, be it empty, so that readers get beyond it. Control batches keep their bytes, and so do
    records beyond the round's end.
    A batch with a delete horizon has it in the place of its first timestamp, to which its records' timestamps
    are relative. Log append time is one of a whole batch: those are not put together.
    Of batches that were put together the image knows the producers (metadata/model/sequences.py); they are
    in no header any more, and neither is that they were written in transactions.
Not here: which records stay (surviving.py), where the batches go (compact.py).
Concurrency: pure functions, but for the round's counts.
Sources: Kafka MemoryRecords.filterTo; KIP-534.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sparklog.format.batch_table import BatchTable
from sparklog.format.byte_views import ByteViews, Int64Array
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.decode import ParsedBodies, parse_bodies
from sparklog.format.encode import Compressor, EncodeOptions
from sparklog.format.encoded_batches import BatchList, EncodedBatches
from sparklog.format.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_MASK,
    MAX_INT32,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP_MS,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from sparklog.format.record_layout import HeaderBytes, Rows, lay_out, varint_sizes
from sparklog.log.plain_parts import plain_parts
from sparklog.maintenance.rewrite import SMALL_BATCH_BYTES, kept_batches
from sparklog.maintenance.surviving import OPAQUE_MASK, BoolArray, Round, Survivors, surviving
from sparklog.metadata import NO_DELETE_HORIZON_MS

JOINED_BYTES = 64 << 10  # of batches that are put together: as many as a writer's


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of some batches.

    Fields:
        parts: the batches, in order; none, if nothing of them is left.
        is_changed: is anything not as it was?
    """

    parts: list[EncodedBatches]
    is_changed: bool


def compacted(
    round_: Round, data: memoryview, table: BatchTable, codec: Codec | None, step_bytes: int, where: str
) -> Compacted:
    """Compact the batches of a buffer.

    Args:
        table: with absolute offsets.
        codec: of batches that are laid out anew; None: their own.
    Raises: CorruptLogError for what cannot be decoded.
    """
    parts: list[EncodedBatches] = []
    is_changed = False
    opaque = (table.attributes & OPAQUE_MASK) != 0
    edges = [0, *(np.flatnonzero(np.diff(opaque)) + 1).tolist(), len(table)]
    for start, stop in pairwise(edges):
        stretch = table.select(slice(start, stop))
        if opaque[start]:
            parts.append(kept_batches(data, stretch, 0))
            continue
        for body, plain, indices in plain_parts(data, stretch, step_bytes, where):
            parsed = parse_bodies(body, plain, where=where)
            found = surviving(round_, parsed, plain)
            made = _Part(round_, data, stretch.select(indices), parsed, found, codec)
            parts += made.batches()
            is_changed |= made.is_changed
    return Compacted(parts, is_changed)


class _Part:
    """Batches that were parsed together; `table` has them as they are stored."""

    def __init__(
        self,
        round_: Round,
        data: memoryview,
        table: BatchTable,
        parsed: ParsedBodies,
        found: Survivors,
        codec: Codec | None,
    ) -> None:
        self._data, self._table, self._parsed, self._found, self._codec = data, table, parsed, found, codec
        beyond = table.last_offset >= round_.end_offset
        is_last = table.last_offset == round_.end_offset - 1
        self._is_empty = (found.counts == 0) & ~beyond
        whole = (found.counts == table.record_count) & ~found.is_new_horizon & ~self._is_empty
        # An empty batch at the end of a round before stays as it is while it is the last one.
        whole |= is_last & self._is_empty & (table.record_count == 0)
        self._is_whole = whole
        self._left = np.flatnonzero(~self._is_empty | is_last)
        self._may_join = (
            ((table.attributes & TIMESTAMP_TYPE_MASK) == 0)
            & ~beyond
            & ~self._is_empty
            & (~whole | (table.size < SMALL_BATCH_BYTES))
        )
        self.is_changed = len(self._left) < len(table) or not bool(whole.all())

    def batches(self) -> list[EncodedBatches]:
        """In order."""
        starts = self._group_starts()
        if not len(starts):
            return []
        sizes = np.diff(starts, append=len(self._left))
        first = self._left[starts]
        keeps = (sizes == 1) & self._is_whole[first]
        self.is_changed |= not bool(keeps.all())
        made: list[EncodedBatches] = []
        laid_out = self._laid_out(starts, ~keeps)
        for start, stop in _stretches(keeps, first):
            if keeps[start]:
                stretch = slice(int(first[start]), int(first[stop - 1]) + 1)
                made.append(kept_batches(self._data, self._table.select(stretch), 0))
            else:
                made.append(self._encoded(starts, start, stop, laid_out))
        return made

    def _group_starts(self) -> Int64Array:
        """Where in `_left` begins what becomes one batch."""
        left, table = self._left, self._table
        joins = self._may_join[left[1:]] & self._may_join[left[:-1]]
        same = (table.attributes & ~(DELETE_HORIZON_MASK | TRANSACTIONAL_MASK))[left]
        horizon = self._found.horizon_ms[left]
        joins &= (same[1:] == same[:-1]) & (horizon[1:] == horizon[:-1])
        if not joins.any():
            return np.arange(len(left))
        ends = np.cumsum(self._body_bytes()[left])
        last_offset = table.last_offset[left]
        runs = np.flatnonzero(~np.concatenate([[False], joins]))
        starts: list[int] = []
        for start, stop in zip(runs.tolist(), [*runs[1:].tolist(), len(left)], strict=True):
            at = start
            while at < stop:
                starts.append(at)
                done = int(ends[at - 1]) if at else 0
                full = int(np.searchsorted(ends, done + JOINED_BYTES, side="right"))
                last = int(table.base_offset[left[at]]) + MAX_INT32
                near = int(np.searchsorted(last_offset, last, side="left"))
                at = max(at + 1, min(stop, full, near))
        return np.array(starts, np.int64)

    def _body_bytes(self) -> Int64Array:
        """About how many bytes of records stay of each batch."""
        bodies = self._parsed.bodies
        size = bodies.end - bodies.start
        share: Int64Array = size * self._found.counts // np.maximum(1, self._table.record_count)
        return share

    def _laid_out(self, starts: Int64Array, made_anew: BoolArray) -> "_LaidOut":
        """The records of all batches that are made anew, one after the other."""
        table, found, fields = self._table, self._found, self._parsed.fields
        group_of_batch = np.full(len(table), -1, np.int64)
        groups = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(self._left)))
        group_of_batch[self._left] = np.where(made_anew[groups], groups, -1)
        group_of_row = group_of_batch[self._parsed.batch_of]
        rows = np.flatnonzero(found.records & (group_of_row >= 0))
        batch, group = self._parsed.batch_of[rows], group_of_row[rows]
        bounds = np.searchsorted(group, np.arange(len(starts) + 1))
        timestamp = table.first_timestamp_ms[batch] + fields.timestamp_delta[rows]
        horizon = found.horizon_ms[self._left[starts]]
        first = np.full(len(starts), NO_TIMESTAMP_MS, np.int64)
        filled = bounds[1:] > bounds[:-1]
        first[filled] = timestamp[bounds[:-1][filled]]
        has_horizon = filled & (horizon != NO_DELETE_HORIZON_MS)
        first[has_horizon] = horizon[has_horizon]
        newest = table.max_timestamp_ms[self._left[starts]].copy()
        if len(rows):
            is_create_time = (table.attributes[self._left[starts]] & TIMESTAMP_TYPE_MASK) == 0
            largest = np.maximum.reduceat(timestamp, bounds[:-1][filled])
            newest[filled] = np.where(is_create_time[filled], largest, newest[filled])
        base = table.base_offset[self._left[starts]]
        offset = table.base_offset[batch] + fields.offset_delta[rows]
        records = lay_out(_rows(self._parsed, rows), timestamp - first[group], offset - base[group])
        return _LaidOut(
            records.data.data,
            records.start[bounds].astype(np.int64),
            np.diff(bounds),
            first,
            newest,
            has_horizon,
        )

    def _encoded(self, starts: Int64Array, start: int, stop: int, laid_out: "_LaidOut") -> EncodedBatches:
        """The groups [start:stop], all of them made anew."""
        table, left = self._table, self._left
        output = BatchList()
        spans = []
        for group in range(start, stop):
            begin, end = int(starts[group]), int(starts[group + 1]) if group + 1 < len(starts) else len(left)
            first, last = int(left[begin]), int(left[end - 1])
            attributes = int(table.attributes[first])
            body, codec = self._compressed(Codec(attributes & CODEC_MASK), laid_out.body(group))
            span = int(table.last_offset[last] - table.base_offset[first]) + 1
            is_one = first == last
            dropped = CODEC_MASK | DELETE_HORIZON_MASK | (0 if is_one else TRANSACTIONAL_MASK)
            header = BatchHeader(
                base_offset=int(table.base_offset[first]),
                partition_leader_epoch=int(table.partition_leader_epoch[first]),
                attributes=codec.value
                | (attributes & ~dropped)
                | (DELETE_HORIZON_MASK if laid_out.has_horizon[group] else 0),
                last_offset_delta=span - 1,
                first_timestamp_ms=int(laid_out.first_timestamp_ms[group]),
                max_timestamp_ms=int(laid_out.max_timestamp_ms[group]),
                producer_id=int(table.producer_id[first]) if is_one else NO_PRODUCER_ID,
                producer_epoch=int(table.producer_epoch[first]) if is_one else NO_PRODUCER_EPOCH,
                base_sequence=int(table.base_sequence[first]) if is_one else NO_SEQUENCE,
                record_count=int(laid_out.counts[group]),
            )
            output.add(header, body)
            spans.append(span)
        made = output.finished()
        return EncodedBatches(
            data=made.data,
            size_bytes=made.size_bytes,
            record_count=int(made.base_offset[-1]) + spans[-1] - int(made.base_offset[0]),
            max_timestamp_ms=made.max_timestamp_ms,
            position=made.position,
            size=made.size,
            base_offset=made.base_offset,
            batch_record_count=np.array(spans, np.int64),
            batch_max_timestamp_ms=made.batch_max_timestamp_ms,
        )

    def _compressed(self, own: Codec, body: memoryview) -> tuple[BytesLike, Codec]:
        codec = own if self._codec is None else self._codec
        if not len(body):
            return body, Codec.NONE
        return Compressor(EncodeOptions(codec=codec, max_message_bytes=MAX_INT32)).compress(body)


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """Records of batches that are made anew; one row a group, those that are not are empty."""

    data: memoryview
    start: Int64Array
    counts: Int64Array
    first_timestamp_ms: Int64Array
    max_timestamp_ms: Int64Array
    has_horizon: BoolArray

    def body(self, group: int) -> memoryview:
        return self.data[int(self.start[group]) : int(self.start[group + 1])]


def _rows(parsed: ParsedBodies, rows: Int64Array) -> Rows:
    """Some records as they stand in their bodies."""
    data = parsed.bodies.data
    fields = type(parsed.fields)(*(column[rows] for column in parsed.fields))
    headers = None
    rest = np.zeros(len(rows), np.int64)
    for length in (fields.key_length, fields.value_length):
        rest += varint_sizes(length) + np.maximum(length, 0)
    if fields.header_count.any():
        size = fields.end - fields.header_position
        headers = HeaderBytes(fields.header_count, ByteViews.at(data, fields.header_position, size))
        rest += varint_sizes(fields.header_count) + size
    else:
        rest += 1
    return Rows(
        ByteViews.at(data, fields.key_position, fields.key_length),
        ByteViews.at(data, fields.value_position, fields.value_length),
        headers,
        rest,
    )


def _stretches(keeps: BoolArray, first: Int64Array) -> list[tuple[int, int]]:
    """Groups that are written together: made anew, or kept and next to each other."""
    parts = (keeps[1:] != keeps[:-1]) | (keeps[1:] & (first[1:] != first[:-1] + 1))
    edges = [0, *(np.flatnonzero(parts) + 1).tolist(), len(keeps)]
    return list(pairwise(edges))


def codec_of(compression_type: str) -> Codec | None:
    """That of a topic's compression.type; None: the writer's own."""
    return None if compression_type == "producer" else Codec.from_name(compression_type)
