"""Rewrites stored batches in a round of compaction.

A batch that keeps all of its records keeps its bytes. Other batches are re-encoded with the remaining
records: offsets, timestamps, keys, values and headers are the same, byte for byte; an empty batch is left
out. Re-encoded and small batches are joined with the next ones: a batch per remaining record would cost 61
bytes each and nine tenths of the read speed.

Invariants: offsets and their order do not change; neither does the end offset of the round's last batch, even
    if it is empty, so that readers get beyond it. Control batches keep their bytes, and so do
    records beyond the round's end.
    A batch with a delete horizon has it in the place of its first timestamp, to which its records' timestamps
    are relative. Log append time belongs to a whole batch: such batches are not joined.
    The image knows the producers of joined batches (metadata/model/sequences.py); their headers have no
    producer and no transactional bit any more.
Not here: writing the batches (compaction.py).
Concurrency: pure functions, but for the round's counts.
Sources: Kafka MemoryRecords.filterTo; KIP-534.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparklog.format.batch_table import BatchTable
from sparklog.format.byte_views import ByteViews, Int64Array, UInt64Array
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.decode import ParsedBodies, parse_bodies
from sparklog.format.encode import (
    BatchList,
    Compressor,
    EncodedBatches,
    EncodeOptions,
    HeaderBytes,
    Rows,
    lay_out,
    varint_sizes,
)
from sparklog.format.key_hashes import Hashes, KeyHasher
from sparklog.format.record_batch import (
    CODEC_MASK,
    CONTROL_MASK,
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
from sparklog.log.reader import plain_parts
from sparklog.log.setting import LONG_MAX
from sparklog.maintenance.rewrite import SMALL_BATCH_BYTES, kept_batches
from sparklog.metadata import NO_DELETE_HORIZON_MS

# --- offset map --------------------------------------------------------------------------------------
#
# Invariants: `latest` returns the largest offset that was `put` for a key; no key is ever evicted. A full
#     table accepts no more keys, and reports the first row without room.
# Memory: 24 bytes a slot, as Kafka's; the slots are a power of two, of which nine tenths are used.
# Not here: hashing (format/key_hashes.py). Two keys of one hash would be one key here.
# Concurrency: one thread.
# Sources: Kafka SkimpyOffsetMap, log.cleaner.io.buffer.load.factor.


SLOT_BYTES = 24
LOAD_FACTOR = 0.9
MIN_SLOTS = 16
_U = np.uint64


class OffsetMap:
    """The last offset of each key, in a table of fixed size: open addressing over NumPy columns."""

    def __init__(self, buffer_bytes: int, most_keys: int) -> None:
        """`most_keys`: the largest number of keys; if the buffer has room for more, the table is smaller."""
        wanted = min(buffer_bytes // SLOT_BYTES, 2 * most_keys)
        slots = max(MIN_SLOTS, 1 << max(0, wanted.bit_length() - 1))
        if slots < wanted and 2 * slots * SLOT_BYTES <= buffer_bytes:
            slots *= 2
        self._mask = _U(slots - 1)
        self._room = int(slots * LOAD_FACTOR)
        self._count = 0
        self._high = np.zeros(slots, np.uint64)
        self._low = np.zeros(slots, np.uint64)
        self._next = np.zeros(slots, np.int64)  # the offset after the key's; 0: the slot is free

    def __len__(self) -> int:
        return self._count

    def put(self, keys: Hashes, offset: Int64Array) -> int:
        """Insert the keys of these offsets, which ascend, and are above all earlier ones.

        Returns: the number of inserted rows; fewer than given when the table is full.
        """
        rows = len(offset)
        if self._count + rows > self._room:
            rows = self._fitting(keys)
            keys, offset = keys.select(slice(0, rows)), offset[:rows]
        following = offset + 1
        slot, step = self._start(keys)
        pending = np.arange(rows)
        while len(pending):
            at = slot[pending]
            is_free = self._next[at] == 0
            if is_free.any():
                self._claim(keys, following, pending[is_free], at[is_free])
            same = (self._high[at] == keys.high[pending]) & (self._low[at] == keys.low[pending])
            self._raise(following, pending[same], at[same])
            pending = pending[~same]
            slot[pending] = (slot[pending] + step[pending]) & self._mask
        return rows

    def latest(self, keys: Hashes) -> Int64Array:
        """Return the last offset of each key; -1: not known."""
        found = np.zeros(len(keys.high), np.int64)
        if not self._count:
            return found - 1
        slot, step = self._start(keys)
        pending = np.arange(len(found))
        while len(pending):
            at = slot[pending]
            following = self._next[at]
            same = (self._high[at] == keys.high[pending]) & (self._low[at] == keys.low[pending])
            same &= following > 0
            found[pending[same]] = following[same]
            pending = pending[~same & (following > 0)]
            slot[pending] = (slot[pending] + step[pending]) & self._mask
        return found - 1

    def _start(self, keys: Hashes) -> tuple[UInt64Array, UInt64Array]:
        """Return the first slot to probe, and the step: odd, so that every slot is reached."""
        return keys.high & self._mask, keys.low | _U(1)

    def _fitting(self, keys: Hashes) -> int:
        """Return the number of rows that fit."""
        is_new = np.flatnonzero(self.latest(keys) < 0)
        pairs = np.stack([keys.high[is_new], keys.low[is_new]], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        room = self._room - self._count
        if len(first) <= room:
            return len(keys.high)
        return int(is_new[np.sort(first)[room]])

    def _claim(
        self, keys: Hashes, following: Int64Array, rows: npt.NDArray[np.intp], at: UInt64Array
    ) -> None:
        """Assign each free slot to the row that was written to it last."""
        self._next[at] = following[rows]
        won = self._next[at] == following[rows]
        rows, at = rows[won], at[won]
        self._high[at], self._low[at] = keys.high[rows], keys.low[rows]
        self._count += len(rows)

    def _raise(self, following: Int64Array, rows: npt.NDArray[np.intp], at: UInt64Array) -> None:
        """Raise the stored offsets; of rows with one key, NumPy may write any one last."""
        while len(rows):
            lower = self._next[at] < following[rows]
            rows, at = rows[lower], at[lower]
            self._next[at] = following[rows]


# --- surviving ---------------------------------------------------------------------------------------
#
# Decides which records survive a round of compaction, by Kafka's rules, for whole arrays of records.
#
# A record below the end of the mapped part stays if no later one has its key, and
#
#     - it has a value; or
#     - it is a tombstone whose delete horizon has not passed. The first round that could have removed the
#       tombstone sets the horizon, once: delete.retention.ms from then on. It is in the batch's header.
#
# Records without a key are removed: none of them supersedes another. After the end all records stay.
# Invariants: pure. A tombstone is removed only in a round after the one that has read all records before it,
#     so that no deleted value comes back.
# Sources: Kafka Cleaner.shouldRetainRecord, KIP-534.


BoolArray = npt.NDArray[np.bool_]
# Markers are not interpreted. The log only has committed records of transactions, which are like others.
OPAQUE_MASK = CONTROL_MASK


@dataclass(slots=True)
class Counts:
    """Counts of records in a round.

    Fields:
        read, kept: of the removable records, in all batches that were read.
        superseded: a later record has their key.
        keyless: removed, without a key.
        tombstones_removed: past their horizon; tombstones_kept: before it.
    """

    read: int = 0
    kept: int = 0
    superseded: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    tombstones_kept: int = 0

    def add(self, other: "Counts") -> None:
        """Add these counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Round:
    """The rules of a compaction round of one partition, and its results so far.

    Fields:
        keys: the last offset of each key of the dirty part.
        end_offset: the end of the mapped part; records after it do not change.
        now_ms: tombstones with an earlier horizon are removed.
        marked_ms: the time at which new horizons begin, the latest of all clocks.
        horizon_ms: the new horizon, of tombstones that could be removed for the first time.
        latest_horizon_ms: the latest horizon of all kept tombstones.
    """

    hasher: KeyHasher
    keys: OffsetMap
    end_offset: int
    now_ms: int
    marked_ms: int
    delete_retention_ms: int
    counts: Counts = field(default_factory=Counts)
    latest_horizon_ms: int = NO_DELETE_HORIZON_MS

    @property
    def horizon_ms(self) -> int:
        """Return the new horizon of tombstones that this round could have removed."""
        return min(LONG_MAX, self.marked_ms + self.delete_retention_ms)


@dataclass(frozen=True, slots=True)
class Survivors:
    """The surviving records of batches that were parsed together.

    Fields:
        records: a mask of the records that stay.
        counts: the number of remaining records of each batch.
        horizon_ms: the delete horizon of each batch from now on; NO_DELETE_HORIZON_MS: none.
        is_new_horizon: a mask of the batches whose horizon this round sets.
    """

    records: BoolArray
    counts: Int64Array
    horizon_ms: Int64Array
    is_new_horizon: BoolArray


def surviving(round_: Round, parsed: ParsedBodies, table: BatchTable) -> Survivors:
    """Decide on all records of these batches, whose offsets are absolute, and count them."""
    fields, batch_of = parsed.fields, parsed.batch_of
    offset = table.base_offset[batch_of] + fields.offset_delta
    within = offset < round_.end_offset
    has_key, is_tombstone = fields.key_length >= 0, fields.value_length < 0
    superseded = np.zeros(len(offset), np.bool_)
    asked = np.flatnonzero(within & has_key)
    if len(round_.keys) and len(asked):
        hashes = round_.hasher.hash(parsed.bodies.data, fields.key_position[asked], fields.key_length[asked])
        superseded[asked] = round_.keys.latest(hashes) > offset[asked]
    has_horizon = (table.attributes & DELETE_HORIZON_MASK) != 0
    has_come = has_horizon & (table.first_timestamp_ms <= round_.now_ms)
    keyless = within & ~has_key
    expired = within & is_tombstone & has_key & ~superseded & has_come[batch_of]
    stays = ~(superseded | keyless | expired)
    tombstone = stays & within & is_tombstone
    count = len(table)
    has_tombstone = np.bincount(batch_of[tombstone], minlength=count) > 0
    # A batch that reaches beyond the end is read again by the next round.
    is_new = has_tombstone & ~has_horizon & (table.last_offset < round_.end_offset)
    keeps_tombstone = np.bincount(batch_of[stays & is_tombstone], minlength=count) > 0
    horizon = np.where(has_horizon & keeps_tombstone, table.first_timestamp_ms, NO_DELETE_HORIZON_MS)
    horizon[is_new] = round_.horizon_ms
    round_.latest_horizon_ms = max(
        round_.latest_horizon_ms, int(horizon[has_tombstone].max(initial=NO_DELETE_HORIZON_MS))
    )
    round_.counts.add(
        Counts(
            read=int(within.sum()),
            kept=int((stays & within).sum()),
            superseded=int(superseded.sum()),
            keyless=int(keyless.sum()),
            tombstones_removed=int(expired.sum()),
            tombstones_kept=int(tombstone.sum()),
        )
    )
    return Survivors(stays, np.bincount(batch_of[stays], minlength=count), horizon, is_new)


# --- compacted batches -------------------------------------------------------------------------------


JOINED_BYTES = 64 << 10  # of joined batches: the size of a writer's


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compacted form of some batches.

    Fields:
        parts: the batches, in order; empty if no record is left.
        is_changed: true if anything has changed.
    """

    parts: list[EncodedBatches]
    is_changed: bool


def compacted(
    round_: Round, data: memoryview, table: BatchTable, codec: Codec | None, step_bytes: int, where: str
) -> Compacted:
    """Compact the batches of a buffer.

    Args:
        table: with absolute offsets.
        codec: of re-encoded batches; None: their own.
    Raises: CorruptLogError for batches that cannot be decoded.
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
    """Batches that were parsed together; `table` has their stored form."""

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
        # An empty batch at the end of an earlier round stays while it is the last one.
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
        """Return the batches, in order."""
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
        """Return the indices in `_left` at which a new batch begins."""
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
        """Estimate the remaining bytes of records of each batch."""
        bodies = self._parsed.bodies
        size = bodies.end - bodies.start
        share: Int64Array = size * self._found.counts // np.maximum(1, self._table.record_count)
        return share

    def _laid_out(self, starts: Int64Array, made_anew: BoolArray) -> "_LaidOut":
        """Lay out the records of all re-encoded batches, in order."""
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
        """Return the groups [start:stop], all of them re-encoded."""
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
    """Records of re-encoded batches; one row per group, empty for the other groups."""

    data: memoryview
    start: Int64Array
    counts: Int64Array
    first_timestamp_ms: Int64Array
    max_timestamp_ms: Int64Array
    has_horizon: BoolArray

    def body(self, group: int) -> memoryview:
        return self.data[int(self.start[group]) : int(self.start[group + 1])]


def _rows(parsed: ParsedBodies, rows: Int64Array) -> Rows:
    """Return some records with their original bytes."""
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
    """Return ranges of groups that are written together: re-encoded, or kept and adjacent."""
    parts = (keeps[1:] != keeps[:-1]) | (keeps[1:] & (first[1:] != first[:-1] + 1))
    edges = [0, *(np.flatnonzero(parts) + 1).tolist(), len(keeps)]
    return list(pairwise(edges))


def codec_of(compression_type: str) -> Codec | None:
    """Return the codec of a topic's compression.type; None: the writer's own."""
    return None if compression_type == "producer" else Codec.from_name(compression_type)
