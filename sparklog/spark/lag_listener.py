"""StreamingLagListener: the lag of each streaming query, in records.

Python sources cannot report metrics of their own, but every progress report has the source's end offset and
the log's latest offset; their difference is the lag. Spark before 4.2 does not ask a Python source for the
latest offset, and reports the end of the micro-batch instead: the lag is unknown then.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sparklog.spark.data_source_api import CAN_LIMIT_READS
from sparklog.spark.features import ADMISSION_CONTROL

logger = logging.getLogger("sparklog.spark.lag")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLag:
    """Lag of one query after one micro-batch, in records."""

    query_id: str
    name: str | None
    batch_id: int
    timestamp: str
    by_partition: Mapping[tuple[str, int], int]

    @property
    def total(self) -> int:
        return sum(self.by_partition.values())

    @property
    def largest(self) -> int:
        return max(self.by_partition.values(), default=0)


class StreamingLagListener(StreamingQueryListener):
    """Keeps the latest lag of every query that reads from sparklog (or from Kafka).

    Example:
        ``listener = StreamingLagListener(); spark.streams.addListener(listener)``
        and later ``listener.lag(query.id).total``.

    Args:
        on_lag: called with each new QueryLag, on Spark's listener thread; keep it short.
    """

    def __init__(self, on_lag: Callable[[QueryLag], None] | None = None) -> None:
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._latest: dict[str, QueryLag] = {}
        self._unknown: set[str] = set()

    def lag(self, query_id: object) -> QueryLag | None:
        """Return the latest lag of a query; None before its first progress report, or if it is unknown."""
        with self._lock:
            return self._latest.get(str(query_id))

    def all(self) -> list[QueryLag]:
        """Return the latest lag of every query."""
        with self._lock:
            return list(self._latest.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compute the lag from a progress report."""
        progress = event.progress
        if not CAN_LIMIT_READS and any(_is_ours(source.endOffset) for source in progress.sources):
            self._warn_unknown(progress.name or str(progress.id))
            return
        by_partition: dict[tuple[str, int], int] = {}
        for source in progress.sources:
            for tp, records in lag_between(source.endOffset, source.latestOffset).items():
                # Several sources of one topic: the lag is that of the slowest one.
                by_partition[tp] = max(records, by_partition.get(tp, 0))
        lag = QueryLag(
            query_id=str(progress.id),
            name=progress.name,
            batch_id=progress.batchId,
            timestamp=progress.timestamp,
            by_partition=by_partition,
        )
        with self._lock:
            self._latest[lag.query_id] = lag
        logger.info(
            "query %s, batch %d: %d records behind", lag.name or lag.query_id, lag.batch_id, lag.total
        )
        if self._on_lag is not None:
            self._on_lag(lag)

    def _warn_unknown(self, query: str) -> None:
        if query not in self._unknown:
            self._unknown.add(query)
            logger.warning(
                "the lag of query %s is unknown: this Spark has no %s, and does not report the log's end; "
                "with the option kafka.group.id `sparklog groups describe` shows it",
                query,
                ADMISSION_CONTROL.name,
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Keep the last lag: an idle query reads nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the last lag, for `lag` and `all`."""


def _is_ours(offset: str | None) -> bool:
    return '"@root"' in (offset or "")


def lag_between(end: str | None, latest: str | None) -> dict[tuple[str, int], int]:
    """Return the records by partition between two offsets of a progress report (JSON text).

    A partition that was never read counts from offset 0. The result is empty if a text is not an offset of
    sparklog or Kafka.
    """
    ends, latests = _positions(end), _positions(latest)
    return {tp: max(0, offset - ends.get(tp, 0)) for tp, offset in latests.items()}


def _positions(text: str | None) -> dict[tuple[str, int], int]:
    try:
        document = json.loads(text) if text else {}
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in document.items()
            if not topic.startswith("@")
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
