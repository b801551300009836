"""Which partitions `sparklog consume` prints, and from which offset to which, as the topic comes to be.

Invariants: offsets belong to a topic id, not to a name. Nothing of a topic that was made again is known
from the one before it, so that it is begun at its beginning.
Not here: what `-o` means (start_position.py), the loop (follower.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.cli.notes import note
from sparklog.cli.start_position import Anchor, Position, resolve
from sparklog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import SparkLog
    from sparklog.metadata import Image

Stored = Mapping[tuple[str, int], int]
_BEGINNING = Position(Anchor.BEGINNING)


@dataclass(slots=True)
class Cursor:
    """The next offset to print of one partition, and where to stop (None: never)."""

    partition: int
    next_offset: int
    end_offset: int | None
    steps: Iterator[pa.RecordBatch] | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.end_offset is not None and self.next_offset >= self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What of a topic is asked for.

    Fields:
        partitions: in this order; empty: all, also those that are added while the topic is followed.
        start: None: what the group has stored, or the beginning.
        end: where to stop; None: with `exit_at_end` at the end as it is found, else never.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    start: Position | None = None
    end: Position | None = None
    exit_at_end: bool = False
    group: str | None = None

    def stored(self, log: SparkLog) -> Stored:
        """What the group has committed. To be asked for before the image, which must not be older."""
        return log.committed_offsets(self.group) if self.group else {}

    def at_first(self, log: SparkLog, image: Image, stored: Stored) -> list[Cursor]:
        """Of the topic as the command finds it.

        Raises:
            OffsetOutOfRangeError: the start is not within a partition's offsets.
            UnknownTopicError: no such partition.
        """
        start = self.start or Position(Anchor.STORED)
        return [self._cursor(log, image, one, start, stored) for one in self._chosen(image)]

    def made_again(self, log: SparkLog, image: Image) -> list[Cursor]:
        """Of another topic of that name: all it has, however the first one was begun."""
        return [self._cursor(log, image, one, _BEGINNING) for one in self._chosen(image)]

    def added(self, log: SparkLog, image: Image, known: int, stored: Stored) -> list[Cursor]:
        """Of partitions beyond the first `known` ones, whose records all came after the start."""
        if self.partitions or self.exit_at_end or self.end is not None:
            return []
        start = Position(Anchor.STORED) if self.start in {None, Position(Anchor.STORED)} else _BEGINNING
        count = len(image.topic(self.topic).partitions)
        return [self._cursor(log, image, one, start, stored) for one in range(known, count)]

    def _chosen(self, image: Image) -> Iterable[int]:
        return dict.fromkeys(self.partitions) or range(len(image.topic(self.topic).partitions))

    def _cursor(
        self, log: SparkLog, image: Image, partition: int, start: Position, stored: Stored | None = None
    ) -> Cursor:
        state = image.partition(self.topic, partition)
        bounds = {"log_start_offset": state.log_start_offset, "log_end_offset": state.log_end_offset}

        def offset_for_time(timestamp_ms: int) -> int | None:
            from sparklog.client.consumer import partition_reader

            found = partition_reader(log.metadata, image, self.topic, partition).offset_for_time(timestamp_ms)
            return None if found is None else found[0]

        committed = (stored or {}).get((self.topic, partition))
        next_offset = resolve(start, **bounds, offset_for_time=offset_for_time, stored=committed)
        if start.anchor is Anchor.STORED and committed is not None and committed < next_offset:
            note(
                f"Warning: {self.topic}-{partition}: group {self.group} is at offset {committed}, and the "
                f"log starts at {next_offset}: the group has not read offsets {committed} to "
                f"{next_offset - 1}, which are gone. Reading goes on at {next_offset}. If retention removed "
                "them, let it keep more than the group is ever behind (retention.ms and retention.bytes of "
                "the topic)."
            )
        if not state.log_start_offset <= next_offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{self.topic}-{partition}: found start offset {next_offset}, "
                f"expected {state.log_start_offset} to {state.log_end_offset}",
                fix="start from -o beginning or -o end",
            )
        end_offset = state.log_end_offset if self.exit_at_end else None
        if self.end is not None:
            end_offset = resolve(self.end, **bounds, offset_for_time=offset_for_time)
        return Cursor(partition, next_offset, end_offset)
