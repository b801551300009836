"""Report records that are past their topic's retention.ms already when they are appended.

They are no error, as in Kafka. But a backfill by event time would lose them at its first expiry. Counted by
extents, as retention removes them (maintenance/retain.py): an extent that also holds a younger record stays
completely, so the counts are "at least".
Invariants: topics without a time limit, or with compaction only, are skipped.
Not here: removing them.
Concurrency: RetentionNotice: any thread.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from sparklog.clock import Clock
from sparklog.forking import notify_after_fork
from sparklog.log.config import TopicConfig
from sparklog.metadata import Extent, Image

INTERVAL_MS = 60_000
MAX_REMEMBERED = 1_000
_MAX_NAMED = 10


def is_past_retention(config: TopicConfig, max_timestamp_ms: int, now_ms: int) -> bool:
    """True if the next expiry would remove an extent with this largest timestamp, were it the oldest."""
    retention_ms = config.retention_ms
    return (
        retention_ms >= 0
        and 0 <= max_timestamp_ms < now_ms - retention_ms
        and "delete" in config.cleanup_policy
    )


def past_retention(image: Image, extents: Iterable[Extent], now_ms: int) -> dict[str, int]:
    """Return the minimum number of records past retention in just appended extents, by topic."""
    extents = list(extents)
    limited: dict[str, tuple[str, TopicConfig]] = {}
    for topic_id in {extent.topic_id for extent in extents}:
        topic = image.topic_by_id.get(topic_id)
        if topic is not None:
            config = TopicConfig.parse(topic.configs, image.configs)
            if config.retention_ms >= 0:
                limited[topic_id] = topic.name, config
    found: Counter[str] = Counter()
    for extent in extents if limited else ():
        if extent.topic_id in limited:
            name, config = limited[extent.topic_id]
            if is_past_retention(config, extent.max_timestamp_ms, now_ms):
                found[name] += extent.record_count
    return dict(found)


def past_retention_text(found: Mapping[str, int]) -> str:
    """Return the warning."""
    named = [f"at least {count} of topic {name!r}" for name, count in sorted(found.items())[:_MAX_NAMED]]
    more = f", and some of {len(found) - _MAX_NAMED} more topics" if len(found) > _MAX_NAMED else ""
    return (
        "records were appended that are past their topic's retention.ms already, by their timestamps, so "
        f"that the next expiry removes them: {', '.join(named)}{more}; to keep them, raise retention.ms, or "
        "set it to -1"
    )


class RetentionNotice:
    """Reports a topic immediately, and then once per INTERVAL_MS, with the number since: there may be
    thousands of appends a second. Records after the last report are reported with the next append.
    """

    def __init__(self, clock: Clock, logger: logging.Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._told_ms: dict[str, int] = {}
        self._untold: Counter[str] = Counter()
        self.after_fork_in_child()
        notify_after_fork(self)

    def after_fork_in_child(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def note(self, found: Mapping[str, int]) -> None:
        """Add appended records, by topic, as returned by `past_retention`."""
        if not found:
            return
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if len(self._told_ms) > MAX_REMEMBERED:
                self._told_ms.clear()
                self._untold.clear()
            self._untold.update(found)
            due = {name: self._untold[name] for name in found if self._is_due(name, now_ms)}
            for name in due:
                self._told_ms[name] = now_ms
                del self._untold[name]
        if due:
            self._logger.warning("%s", past_retention_text(due))

    def _is_due(self, topic: str, now_ms: int) -> bool:
        told_ms = self._told_ms.get(topic)
        return told_ms is None or now_ms - told_ms >= INTERVAL_MS
