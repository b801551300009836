"""How much of each segment is durable: what may be published.

Invariants: a draft passes only if a sync that succeeded covered it, in whatever thread that sync ran.
Bounds: MAX_SYNCED segments, those of drafts that wait to be published; the least recently used one is
    forgotten first, as forgotten would mean not durable.
Not here: syncing (writer.py).
Concurrency: the writer's lock.
"""

from sparklog.errors import FatalStorageError, RetriableError
from sparklog.metadata import DraftExtent
from sparklog.storage import Store

MAX_SYNCED = 10_000


class SyncedSegments:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._durable: dict[str, int] = {}  # by segment, up to where; the least recently used first

    def note(self, segment: str, position: int) -> None:
        """It is durable up to there."""
        self._durable.pop(segment, None)
        self._durable[segment] = position

    def forget_oldest(self) -> None:
        """Keep to MAX_SYNCED."""
        while len(self._durable) > MAX_SYNCED:
            del self._durable[next(iter(self._durable))]

    def validate(self, draft: DraftExtent, store: Store) -> None:
        """Refuse a draft that is not durable.

        Raises: RetriableError STAGING_EXPIRED, its segment is gone; FatalStorageError.
        """
        durable = self._durable.get(draft.segment, 0)
        if durable:
            self.note(draft.segment, durable)
        if draft.position + draft.size > durable:
            if not store.exists(draft.segment):
                raise removed_error(draft.segment)
            raise FatalStorageError(
                "WRITER_FAILED",
                f"{draft.segment}@{draft.position}: {draft.size} bytes are not durable, "
                f"only those up to {durable}: a sync of this segment failed",
                fix="append the rows again; the writer has started a new segment",
            )


def removed_error(segment: str) -> RetriableError:
    """Somebody deleted the segment that was written to."""
    return RetriableError(
        "STAGING_EXPIRED",
        f"{segment}: found that it was removed while it was written to, since nothing in it was live",
        fix="append the rows again, to a new segment; of these nothing is published, nor will be",
    )
