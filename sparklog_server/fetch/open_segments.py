"""Segments kept open, shared by the storage threads and by responses that are still being sent.

Invariants: a segment that somebody leased stays open until the last lease is released, even if it was pushed
    out or deleted meanwhile; at most `limit` idle ones are open beside those.
Concurrency: any thread; files are opened outside the lock.
Sources: log/segment_file.py.
"""

import threading
from types import TracebackType
from typing import Self

from sparklog.log.segment_file import SegmentFile
from sparklog.log.span import Span
from sparklog.storage import Store


class Lease:
    """The right to use an open segment, until `release` or the end of the with block."""

    __slots__ = ("_held", "_owner", "segment")

    def __init__(self, owner: "OpenSegments", held: "_Held") -> None:
        self._owner = owner
        self._held: _Held | None = held
        self.segment = held.segment

    def release(self) -> None:
        """Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            self._owner._give_back(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Held:
    __slots__ = ("kept", "leases", "segment")

    def __init__(self, segment: SegmentFile) -> None:
        self.segment = segment
        self.leases = 0
        self.kept = True  # in the table: others may lease it


class OpenSegments:
    """A bounded cache of open segments."""

    def __init__(self, store: Store, *, limit: int = 256) -> None:
        self._store = store
        self._limit = limit
        self._lock = threading.Lock()
        self._table: dict[str, _Held] = {}  # least recently used first

    def lease(self, span: Span) -> Lease:
        """The span's segment, opened if need be; DataLossError if it is gone."""
        with self._lock:
            held = self._table.get(span.segment)
            # Shorter than the span: it has grown since it was opened, or it is truncated. Look again.
            if held is not None and held.segment.holds(span):
                del self._table[span.segment]
                self._table[span.segment] = held
                held.leases += 1
                return Lease(self, held)
        opened = _Held(SegmentFile.open(self._store, span))
        opened.leases = 1
        with self._lock:
            before = self._table.pop(span.segment, None)
            closing = [] if before is None else self._dropped([before])
            self._table[span.segment] = opened
            surplus = len(self._table) - self._limit
            closing += self._dropped([self._table.pop(name) for name in list(self._table)[: max(0, surplus)]])
        for segment in closing:
            segment.close()
        return Lease(self, opened)

    def close(self) -> None:
        """Close the idle ones; leased ones follow when they are released."""
        with self._lock:
            closing = self._dropped(list(self._table.values()))
            self._table.clear()
        for segment in closing:
            segment.close()

    def close_removed(self) -> None:
        """Close idle ones whose files were removed: until then the disk does not get their space back."""
        with self._lock:
            removed = [
                name for name, held in self._table.items() if held.leases == 0 and held.segment.is_removed
            ]
            closing = self._dropped([self._table.pop(name) for name in removed])
        for segment in closing:
            segment.close()

    @property
    def leases(self) -> int:
        """How many are held of the segments that others may lease, too."""
        with self._lock:
            return sum(held.leases for held in self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def _dropped(self, dropped: list[_Held]) -> list[SegmentFile]:
        """What can be closed at once."""
        for held in dropped:
            held.kept = False
        return [held.segment for held in dropped if held.leases == 0]

    def _give_back(self, held: _Held) -> None:
        with self._lock:
            held.leases -= 1
            close = held.leases == 0 and not held.kept
        if close:
            held.segment.close()
