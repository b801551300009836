"""The loop behind `sparklog consume`: read a step of each partition in turn, print, follow, commit.

Memory stays flat whatever the topic holds: one step of one partition is in memory at a time.
Invariants: records of a partition are printed in offset order; a group's offsets are committed only
for what has been flushed to the output, so a crash repeats records but never skips one; and only for the
topic that was read: one that is made again under the name is begun anew, and so is the group in it.
Not here: which partitions, from where (cursors.py); groups' membership: there is none without a broker; two
followers of one group both read everything.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from sparklog.cli.cursors import Cursor, Selection
from sparklog.cli.notes import note
from sparklog.cli.output import reader_left
from sparklog.cli.record_format import ConsumedRecord
from sparklog.clock import Clock, SystemClock
from sparklog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import SparkLog
    from sparklog.metadata import Image

POLL_MS = 100
COMMIT_INTERVAL_MS = 5_000


class Follower:
    """Goes round the partitions until every one is done, or enough is printed."""

    def __init__(
        self,
        log: SparkLog,
        selection: Selection,
        *,
        with_headers: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._selection = selection
        self._topic = selection.topic
        self._group = selection.group
        self._with_headers = with_headers
        self._clock = clock or SystemClock()
        self._flushed: dict[tuple[str, int], int] = {}
        self._committed_ms = self._clock.monotonic_ms()
        stored = selection.stored(log)
        image = log.refresh()
        self._take(image, selection.at_first(log, image, stored))

    def run(
        self, render: Callable[[ConsumedRecord], bytes], stream: BinaryIO, max_messages: int | None = None
    ) -> None:
        """Print to `stream` until done; KeyboardInterrupt passes through, after the commit."""
        left = sys.maxsize if max_messages is None else min(max_messages, sys.maxsize)
        try:
            while left > 0 and not all(cursor.done for cursor in self._cursors):
                self._keep_up()
                printed = 0
                for cursor in [one for one in self._cursors if not one.done]:
                    count = self._print_step(cursor, render, stream, left - printed)
                    printed += count
                left -= printed
                stream.flush()
                self._note_flushed()
                if not printed:
                    self._commit()
                    _raise_if_reader_left(stream)
                    self._clock.sleep_ms(POLL_MS)
                elif self._clock.monotonic_ms() - self._committed_ms >= COMMIT_INTERVAL_MS:
                    self._commit()
        finally:
            self._commit()

    def _take(self, image: Image, cursors: list[Cursor]) -> None:
        topic = image.topic(self._topic)
        self._topic_id, self._partition_count = topic.topic_id, len(topic.partitions)
        self._cursors = cursors

    def _keep_up(self) -> None:
        """Follow the topic itself: partitions are added to it, or it is deleted and made again."""
        topic = self._log.refresh().topic(self._topic)
        if topic.topic_id != self._topic_id:
            self._begin_anew()
        elif len(topic.partitions) > self._partition_count:
            stored = self._selection.stored(self._log)
            image = self._log.image
            added = self._selection.added(self._log, image, self._partition_count, stored)
            self._partition_count = len(image.topic(self._topic).partitions)
            self._cursors += added

    def _begin_anew(self) -> None:
        self._flushed.clear()
        stored = self._selection.stored(self._log)
        image = self._log.image
        self._take(image, self._selection.made_again(self._log, image))
        note(
            f"Warning: topic {self._topic} was deleted and made again: "
            "what follows is the new one, from its beginning."
        )
        # At once: what the group has is of the old topic, and who starts from it skips records of this one.
        self._note_flushed()
        self._commit()
        gone = [where for where in stored if where[0] == self._topic and where[1] >= self._partition_count]
        if self._group and gone:
            self._log.commit_offsets(self._group, dict.fromkeys(gone))

    def _print_step(
        self, cursor: Cursor, render: Callable[[ConsumedRecord], bytes], stream: BinaryIO, left: int
    ) -> int:
        """Print at most one step of one partition; returns the number of records."""
        if left <= 0:
            return 0
        arrow_batch = self._next_step(cursor)
        if arrow_batch is None:
            return 0
        arrow_batch = arrow_batch.slice(0, left)
        stream.write(b"".join(map(render, to_records(self._topic, cursor.partition, arrow_batch))))
        cursor.next_offset = arrow_batch.column("offset")[-1].as_py() + 1
        return int(arrow_batch.num_rows)

    def _next_step(self, cursor: Cursor) -> pa.RecordBatch | None:
        if cursor.steps is None:
            cursor.steps = self._steps(cursor)
            if cursor.steps is None:
                return None
        for arrow_batch in cursor.steps:
            if arrow_batch.num_rows:
                return arrow_batch
        cursor.steps = None
        if cursor.end_offset is not None and self._exhausted(cursor):
            cursor.next_offset = cursor.end_offset  # the last offsets are a gap
        return None

    def _steps(self, cursor: Cursor) -> Iterator[pa.RecordBatch] | None:
        from sparklog.client.consumer import read_batches

        image = self._log.image
        if not self._is_ours(image):
            return None
        log_end_offset = image.partition(self._topic, cursor.partition).log_end_offset
        if cursor.next_offset > log_end_offset:
            self._flushed.pop((self._topic, cursor.partition), None)
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{self._topic}-{cursor.partition}: found next offset {cursor.next_offset}, "
                f"expected at most {log_end_offset}, the end of the log",
                fix="find out how the log came to be shorter; start from -o beginning or -o end",
            )
        end_offset = log_end_offset if cursor.end_offset is None else min(log_end_offset, cursor.end_offset)
        if cursor.next_offset >= end_offset:
            return None
        return read_batches(
            self._log.metadata,
            image,
            self._topic,
            cursor.partition,
            start_offset=cursor.next_offset,
            end_offset=end_offset,
            include_headers=self._with_headers,
        )

    def _is_ours(self, image: Image) -> bool:
        """Has the image the topic that is printed, and not another one of its name?"""
        topic = image.topics.get(self._topic)
        return topic is not None and topic.topic_id == self._topic_id

    def _exhausted(self, cursor: Cursor) -> bool:
        assert cursor.end_offset is not None
        image = self._log.image
        if not self._is_ours(image):
            return False
        return image.partition(self._topic, cursor.partition).log_end_offset >= cursor.end_offset

    def _note_flushed(self) -> None:
        for cursor in self._cursors:
            self._flushed[self._topic, cursor.partition] = cursor.next_offset

    def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._group or not self._flushed or not self._is_ours(self._log.refresh()):
            return
        known = self._log.committed_offsets(self._group)
        news = {where: offset for where, offset in self._flushed.items() if known.get(where) != offset}
        if news:
            self._log.commit_offsets(self._group, news)


def _raise_if_reader_left(stream: BinaryIO) -> None:
    """An idle `consume | head` writes nothing that would tell it that nobody reads any more."""
    if reader_left(stream):
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")


def to_records(topic: str, partition: int, arrow_batch: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The rows of a step, one by one; printing is for people and pipes, not a hot path."""
    import pyarrow as pa

    rows = arrow_batch.num_rows
    names = arrow_batch.schema.names
    headers = arrow_batch.column("headers").to_pylist() if "headers" in names else [None] * rows
    columns = zip(
        arrow_batch.column("offset").to_pylist(),
        arrow_batch.column("timestamp").cast(pa.int64()).to_pylist(),
        arrow_batch.column("timestamp_type").to_pylist(),
        arrow_batch.column("key").to_pylist(),
        arrow_batch.column("value").to_pylist(),
        headers,
        strict=True,
    )
    for offset, timestamp_ms, timestamp_type, key, value, entries in columns:
        yield ConsumedRecord(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            timestamp_type=timestamp_type,
            key=key,
            value=value,
            headers=[(entry["key"], entry["value"]) for entry in entries or ()],
        )
