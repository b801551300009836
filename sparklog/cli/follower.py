"""The loop behind `sparklog consume`: read a step of each partition in turn, print, follow, commit.

Memory stays flat whatever the topic holds: one step of one partition is in memory at a time.
Invariants: records of a partition are printed in offset order; a group's offsets are committed only
for what has been flushed to the output, so a crash repeats records but never skips one.
Not here: groups' membership: there is none without a broker; two followers of one group both read
everything.
"""

from __future__ import annotations

import errno
import io
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from sparklog.cli.record_format import ConsumedRecord
from sparklog.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import SparkLog

POLL_MS = 100
COMMIT_INTERVAL_MS = 5_000


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


class Follower:
    """Goes round the partitions until every one is done, or enough is printed."""

    def __init__(
        self,
        log: SparkLog,
        topic: str,
        cursors: list[Cursor],
        *,
        group: str | None = None,
        with_headers: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._cursors = cursors
        self._group = group
        self._with_headers = with_headers
        self._clock = clock or SystemClock()
        self._flushed: dict[tuple[str, int], int] = {}
        self._committed_ms = self._clock.monotonic_ms()

    def run(
        self, render: Callable[[ConsumedRecord], bytes], stream: BinaryIO, max_messages: int | None = None
    ) -> None:
        """Print to `stream` until done; KeyboardInterrupt passes through, after the commit."""
        left = sys.maxsize if max_messages is None else max_messages
        try:
            while left > 0:
                active = [cursor for cursor in self._cursors if not cursor.done]
                if not active:
                    return
                printed = 0
                for cursor in active:
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
            end_offset = self._log.log_end_offset(self._topic, cursor.partition)
            if cursor.end_offset is not None:
                end_offset = min(end_offset, cursor.end_offset)
            if cursor.next_offset >= end_offset:
                return None
            cursor.steps = self._log.read_batches(
                self._topic,
                cursor.partition,
                cursor.next_offset,
                end_offset,
                include_headers=self._with_headers,
            )
        for arrow_batch in cursor.steps:
            if arrow_batch.num_rows:
                return arrow_batch
        cursor.steps = None
        if cursor.end_offset is not None and self._exhausted(cursor):
            cursor.next_offset = cursor.end_offset  # the last offsets are a gap
        return None

    def _exhausted(self, cursor: Cursor) -> bool:
        assert cursor.end_offset is not None
        return self._log.log_end_offset(self._topic, cursor.partition) >= cursor.end_offset

    def _note_flushed(self) -> None:
        for cursor in self._cursors:
            self._flushed[self._topic, cursor.partition] = cursor.next_offset

    def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if self._group and self._flushed:
            known = self._log.committed_offsets(self._group)
            news = {where: offset for where, offset in self._flushed.items() if known.get(where) != offset}
            if news:
                self._log.commit_offsets(self._group, dict(news))


def _raise_if_reader_left(stream: BinaryIO) -> None:
    """An idle `consume | head` writes nothing that would tell it that nobody reads any more."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return
    poller = select.poll()
    poller.register(descriptor, 0)
    if any(events & (select.POLLERR | select.POLLNVAL) for _, events in poller.poll(0)):
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
