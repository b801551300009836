"""A segment that a process is appending to, and the strictest limits of the topics in it.

Invariants: batches refer to nothing before the segment's last sync. A segment grows for half of MAX_AGE_MS at
    most, whatever segment.ms says: a sweep leaves a week to what was written and not published yet
    (adr/0019), and half of it belongs to whoever has written last.
Not here: which segment an append goes to (writer.py), its index (growing_index.py).
Concurrency: the writer's lock.
"""

import contextlib
import dataclasses

from sparklog.errors import StorageError
from sparklog.log.config import TopicConfig
from sparklog.log.growing_index import ENTRY_BYTES, GrowingIndex
from sparklog.metadata import DraftExtent
from sparklog.storage import AppendFile

MAX_AGE_MS = 302_400_000  # half a week


@dataclasses.dataclass(slots=True, kw_only=True)
class OpenSegment:
    """See the module's docstring."""

    name: str
    lane: str
    file: AppendFile
    index: GrowingIndex
    created_ms: int
    synced_ms: int
    limit_bytes: int
    limit_ms: int
    limit_index_bytes: int
    unsynced_records: int = 0
    synced_position: int = 0

    def has_room(self, size_bytes: int, batches: int, config: TopicConfig, now_ms: int) -> bool:
        """Does it keep within its limits, and the topic's, with so much more?"""
        size = self.file.position + size_bytes
        index_bytes = self.index.size_bytes + ENTRY_BYTES * batches
        return (
            size <= min(self.limit_bytes, config.segment_bytes)
            and index_bytes <= min(self.limit_index_bytes, config.segment_index_bytes)
            and now_ms - self.created_ms <= min(self.limit_ms, config.segment_ms, MAX_AGE_MS)
        )

    def narrow(self, config: TopicConfig) -> None:
        """Take in a topic with these limits."""
        self.limit_bytes = min(self.limit_bytes, config.segment_bytes)
        self.limit_index_bytes = min(self.limit_index_bytes, config.segment_index_bytes)
        self.limit_ms = min(self.limit_ms, config.segment_ms)

    @property
    def is_removed(self) -> bool:
        """Was its file removed while nothing in it was waiting for a sync? Then nothing is lost with it."""
        return self.file.position == self.synced_position and self.file.is_removed

    def is_end(self, draft: DraftExtent) -> bool:
        """Would an append now continue this draft?"""
        return self.name == draft.segment and self.file.position == draft.position + draft.size

    def close_quietly(self) -> None:
        """Close files that nothing more depends on: synced, failed, or the parent's."""
        with contextlib.suppress(StorageError, OSError):
            self.file.close()
        self.index.close()
