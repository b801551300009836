"""Extents in a document as columns: one array for each field, instead of one object for each extent.

    {"type":"append_columns","topics":["A..."],"segments":["segments/..."],"partition":[0,1,2],
     "position":[0,170,340],"size":170,"base_offset":[7,9,7],"record_count":1,"max_timestamp_ms":1700000000000}

An object repeats its field names, its topic's id and its segment's name: 237 bytes, where the numbers are 30.

Invariants: decoding returns what was encoded; inconsistent columns are refused (BadColumnsError).
Bounds: the number of extents is known, and limited, before any is created, or any number is read.
Not here: whether an extent is legal (model/extent_list.py); the rest of a document (document.py).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log; adr/0018.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from sparklog.metadata.model.action import ActionBase, Column, Int64
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.extent_list import NO_PRODUCER_ID, DraftExtent, Extent
from sparklog.metadata.model.extents import AppendExtents
from sparklog.metadata.model.staging import NEVER_OPENS, StageExtents

# Fewer are shorter as objects.
MIN_COLUMN_EXTENTS = 8
# Limit over all columns of a commit or request: two bytes of one may become an extent of 400 in memory.
MAX_COMMIT_EXTENTS = 1 << 18
MAX_REQUEST_EXTENTS = 1 << 14
_LEFT_OUT = msgspec.Raw(b"")
_Read = TypeVar("_Read")
_numbers_decoder = msgspec.json.Decoder(list[Int64])
_number_decoder = msgspec.json.Decoder(Int64)


class BadColumnsError(msgspec.ValidationError):
    """The columns do not form valid extents."""


class AppendColumns(ActionBase, tag="append_columns", frozen=True, kw_only=True):
    """`append_extents` in columns. Each is an array with a number per extent, or one number for all."""

    topics: tuple[str, ...]
    segments: tuple[str, ...]
    topic: msgspec.Raw = _LEFT_OUT  # index in `topics`
    partition: msgspec.Raw  # always an array
    segment: msgspec.Raw = _LEFT_OUT  # index in `segments`
    position: msgspec.Raw
    size: msgspec.Raw
    base_offset: msgspec.Raw
    record_count: msgspec.Raw
    max_timestamp_ms: msgspec.Raw
    offset_delta: msgspec.Raw = _LEFT_OUT  # each extent's base_offset
    producer_id: msgspec.Raw = _LEFT_OUT
    producer_epoch: msgspec.Raw = _LEFT_OUT
    base_sequence: msgspec.Raw = _LEFT_OUT


class DraftColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Drafts in columns: as AppendColumns, without the fields that a draft lacks."""

    topics: tuple[str, ...]
    segments: tuple[str, ...]
    topic: msgspec.Raw = _LEFT_OUT
    partition: msgspec.Raw
    segment: msgspec.Raw = _LEFT_OUT
    position: msgspec.Raw
    size: msgspec.Raw
    record_count: msgspec.Raw
    max_timestamp_ms: msgspec.Raw
    producer_id: msgspec.Raw = _LEFT_OUT
    producer_epoch: msgspec.Raw = _LEFT_OUT
    base_sequence: msgspec.Raw = _LEFT_OUT


class StageColumns(ActionBase, tag="stage_columns", frozen=True, kw_only=True):
    """`stage_extents` in columns: as DraftColumns, and `opens_ms`."""

    topics: tuple[str, ...]
    segments: tuple[str, ...]
    topic: msgspec.Raw = _LEFT_OUT
    partition: msgspec.Raw
    segment: msgspec.Raw = _LEFT_OUT
    position: msgspec.Raw
    size: msgspec.Raw
    record_count: msgspec.Raw
    max_timestamp_ms: msgspec.Raw
    producer_id: msgspec.Raw = _LEFT_OUT
    producer_epoch: msgspec.Raw = _LEFT_OUT
    base_sequence: msgspec.Raw = _LEFT_OUT
    opens_ms: Column = NEVER_OPENS


WireAction = Action | AppendColumns | StageColumns


# --- commits -----------------------------------------------------------------------------------------


def to_wire(actions: Iterable[Action]) -> tuple[WireAction, ...]:
    """Return the actions in a document's form: many extents in columns."""
    room = MAX_COMMIT_EXTENTS
    wire: list[WireAction] = []
    for action in actions:
        if isinstance(action, AppendExtents) and MIN_COLUMN_EXTENTS <= len(action.extents) <= room:
            room -= len(action.extents)
            wire.append(_append_columns(action.extents))
        elif isinstance(action, StageExtents) and MIN_COLUMN_EXTENTS <= len(action.extents) <= room:
            room -= len(action.extents)
            wire.append(StageColumns(**_shared_columns(action.extents), opens_ms=action.opens_ms))
        else:
            wire.append(action)
    return tuple(wire)


def from_wire(wire: Sequence[WireAction]) -> tuple[Action, ...]:
    """Return the actions of a document."""
    found = [action for action in wire if isinstance(action, (AppendColumns, StageColumns))]
    _limit(sum(_count(action.partition) for action in found), MAX_COMMIT_EXTENTS)
    return tuple(_action_of(action) for action in wire)


def _action_of(wire: WireAction) -> Action:
    if isinstance(wire, AppendColumns):
        return AppendExtents(extents=_extents(wire))
    if isinstance(wire, StageColumns):
        return StageExtents(extents=_drafts(wire, _count(wire.partition)), opens_ms=wire.opens_ms)
    return wire


def _append_columns(extents: Sequence[Extent]) -> AppendColumns:
    base_offset = [extent.base_offset for extent in extents]
    offset_delta = [extent.offset_delta for extent in extents]
    return AppendColumns(
        **_shared_columns(extents),
        base_offset=_column(base_offset),
        offset_delta=_LEFT_OUT if offset_delta == base_offset else _column(offset_delta),
    )


def _extents(columns: AppendColumns) -> tuple[Extent, ...]:
    count = _count(columns.partition)
    base_offset = _numbers("base_offset", columns.base_offset, count)
    offset_delta: Iterable[int] = base_offset
    if columns.offset_delta is not _LEFT_OUT:
        offset_delta = _numbers("offset_delta", columns.offset_delta, count)
    rows = zip(*_common(columns, count), base_offset, offset_delta, strict=True)
    return tuple(
        Extent(
            topic_id=topic_id,
            partition=partition,
            segment=segment,
            position=position,
            size=size,
            base_offset=base,
            record_count=records,
            max_timestamp_ms=newest,
            offset_delta=delta,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        for (
            topic_id,
            partition,
            segment,
            position,
            size,
            records,
            newest,
            producer_id,
            producer_epoch,
            base_sequence,
            base,
            delta,
        ) in rows
    )


# --- requests ----------------------------------------------------------------------------------------


def goes_into_columns(drafts: int) -> bool:
    """True if this many drafts of a request are written as columns."""
    return MIN_COLUMN_EXTENTS <= drafts <= MAX_REQUEST_EXTENTS


def draft_columns(drafts: Sequence[DraftExtent]) -> DraftColumns | None:
    """Return the drafts in columns; None if they stay objects."""
    if not goes_into_columns(len(drafts)):
        return None
    return DraftColumns(**_shared_columns(drafts))


def drafts_of(columns: DraftColumns) -> tuple[DraftExtent, ...]:
    """Return the drafts; BadColumnsError if the columns are invalid."""
    count = _count(columns.partition)
    _limit(count, MAX_REQUEST_EXTENTS)
    return _drafts(columns, count)


def _drafts(columns: DraftColumns | StageColumns, count: int) -> tuple[DraftExtent, ...]:
    return tuple(
        DraftExtent(
            topic_id=topic_id,
            partition=partition,
            segment=segment,
            position=position,
            size=size,
            record_count=records,
            max_timestamp_ms=newest,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        for (
            topic_id,
            partition,
            segment,
            position,
            size,
            records,
            newest,
            producer_id,
            producer_epoch,
            base_sequence,
        ) in zip(*_common(columns, count), strict=True)
    )


# --- columns -----------------------------------------------------------------------------------------


def _shared_columns(extents: Sequence[Extent] | Sequence[DraftExtent]) -> dict[str, Any]:
    """Return the columns that extents and drafts share, by name."""
    topics, topic = _names([extent.topic_id for extent in extents])
    segments, segment = _names([extent.segment for extent in extents])
    return {
        "topics": topics,
        "segments": segments,
        "topic": _column(topic, 0),
        "partition": _array([extent.partition for extent in extents]),
        "segment": _column(segment, 0),
        "position": _column([extent.position for extent in extents]),
        "size": _column([extent.size for extent in extents]),
        "record_count": _column([extent.record_count for extent in extents]),
        "max_timestamp_ms": _column([extent.max_timestamp_ms for extent in extents]),
        "producer_id": _column([extent.producer_id for extent in extents], NO_PRODUCER_ID),
        "producer_epoch": _column([extent.producer_epoch for extent in extents], -1),
        "base_sequence": _column([extent.base_sequence for extent in extents], -1),
    }


def _common(columns: AppendColumns | DraftColumns | StageColumns, count: int) -> list[Iterable[object]]:
    """Return the columns that extents and drafts share, in the order of a draft's fields."""
    return [
        _named("topic", columns.topics, columns.topic, count),
        _numbers("partition", columns.partition, count),
        _named("segment", columns.segments, columns.segment, count),
        _numbers("position", columns.position, count),
        _numbers("size", columns.size, count),
        _numbers("record_count", columns.record_count, count),
        _numbers("max_timestamp_ms", columns.max_timestamp_ms, count),
        _numbers("producer_id", columns.producer_id, count, NO_PRODUCER_ID),
        _numbers("producer_epoch", columns.producer_epoch, count, -1),
        _numbers("base_sequence", columns.base_sequence, count, -1),
    ]


def _names(names: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """Return the distinct names, and the index of each extent's name."""
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(name, len(numbers)) for name in names]
    return tuple(numbers), index


def _array(numbers: Sequence[int]) -> msgspec.Raw:
    """Encode numbers, and check them by decoding: 3.0 and True pass as integers until then."""
    data = msgspec.json.encode(numbers)
    if _read(_numbers_decoder, data) != numbers:
        raise ValueError("a column of numbers that are not of 64 bits")
    return msgspec.Raw(data)


def _read(decoder: msgspec.json.Decoder[_Read], data: bytes) -> _Read:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"a column that holds no integers: {error}") from error


def _column(numbers: Sequence[int], default: int | None = None) -> msgspec.Raw:
    """Encode one number if all are equal; leave the column out if that is the default."""
    first = numbers[0]
    if numbers.count(first) < len(numbers):
        return _array(numbers)
    if default is not None and first == default:
        return _LEFT_OUT
    data = msgspec.json.encode(first)
    _read(_number_decoder, data)
    return msgspec.Raw(data)


def _count(partition: msgspec.Raw) -> int:
    """Return the size of an array without reading it; undefined if it is not an array of numbers."""
    text = bytes(partition)
    if text[:1] != b"[":
        raise BadColumnsError("column partition: expected an array")
    return text.count(b",") + 1


def _limit(count: int, most: int) -> None:
    if count > most:
        raise BadColumnsError(f"columns of {count} extents, expected at most {most}")


def _numbers(name: str, column: msgspec.Raw, count: int, default: int | None = None) -> Sequence[int]:
    """Return the number of each of `count` extents."""
    text = bytes(column)
    if column is _LEFT_OUT and default is not None:
        return [default] * count
    if text[:1] != b"[":
        return [_number_decoder.decode(text)] * count
    if text.count(b",") + 1 != count:
        raise BadColumnsError(f"column {name}: {text.count(b',') + 1} numbers, expected {count}")
    numbers = _numbers_decoder.decode(text)
    if len(numbers) != count:
        raise BadColumnsError(f"column {name}: {len(numbers)} numbers, expected {count}")
    return numbers


def _named(name: str, names: Sequence[str], column: msgspec.Raw, count: int) -> Iterable[str]:
    """Return the name of each extent, by its index."""
    index = _numbers(name, column, count, 0)
    if not 1 <= len(names) <= count or min(index) < 0 or max(index) >= len(names):
        raise BadColumnsError(f"column {name}: found an index outside {len(names)} names, of {count} extents")
    return map(names.__getitem__, index)
