"""Dead segments: counts of their committed bytes, and which ones are retired.

Data that was committed and then expired, merged, compacted or aborted need not wait for the sweep horizon.
The image counts the bytes of removed extents, by segment. If all bytes of a dead segment's file were
committed at some time, no writer has unpublished data in it. So it is retired, by name: it can never become
live again, and its file may be removed.

The counts are only hints, as the horizon is: too small a count keeps a file until the horizon has passed it,
too large a one makes a writer append again. The list of retired names is what keeps a retired segment dead.

Invariants: a retired segment is dead. Segments with a version before the horizon are in none of these: they
    are dead already.
Bounds: MAX_COUNTED segments, MAX_RANGES ranges. Segments beyond these wait for the horizon.
Not here: the action (sweeping.py); which segments, and their files (maintenance/sweep.py).
Sources: adr/0019; tests/models/sweeping.py.
"""

import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from sparklog.metadata.model.action import Int64
from sparklog.metadata.model.extent_list import ExtentColumns

_FIRST = operator.attrgetter("first")
MAX_COUNTED = 50_000
MAX_RANGES = 10_000
NEVER_CHECKED_MS = -1
NO_BIRTH = -1  # of names without a version: before all others
ISOLATED = "isolated"  # the directory of the isolated topics (isolation.py)
_TOPIC = rf"(?:{ISOLATED}/[^/]+/)?"
# The first names with versions have a dash instead of the dot.
_OWN = re.compile(_TOPIC + r"segments/[^/]+/\d{8}[.-](\d{1,18})\.log")
_MERGED = re.compile(_TOPIC + r"[^/]+/\d{20}[.-](\d{1,18})-[A-Za-z0-9_-]{22}\.log")  # an id of 22
# A writer gives a number once, in whatever directory: so few ranges have many of its segments.
_NUMBERED = re.compile(_TOPIC + r"(segments/[^/]+)/(\d{8})(?:[.-]\d{1,18})?\.log")


def born_of(segment: str) -> int:
    """Return a segment's creation version: the newest commit its writer had seen, by its name."""
    match = _OWN.fullmatch(segment) or _MERGED.fullmatch(segment)
    return int(match[1]) if match else NO_BIRTH


class RetiredRange(msgspec.Struct, frozen=True, array_like=True):
    """Segments of one writer, by their numbers, inclusive; `born`: the newest version among them."""

    first: Int64
    last: Int64
    born: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """The state in an image.

    Fields:
        removed_bytes: segment -> stored bytes of extents that were in the image, or staged, and were removed.
        ranges: the retired segments, by the writer's directory, ascending; a merged segment is its own
            directory.
        pending: segment -> when it was retired (Unix ms): its file may still exist.
        checked_ms: when the last search for segments to retire ran.
    """

    removed_bytes: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[RetiredRange, ...]] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    checked_ms: int = NEVER_CHECKED_MS

    def has(self, segment: str) -> bool:
        """True if the segment is retired."""
        group, number = _place_of(segment)
        ranges = self.ranges.get(group, ())
        place = bisect_right(ranges, number, key=_FIRST) - 1
        return place >= 0 and number <= ranges[place].last

    @property
    def range_count(self) -> int:
        """The number of ranges of all writers."""
        return sum(map(len, self.ranges.values()))


NOTHING_RETIRED = Retired()


class RetiredDraft:
    """The state while actions are applied; shared state is copied at its first change."""

    def __init__(self, before: Retired) -> None:
        self._before = before
        self._counts: dict[str, int] | None = None
        self._rest = before

    def count(self, columns: ExtentColumns, horizon: int, *, back: bool = False) -> None:
        """Count removed extents; `back`: these are there again, or still."""
        if not len(columns):
            return
        found: dict[str, int] = {}
        for segment, size in zip(columns.segment.tolist(), columns.column("size").tolist(), strict=True):
            found[segment] = found.get(segment, 0) + size
        if self._counts is None:
            self._counts = dict(self._before.removed_bytes)
        counts = self._counts
        for segment, size in found.items():
            known = counts.get(segment)
            if known is None and (back or born_of(segment) < horizon or len(counts) >= MAX_COUNTED):
                continue
            left = (known or 0) + (-size if back else size)
            if left > 0:
                counts[segment] = left
            else:
                counts.pop(segment, None)

    def forget(self, segments: Iterable[str]) -> None:
        """Drop the counts of these segments."""
        if self._counts is None:
            self._counts = dict(self._before.removed_bytes)
        for segment in segments:
            self._counts.pop(segment, None)

    def change(self, rest: Retired) -> None:
        """Replace everything except the counts."""
        self._rest = rest

    def has(self, segment: str) -> bool:
        """True if the segment is retired, as changed so far."""
        return self._rest.has(segment)

    def done(self) -> Retired:
        """Return the state with all changes; not to be changed by the caller."""
        counts = self._before.removed_bytes if self._counts is None else self._counts
        rest = self._rest
        if counts is rest.removed_bytes:
            return rest
        return Retired(
            removed_bytes=dict(counts), ranges=rest.ranges, pending=rest.pending, checked_ms=rest.checked_ms
        )


def _place_of(segment: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(segment)
    return (match[1], int(match[2])) if match else (segment, 0)


def with_retired(
    ranges: Mapping[str, tuple[RetiredRange, ...]], segments: Mapping[str, int]
) -> dict[str, tuple[RetiredRange, ...]]:
    """Return the ranges with these segments added, by their versions; adjacent ranges are merged."""
    added: dict[str, list[RetiredRange]] = {}
    for segment, born in segments.items():
        group, number = _place_of(segment)
        added.setdefault(group, []).append(RetiredRange(number, number, born))
    result = dict(ranges)
    for group, more in added.items():
        joined: list[RetiredRange] = []
        for each in sorted([*ranges.get(group, ()), *more], key=lambda found: found.first):
            if joined and each.first <= joined[-1].last + 1:
                before = joined[-1]
                last, born = max(before.last, each.last), max(before.born, each.born)
                joined[-1] = RetiredRange(before.first, last, born)
            else:
                joined.append(each)
        result[group] = tuple(joined)
    return result


def since_horizon(
    ranges: Mapping[str, tuple[RetiredRange, ...]], horizon: int
) -> dict[str, tuple[RetiredRange, ...]]:
    """Return the ranges without those that are wholly before the horizon."""
    left = {group: tuple(each for each in some if each.born >= horizon) for group, some in ranges.items()}
    return {group: some for group, some in left.items() if some}
