"""Small extents of several works, fetched from an object store by object, before the works are done.

A publish leaves an object with a little of each partition, and works go by partition: each extent would be a
request by itself, for each time that it is read. So works that follow each other, and read the same objects,
are grouped; what is small of theirs is fetched together, and waits on the local disk for its work.

Invariants: what is read is what the objects hold, which never change. What could not be fetched, or found no
    room, is left out: whoever reads it asks the store, and is told what is wrong. An object that the store
    does not give is asked for once: what it said is told to all who read it.
    The file has no name: it belongs to this process alone, and goes with it.
Memory: AHEAD_BYTES on their way, and about 400 bytes for each of MAX_SPANS.
Disk: SPOOL_BYTES at most, and a quarter of what is free where temporary files lie (TMPDIR); and a quarter
    of that for what lies between extents.
Not here: large extents, which are worth a request each (log/read_ahead.py); directories, which need none.
Concurrency: one thread.
"""

import bisect
import contextlib
import logging
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import IO, TypeVar

import numpy as np

from sparklog.closing import Closing
from sparklog.errors import CorruptLogError, DataLossError, as_value
from sparklog.log.fetched import joined_ranges
from sparklog.log.missing_segment import UnreadableSegmentError, took_patience
from sparklog.log.read_ahead import AHEAD_BYTES, AHEAD_PIECES
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import SegmentFiles
from sparklog.log.span import Span
from sparklog.maintenance.work import MergeWork, Piece
from sparklog.storage import Store

SPOOL_BYTES = 1 << 30
MAX_SPANS = 65_536
SMALL_BYTES = 256 << 10  # what is larger is a request, or several, by itself
_FREE_SHARE = 4
_LEAST_SAVED = 2  # so many reads for a request, or it is not worth the disk's while
_log = logging.getLogger("sparklog.maintenance")
WorkT = TypeVar("WorkT")
Pace = Callable[[int], None]  # is told of stored bytes that were read ahead; may rest, or raise


def no_pace(_size: int) -> None:
    """As fast as it goes."""


class Spool(Closing):
    """Bytes of objects, on the local disk. See the module's docstring."""

    def __init__(self, store: Store, *, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: by default what the module's docstring says."""
        self._store = store
        self._file: IO[bytes] | None = None
        self._starts: dict[str, list[int]] = {}  # by segment, of ranges, ascending
        self._ranges: dict[str, list[tuple[int, int]]] = {}  # (end, place in the file) of the same
        self._refused: dict[str, UnreadableSegmentError] = {}  # by segment
        self.room = _room() if limit_bytes is None else limit_bytes

    def fill(self, spans: Sequence[Span], reads: int, pace: Pace) -> None:
        """Hold these, and nothing else; nothing at all, if few requests would be saved.

        Args:
            reads: how often each is going to be read.
        """
        self.close()
        ranges = joined_ranges(spans)
        if not ranges or len(ranges) * _LEAST_SAVED > len(spans) * reads:
            return
        try:
            self._file = tempfile.TemporaryFile(prefix="sparklog-", buffering=0)  # noqa: SIM115 - `close`
            self._fetch(self._file, ranges, pace)
        except OSError as error:  # what was fetched stays of use
            _log.info("extents are asked for one by one: no room to keep them: %s", error)

    def has(self, span: Span) -> bool:
        """Is all of the span here, or is it known that it cannot be had?"""
        return span.segment in self._refused or self._place(span) is not None

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Fill the buffer with the span; False: it is not here. UnreadableSegmentError: it cannot be had."""
        if span.segment in self._refused:
            raise as_value(self._refused[span.segment])
        place = self._place(span)
        if place is None or self._file is None:
            return False
        try:
            return os.preadv(self._file.fileno(), [buffer], place) == span.size
        except OSError:
            return False

    def close(self) -> None:
        """Let go of everything; may be filled again."""
        self._starts, self._ranges, self._refused = {}, {}, {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fetch(self, file: IO[bytes], ranges: Sequence[Span], pace: Pace) -> None:
        announced: deque[Span] = deque()
        size = 0
        with SegmentFiles(self._store) as files:
            for one in ranges:
                if any(took_patience(error) for error in self._refused.values()):
                    break
                with contextlib.suppress(DataLossError, UnreadableSegmentError):
                    files.open(one).will_need(one.position, one.size)
                announced.append(one)
                size += one.size
                # Half of what is kept open, as each is opened when it is announced, and when it is taken.
                while size > AHEAD_BYTES or len(announced) >= AHEAD_PIECES:
                    size -= announced[0].size
                    self._take(files, file, announced.popleft(), pace)
            while announced:
                self._take(files, file, announced.popleft(), pace)

    def _take(self, files: SegmentFiles, file: IO[bytes], one: Span, pace: Pace) -> None:
        if one.segment in self._refused:
            return
        try:
            data = files.open(one).read_exactly(one, one.position, one.size)
        except (CorruptLogError, DataLossError):
            return
        except UnreadableSegmentError as error:
            self._refused[one.segment] = as_value(error)
            return
        place = file.tell()
        _write(file, data)
        self._starts.setdefault(one.segment, []).append(one.position)
        self._ranges.setdefault(one.segment, []).append((one.end_position, place))
        pace(one.size)

    def _place(self, span: Span) -> int | None:
        starts = self._starts.get(span.segment, [])
        number = bisect.bisect_right(starts, span.position) - 1
        if number < 0:
            return None
        end, place = self._ranges[span.segment][number]
        return place + span.position - starts[number] if span.end_position <= end else None


def with_spool(
    store: Store,
    works: Sequence[WorkT],
    pieces_of: Callable[[WorkT], Sequence[Piece]],
    *,
    pace: Pace,
    reads: int = 1,
    limit_bytes: int | None = None,
) -> Generator[tuple[WorkT, Spool | None]]:
    """The works, in their order, each with what was fetched for it.

    Args:
        pieces_of: what a work reads.
        reads: how often.
    """
    if not store.traits.is_remote:
        yield from ((work, None) for work in works)
        return
    with Spool(store, limit_bytes=limit_bytes) as spool:
        for group in groups(store, works, pieces_of, spool.room):
            spool.close()
            if len(group) > 1 or reads > 1:
                spans = (span for work in group for span in _small_spans(pieces_of(work)))
                spool.fill(_within(spans, spool.room), reads, pace)
            for work in group:
                yield work, spool


def groups(
    store: Store,
    works: Sequence[WorkT],
    pieces_of: Callable[[WorkT], Sequence[Piece]],
    room: int,
    most_bytes: int | None = None,
) -> Iterator[Sequence[WorkT]]:
    """The works, in their order, parted into those that are fetched for together; each by itself where the
    store is a directory.

    Args:
        room: for their small extents.
        most_bytes: of all that they read; None: no bound.
    """
    start = 0
    while start < len(works):
        stop = start + 1
        if store.traits.is_remote:
            stop = _group_end(works, start, pieces_of, room, most_bytes)
        yield works[start:stop]
        start = stop


def in_turns(works: Iterable[MergeWork]) -> list[MergeWork]:
    """The first works of all partitions, then the second ones, and so on: of one partition none reads what
    another one reads.
    """
    seen: Counter[tuple[str, int]] = Counter()
    turns = []
    for work in works:
        key = (work.pieces[0].topic_id, work.pieces[0].partition)
        turns.append((seen[key], work))
        seen[key] += 1
    return [work for _, work in sorted(turns, key=itemgetter(0))]


def _group_end(
    works: Sequence[WorkT],
    start: int,
    pieces_of: Callable[[WorkT], Sequence[Piece]],
    room: int,
    most_bytes: int | None,
) -> int:
    """Where the works end that are fetched for together: each reads objects that those before it read."""
    segments: set[str] = set()
    count = size = everything = 0
    for number in range(start, len(works)):
        small = [(piece, _is_small(piece)) for piece in pieces_of(works[number])]
        found = {name for piece, which in small for name in piece.extents.segment[which].tolist()}
        count += sum(int(which.sum()) for _, which in small)
        size += sum(int(piece.extents.column("size")[which].sum()) for piece, which in small)
        everything += sum(piece.size for piece, _ in small)
        is_full = count > MAX_SPANS or size > room or (most_bytes is not None and everything > most_bytes)
        if number > start and (is_full or found.isdisjoint(segments)):
            return number
        segments |= found
    return len(works)


def _is_small(piece: Piece) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    # An extent that is read in steps is not read from here.
    small: np.ndarray[tuple[int], np.dtype[np.bool_]] = piece.extents.column("size") <= min(
        SMALL_BYTES, piece.config.segment_bytes
    )
    return small


def _small_spans(pieces: Sequence[Piece]) -> Iterator[Span]:
    for piece in pieces:
        extents = piece.extents.extents(piece.topic_id, piece.partition)
        for extent, is_small in zip(extents, _is_small(piece).tolist(), strict=True):
            if is_small:
                yield extent_span(piece.topic, extent)


def _within(spans: Iterator[Span], room: int) -> list[Span]:
    """As many as there is room for."""
    taken = []
    for span in islice(spans, MAX_SPANS):
        room -= span.size
        if room < 0:
            break
        taken.append(span)
    return taken


def _room() -> int:
    try:
        return min(SPOOL_BYTES, shutil.disk_usage(tempfile.gettempdir()).free // _FREE_SHARE)
    except OSError:
        return 0


def _write(file: IO[bytes], data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
