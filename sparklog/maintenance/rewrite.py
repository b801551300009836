"""The batches of a piece, read, checked, and put in their new form.

A batch that is large enough keeps its bytes: only its base offset is set, which no CRC covers. Small ones
that follow each other are decoded and encoded again as full ones: a batch for each record costs 61 bytes and
nine tenths of the speed of reading.

Invariants: every record keeps its offset, key, value, headers, timestamp and type of timestamp; the CRC of
    every batch is verified before it is written anywhere. Batches that say more than their records do
    (markers, batches with a delete horizon, with gaps) keep their bytes, and so does what cannot be decoded:
    this is not the place to judge it. So do header keys that are not UTF-8, which decoding replaces. That
    records were written in a transaction says nothing any more once they are in the log.
    With log append time a batch has one timestamp for all: those are never put together.
Memory: a few times `step_bytes`, MAX_EXPANDED_BYTES, and what one batch may decompress to.
Not here: which extents (choose.py), where the batches go (merge.py).
Concurrency: a generator belongs to one thread; it holds a few open files.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import SparklogError
from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import Codec
from sparklog.format.decode import decode_records
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.record_batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    MAX_INT32,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    set_base_offsets,
)
from sparklog.format.schema import RecordColumns
from sparklog.log.fetched import Fetched
from sparklog.log.plain_parts import plain_parts
from sparklog.log.read_ahead import ReadAhead
from sparklog.log.read_plan import extent_span
from sparklog.log.reader import read_step
from sparklog.log.segment_file import SegmentFile, SegmentFiles
from sparklog.log.span import Span
from sparklog.log.stored_batches import Stretches, scan_stretches
from sparklog.maintenance.spool import Spool
from sparklog.maintenance.work import Piece
from sparklog.metadata import Extent
from sparklog.storage import Store

STEP_BYTES = 4 << 20
SMALL_BATCH_BYTES = 8 << 10  # larger ones gain little: a header is less than a hundredth of them
# Of batches that are put together, as they are written: more only where compression.type has changed to one
# that compresses less. Larger: more memory; smaller: more of them keep the codec that they have.
MAX_EXPANDED_BYTES = 64 << 20
_GATHERED = 2048
_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK


class Source:
    """The segments that pieces lie in. Of a remote store's, what no spool has: small pieces are fetched
    first, all together, and large ones ahead, in their order.
    """

    def __init__(self, store: Store, pieces: Sequence[Piece], spool: Spool | None = None) -> None:
        """`spool`: what it has is not asked for again."""
        self.files = SegmentFiles(store)
        self._spool = spool
        self._ahead: ReadAhead | None = None
        self._fetched: Fetched | None = None
        if store.traits.is_remote:
            spans = (
                extent_span(piece.topic, extent)
                for piece in pieces
                for extent in piece.extents.extents(piece.topic_id, piece.partition)
            )
            if spool is not None:
                spans = (span for span in spans if not spool.has(span))
            if all(piece.is_shared for piece in pieces):
                self._fetched = Fetched(store, spans)
            else:
                self._ahead = ReadAhead(self.files, spans)

    def open(self, span: Span, position: int) -> SegmentFile:
        """The span's segment, about to be read from `position` on."""
        if self._ahead is not None:
            self._ahead.reached(span, position)
        return self.files.open(span)

    def read_into(self, span: Span, buffer: memoryview) -> None:
        """All of a span."""
        if self._spool is not None and self._spool.read_into(span, buffer):
            return
        if self._fetched is None or not self._fetched.read_into(span, buffer):
            self.open(span, span.position).read_into(span, span.position, buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()


def rewritten(
    source: Source, piece: Piece, *, origin: int = 0, step_bytes: int = STEP_BYTES
) -> Iterator[EncodedBatches]:
    """The batches of all extents, in order, their base offsets counted from `origin`.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, is not what metadata say,
            or newer. UnreadableSegmentError: the storage does not give it.
    """
    for data, table in read_steps(source, piece, step_bytes):
        where = f"{piece.topic}-{piece.partition} from offset {int(table.base_offset[0])}"
        for run, is_small in _runs(table):
            part = table.select(run)
            made = _put_together(data, part, piece, where, step_bytes, origin) if is_small else None
            if made is None:
                yield kept_batches(data, part, origin)
            else:
                yield from made


# --- reading -----------------------------------------------------------------------------------------------


def read_steps(source: Source, piece: Piece, step_bytes: int) -> Iterator[tuple[memoryview, BatchTable]]:
    """(buffer, its whole batches) of about `step_bytes`; offsets in the table are absolute."""
    group: list[Extent] = []
    size = 0
    for extent in piece.extents.extents(piece.topic_id, piece.partition):
        if extent.size > step_bytes:
            if group:
                yield _read_group(source, piece, group)
            group, size = [], 0
            yield from _read_large(source, piece, extent, step_bytes)
            continue
        if group and (size + extent.size > step_bytes or len(group) == _GATHERED):
            yield _read_group(source, piece, group)
            group, size = [], 0
        group.append(extent)
        size += extent.size
    if group:
        yield _read_group(source, piece, group)


def _read_group(source: Source, piece: Piece, group: Sequence[Extent]) -> tuple[memoryview, BatchTable]:
    """Extents that follow each other, at once."""
    data = memoryview(bytearray(sum(extent.size for extent in group)))
    at = 0
    for extent in group:
        span = extent_span(piece.topic, extent)
        source.read_into(span, data[at : at + extent.size])
        at += extent.size
    sizes = [extent.size for extent in group]
    stretches = _stretches(piece, group, sizes, group[0].position, begins_at=group[0].base_offset)
    return data, _absolute(*scan_stretches(data, stretches))


def _read_large(
    source: Source, piece: Piece, extent: Extent, step_bytes: int
) -> Iterator[tuple[memoryview, BatchTable]]:
    """One extent, step by step."""
    span = extent_span(piece.topic, extent)
    position, begins_at = span.position, extent.base_offset
    while position < span.end_position:
        data = read_step(source.open(span, position), span, position, step_bytes)
        stretches = _stretches(piece, [extent], [len(data)], position, begins_at=begins_at)
        table = _absolute(*scan_stretches(data, stretches))
        position += len(data)
        begins_at = int(table.last_offset[-1]) + 1
        yield data, table


def _stretches(
    piece: Piece, group: Sequence[Extent], sizes: list[int], position: int, *, begins_at: int
) -> Stretches:
    """What metadata say of the bytes: `sizes` of each extent, the first from `position` on."""
    last = group[-1]
    start = last.position if len(group) > 1 else position

    def place(index: int) -> tuple[Span, int]:
        return extent_span(piece.topic, group[index]), group[index].position if index else position

    return Stretches(
        size=sizes,
        offset_delta=[extent.offset_delta for extent in group],
        segment=[extent.segment for extent in group],
        start_offset=[extent.base_offset for extent in group],
        end_offset=[extent.end_offset for extent in group],
        begins_at=begins_at,
        reaches_end=start + sizes[-1] == last.position + last.size,
        is_cut=False,
        place=place,
    )


def _absolute(table: BatchTable, deltas: npt.NDArray[np.int64]) -> BatchTable:
    return dataclasses.replace(
        table, base_offset=table.base_offset + deltas, last_offset=table.last_offset + deltas
    )


# --- writing -----------------------------------------------------------------------------------------------


def _runs(table: BatchTable) -> Iterator[tuple[slice, bool]]:
    """Stretches of batches that are to be put together (True), and of those between them."""
    small = (
        (table.size < SMALL_BATCH_BYTES)
        & (table.attributes & _KEPT == 0)
        & (table.record_count == table.last_offset - table.base_offset + 1)
    )
    same = table.attributes & ~TRANSACTIONAL_MASK
    joins = (
        small[1:]
        & small[:-1]
        & (same[1:] == same[:-1])
        & (table.base_offset[1:] == table.last_offset[:-1] + 1)
    )
    together = np.zeros(len(table), np.bool_)
    together[1:] |= joins
    together[:-1] |= joins
    # A run ends where what follows does not join, unless both are kept as they are.
    breaks = np.flatnonzero(~joins & (together[1:] | together[:-1])) + 1
    edges = [0, *breaks.tolist(), len(table)]
    for start, stop in pairwise(edges):
        yield slice(start, stop), bool(together[start])


def kept_batches(view: memoryview, table: BatchTable, origin: int) -> EncodedBatches:
    """Consecutive batches with their bytes as they are, but for the base offset."""
    start, stop = int(table.position[0]), int(table.position[-1] + table.size[-1])
    data = view[start:stop]
    position, base_offset = table.position - start, table.base_offset - origin
    set_base_offsets(data, position, base_offset, leader_epoch=None)
    return EncodedBatches(
        data=[data],
        size_bytes=len(data),
        record_count=int(table.last_offset[-1] - table.base_offset[0]) + 1,
        max_timestamp_ms=int(table.max_timestamp_ms.max()),
        position=position,
        size=table.size,
        base_offset=base_offset,
        batch_record_count=table.last_offset - table.base_offset + 1,
        batch_max_timestamp_ms=table.max_timestamp_ms,
    )


def _put_together(
    view: memoryview, table: BatchTable, piece: Piece, where: str, step_bytes: int, origin: int
) -> list[EncodedBatches] | None:
    """Small batches as full ones; None if they cannot be decoded, or would be something else then."""
    made, expanded = [], 0
    try:
        for data, part, indices in plain_parts(view, table, step_bytes, where):
            base = table.base_offset[indices]
            records = decode_records(data, part, include_headers=True, where=where)
            if records.headers is not None and _has_replaced_keys(records.headers):
                return None
            columns = RecordColumns(
                key=records.key,
                value=records.value,
                timestamp_ms=records.timestamp_ms,
                headers=records.headers,
            )
            made.append(encode_batches(columns, _options(piece, table), base_offset=int(base[0]) - origin))
            expanded += made[-1].size_bytes
            if expanded > MAX_EXPANDED_BYTES:
                return None
    except SparklogError:
        return None
    return made


def _has_replaced_keys(headers: pa.ListArray) -> bool:
    """Has any key the character that stands for what is not UTF-8? Who wrote it there cannot be told."""
    return bool(pc.any(pc.match_substring(headers.flatten().field("key"), "\ufffd")).as_py())


def _options(piece: Piece, table: BatchTable) -> EncodeOptions:
    """As the topic's writers would; but no record is too large any more."""
    config = piece.config
    codec = Codec(int(table.codec[0]))
    if config.compression_type != "producer":
        codec = Codec.from_name(config.compression_type)
    return EncodeOptions(codec=codec, max_message_bytes=MAX_INT32)
