"""Filter pushdown of a batch read: skips offsets that the filters exclude. Spark 4.1 and newer.

Conditions on topic, partition and offset are applied completely. A lower bound on the timestamp only prunes
extents whose largest timestamp is below it, so Spark still filters the rows.
A module of its own, since Spark 4.0 has no filters to import.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from sparklog.metadata import Image
from sparklog.spark.batch_reader import SparklogBatchReader
from sparklog.spark.data_source_api import plain_errors
from sparklog.spark.options import SourceOptions
from sparklog.spark.ranges import OffsetRange, partition_state

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MAX_OFFSET = 2**63 - 1


class Pruning:
    """The conjunction of the filters that prune."""

    def __init__(self) -> None:
        self._keep: list[Callable[[OffsetRange], bool]] = []
        self._first_offset = 0
        self._end_offset = _MAX_OFFSET
        self._min_timestamp_ms: int | None = None

    def add(self, condition: Filter) -> bool:
        """Add a filter; return True if pruning applies it completely."""
        if isinstance(condition, IsNotNull):
            return condition.attribute[-1] in ("topic", "partition", "offset")
        column = getattr(condition, "attribute", ("",))
        if len(column) != 1:
            return False
        if column[0] in ("topic", "partition"):
            return self._add_keep(condition, column[0])
        if column[0] == "offset":
            return self._add_offset(condition)
        if column[0] == "timestamp":
            self._add_timestamp(condition)
        return False

    def prune(self, ranges: Sequence[OffsetRange], image: Image) -> list[OffsetRange]:
        """Return the ranges that the filters leave."""
        pruned: list[OffsetRange] = []
        for r in ranges:
            if not all(keep(r) for keep in self._keep):
                continue
            low, high = max(r.start_offset, self._first_offset), min(r.end_offset, self._end_offset)
            if low < high:
                pruned.extend(self._prune_by_time(replace(r, start_offset=low, end_offset=high), image))
        return pruned

    def _prune_by_time(self, r: OffsetRange, image: Image) -> list[OffsetRange]:
        """Return the parts of a range whose extents reach the timestamp; adjacent parts are joined."""
        if self._min_timestamp_ms is None:
            return [r]
        kept: list[OffsetRange] = []
        state = partition_state(image, (r.topic, r.partition))
        for extent in state.extents_between(r.start_offset, r.end_offset):
            if extent.max_timestamp_ms < self._min_timestamp_ms:
                continue
            low = max(extent.base_offset, r.start_offset)
            high = min(extent.base_offset + extent.record_count, r.end_offset)
            if kept and kept[-1].end_offset == low:
                kept[-1] = replace(kept[-1], end_offset=high)
            else:
                kept.append(replace(r, start_offset=low, end_offset=high))
        return kept

    def _add_keep(self, condition: Filter, column: str) -> bool:
        match condition:
            case EqualTo(value=value) | EqualNullSafe(value=value):
                wanted: tuple[Any, ...] = (value,)
                self._keep.append(lambda r: getattr(r, column) in wanted)
            case In(value=values):
                self._keep.append(lambda r: getattr(r, column) in values)
            case GreaterThan(value=value):
                self._keep.append(lambda r: getattr(r, column) > value)
            case GreaterThanOrEqual(value=value):
                self._keep.append(lambda r: getattr(r, column) >= value)
            case LessThan(value=value):
                self._keep.append(lambda r: getattr(r, column) < value)
            case LessThanOrEqual(value=value):
                self._keep.append(lambda r: getattr(r, column) <= value)
            case _:
                return False
        return True

    def _add_offset(self, condition: Filter) -> bool:
        match condition:
            case EqualTo(value=value) | EqualNullSafe(value=value):
                first, end = value, value + 1
            case GreaterThan(value=value):
                first, end = value + 1, _MAX_OFFSET
            case GreaterThanOrEqual(value=value):
                first, end = value, _MAX_OFFSET
            case LessThan(value=value):
                first, end = 0, value
            case LessThanOrEqual(value=value):
                first, end = 0, value + 1
            case _:
                return False
        self._first_offset = max(self._first_offset, first)
        self._end_offset = min(self._end_offset, end)
        return True

    def _add_timestamp(self, condition: Filter) -> None:
        match condition:
            case EqualTo(value=value) | GreaterThan(value=value) | GreaterThanOrEqual(value=value):
                bound = _to_ms(value)
                if bound is not None:
                    self._min_timestamp_ms = max(bound, self._min_timestamp_ms or bound)
            case _:
                return


def _to_ms(value: object) -> int | None:
    """Convert Spark's datetime, rounded down, so that no matching row is pruned."""
    if not isinstance(value, dt.datetime):
        return None
    moment = value if value.tzinfo is not None else value.astimezone(dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


@plain_errors
class SparklogPushdownReader(SparklogBatchReader):
    """The batch source with filter pushdown, for Spark 4.1 and newer.

    Only used with the option filterPushdown: Spark fails every read of a reader that defines pushFilters
    while spark.sql.python.filterPushdown.enabled is false, which is the default.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._pruning = Pruning()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters for pruning; return those that Spark must still apply to the rows."""
        return [condition for condition in filters if not self._pruning.add(condition)]

    def _pruned(self, ranges: list[OffsetRange], image: Image) -> list[OffsetRange]:
        return self._pruning.prune(ranges, image)
