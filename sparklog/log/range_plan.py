"""The byte ranges of a large read, as columns: made without a look at each extent, small when pickled.

A partition that is published to each second has 100,000s of extents. As objects they would take a second and
100 MB before the first record is read, and megabytes on their way to an executor. Only the first and the last
extent of a read may be cut, and are looked into; those between are read whole, and stay columns of the image
until their turn comes.

Invariants: iterating gives the ranges ascending, as often as wanted; no range is empty.
Not here: what is wanted of an extent that is cut (read_plan.py).
Concurrency: immutable.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sparklog.log.byte_range import ByteRange
from sparklog.metadata import NUMBER_COLUMNS, PartitionState

_AT_ONCE = 1024  # objects made at a time
_NAMES = ("position", "size", "base_offset", "record_count", "offset_delta")
_COLUMNS = tuple(NUMBER_COLUMNS.index(name) for name in _NAMES)
_SIZE = _NAMES.index("size")
_Numbers = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class WholeExtents:
    """Extents of a partition that are read whole: segment names, and the numbers of _NAMES."""

    segment: npt.NDArray[Any]
    numbers: _Numbers

    def ranges(self, topic: str, partition: int) -> Iterator[ByteRange]:
        """Them, a few objects at a time."""
        for start in range(0, len(self.segment), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            rows = zip(self.segment[part], *(column[part].tolist() for column in self.numbers), strict=True)
            for segment, position, size, base_offset, record_count, offset_delta in rows:
                yield ByteRange(
                    topic=topic,
                    partition=partition,
                    segment=segment,
                    position=position,
                    size=size,
                    offset_delta=offset_delta,
                    start_offset=base_offset,
                    end_offset=base_offset + record_count,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        names: dict[str, int] = {}  # in the order in which they come
        rows = len(self.segment)
        codes = np.fromiter((names.setdefault(name, len(names)) for name in self.segment), np.int64, rows)
        columns = (codes, *self.numbers)
        # Neighbours differ by little, and by the same: 5 to 20 times smaller.
        differences = [np.diff(column, prepend=np.int64(0)).astype(np.int64).tobytes() for column in columns]
        packed = zlib.compress(b"".join((*differences, msgspec.json.encode(list(names)))), 1)
        return _unpacked, (rows, packed)


def _unpacked(rows: int, packed: bytes) -> WholeExtents:
    data = zlib.decompress(packed)
    columns = np.frombuffer(data, np.int64, rows * (1 + len(_NAMES))).reshape(1 + len(_NAMES), rows)
    codes, *numbers = np.cumsum(columns, axis=1)
    names = np.array([*msgspec.json.decode(data[columns.nbytes :], type=list[str]), None], object)
    return WholeExtents(names[codes], tuple(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePlan:
    """The ranges of one read of one partition; picklable. With the topic's id, so that who misses a file can
    look where its offsets are now.
    """

    topic: str
    topic_id: str
    partition: int
    first: tuple[ByteRange, ...] = ()
    whole: tuple[WholeExtents, ...] = ()
    last: tuple[ByteRange, ...] = ()

    def __iter__(self) -> Iterator[ByteRange]:
        between = chain.from_iterable(block.ranges(self.topic, self.partition) for block in self.whole)
        return chain(self.first, between, self.last)

    def __len__(self) -> int:
        return len(self.first) + sum(len(block.segment) for block in self.whole) + len(self.last)

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all ranges."""
        cut = sum(one.size for one in (*self.first, *self.last))
        return cut + sum(int(block.numbers[_SIZE].sum()) for block in self.whole)


def whole_extents(state: PartitionState, start: int, stop: int) -> tuple[WholeExtents, ...]:
    """The extents of these indices; views of the image's columns."""
    found = []
    for index, block in state.extents.column_blocks():
        part = block.slice(max(start - index, 0), max(stop - index, 0))
        if len(part):
            found.append(WholeExtents(part.segment, tuple(part.numbers[at] for at in _COLUMNS)))
    return tuple(found)
