"""The broker's counters: plain attributes and lists, since every request and batch updates them.

Invariants: nothing here grows with traffic: one record per topic (at most MAX_TOPICS, those of deleted
    topics are dropped at the next scrape), one per API, histograms of fixed size. A gauge exists only if its
    owner has registered a callable that reads it.
Not here: names and labels for Prometheus (observe/), HTTP (http/).
Concurrency: each counter has one writing thread: requests, fetches and topics are counted on the event
    loop; `published` on the publisher's thread; `storage_call` in any thread, under a lock.
Sources: Kafka's BrokerTopicMetrics, RequestChannel metrics, LogFlushStats.
"""

import enum
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

# --- histogram ---------------------------------------------------------------------------------------
#
# Durations in logarithmic buckets: bounded memory, one list increment per value.
#
# Quantiles cover the last one to two windows, so that a dashboard shows current values, not the average since
# the start; `count` and `total` are since the start.
# Invariants: the memory never grows; a quantile is at most 1/16 (6 %) above the true value, and never
#     above the largest value seen in the window.
# Not here: the end of windows (`Metrics.tick`).
# Concurrency: one writing thread; a concurrent read may miss the newest value.


STEPS_PER_OCTAVE = 16  # linear within an octave, as HdrHistogram
OCTAVES = 36  # 2^-10 ms (1 us) .. 2^26 ms (18 hours)
LOWEST_EXPONENT = -10
BUCKETS = STEPS_PER_OCTAVE * OCTAVES


class Histogram:
    """A distribution of durations, or of other positive numbers."""

    __slots__ = ("_current", "_current_max", "_previous", "_previous_max", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = [0] * BUCKETS
        self._previous = [0] * BUCKETS
        self._current_max = 0.0
        self._previous_max = 0.0

    def record(self, value: float) -> None:
        """Count a value; 0 and negative values count as the smallest."""
        self.count += 1
        if value > 0.0:
            self.total += value
            self._current_max = max(self._current_max, value)
            mantissa, exponent = math.frexp(value)  # 0.5 <= mantissa < 1
            octave = exponent - 1 - LOWEST_EXPONENT
            if octave < 0:
                index = 0
            elif octave >= OCTAVES or value == math.inf:
                index = BUCKETS - 1
            else:
                index = octave * STEPS_PER_OCTAVE + int((mantissa - 0.5) * (2 * STEPS_PER_OCTAVE))
        else:
            index = 0
        self._current[index] += 1

    def rotate(self) -> None:
        """End a window: quantiles then cover it and the next one, but no older values."""
        self._previous, self._current = self._current, [0] * BUCKETS
        self._previous_max, self._current_max = self._current_max, 0.0

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Return the quantiles of the recent values, for these shares; 0 if there were none."""
        counts = [a + b for a, b in zip(self._current, self._previous, strict=True)]
        seen = sum(counts)
        largest = max(self._current_max, self._previous_max)
        return [_quantile(counts, seen, share, largest) for share in wanted]


def _quantile(counts: Sequence[int], seen: int, share: float, largest: float) -> float:
    if not seen:
        return 0.0
    rank = min(max(math.ceil(share * seen), 1), seen)
    below = 0
    for index, count in enumerate(counts):
        below += count
        if below >= rank:
            return min(_upper_edge(index), largest)
    raise AssertionError("the counts add up to `seen`")


def _upper_edge(index: int) -> float:
    octave, step = divmod(index, STEPS_PER_OCTAVE)
    return math.ldexp(1.0 + (step + 1) / STEPS_PER_OCTAVE, octave + LOWEST_EXPONENT)


# --- transaction counters ----------------------------------------------------------------------------
#
# Counted on the event loop.


class TransactionCounters:
    """Operations on transactions by this broker, since the start."""

    __slots__ = ("aborted", "aborted_by_administrators", "committed", "forgotten", "initialised", "timed_out")

    def __init__(self) -> None:
        self.initialised = 0
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        self.aborted_by_administrators = 0
        self.forgotten = 0


# --- metrics -----------------------------------------------------------------------------------------


MAX_TOPICS = 20_000
WINDOW_MS = 60_000


class Gauge(enum.Enum):
    """Numbers of other owners, who register a callable with `Metrics.gauge`."""

    REQUEST_QUEUE_SIZE = "requests that wait for one of queued.max.requests"
    CONNECTION_COUNT = "open connections"
    PURGATORY_FETCH = "fetch requests waiting for data"
    PURGATORY_PRODUCE = "produce requests waiting to be published"
    PURGATORY_REBALANCE = "join and sync requests waiting for their group"
    CACHE_BYTES = "bytes in the hot-tail cache"
    PUBLISH_BACKLOG_BYTES = "produced bytes waiting to be published"


class TopicCounters:
    """Traffic of one topic."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produce_requests = 0
        self.fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0


class RequestCounters:
    """Requests of one API; the times are Kafka's: total = queue + local + remote + response queue + send."""

    __slots__ = ("by_version", "errors", "local", "queue", "remote", "response_queue", "send", "total")

    def __init__(self) -> None:
        self.by_version: dict[int, int] = {}
        self.errors: dict[int, int] = {}  # error code -> number of responses; 0 is NONE
        self.total = Histogram()
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.response_queue = Histogram()
        self.send = Histogram()

    def histograms(self) -> tuple[Histogram, ...]:
        return (self.total, self.queue, self.local, self.remote, self.response_queue, self.send)


class PublishCounters:
    """Group commits: produce requests that shared one sync and one metadata commit."""

    __slots__ = ("bytes", "commit", "parts", "parts_per_commit", "sync", "total")

    def __init__(self) -> None:
        self.parts = 0
        self.bytes = 0
        self.parts_per_commit = Histogram()
        self.sync = Histogram()
        self.commit = Histogram()
        self.total = Histogram()

    def histograms(self) -> tuple[Histogram, ...]:
        return (self.parts_per_commit, self.sync, self.commit, self.total)


class MaintenanceCounters:
    """Maintenance by this broker. Counted on the event loop."""

    __slots__ = (
        "clean_ms",
        "compaction_overdue_ms",
        "dirty_ratio",
        "expired_records",
        "failed_rounds",
        "is_dead",
        "last_round_ms",
        "merged_bytes",
        "merged_extents",
        "recopied_ratio",
        "rounds",
        "uncleanable_bytes",
        "uncleanable_partitions",
    )

    def __init__(self) -> None:
        self.rounds = 0
        self.failed_rounds = 0
        self.expired_records = 0
        self.merged_extents = 0
        self.merged_bytes = 0
        self.last_round_ms: int | None = None  # Unix time of its end
        self.is_dead = False  # maintenance has ended
        self.dirty_ratio = 0.0  # the largest; this and the next as of the last check
        self.compaction_overdue_ms = 0
        self.recopied_ratio = 0.0  # of the last compaction: bytes written / bytes replaced
        self.clean_ms = 0
        self.uncleanable_partitions = 0
        self.uncleanable_bytes = 0


class Metrics:
    """The broker's counters; one per broker, created first."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestCounters] = {}
        self.topics: dict[str, TopicCounters] = {}
        self.all_topics = TopicCounters()
        self.publishes = PublishCounters()
        self.maintenance = MaintenanceCounters()
        self.transactions = TransactionCounters()
        self.elections = Histogram()  # commits of the controller that gave partitions leaders
        self.cache_hits = 0
        self.cache_hit_bytes = 0
        self.cache_misses = 0
        self.cache_miss_bytes = 0
        self.state_records_skipped: Counter[str] = Counter()  # unknown records, by internal topic
        self.connections_accepted = 0
        self.connections_refused: dict[str, int] = {}  # reason -> count
        self.loop_lag = Histogram()
        self.storage_calls = Histogram()
        self.storage_queue = Histogram()
        self.storage_busy_ms = 0.0
        self.gauges: dict[Gauge, Callable[[], float]] = {}
        self._storage_lock = threading.Lock()
        self._window_end_ms: int | None = None

    # Requests (event loop)

    def request(
        self,
        api_name: str,
        total_ms: float,
        *,
        version: int = 0,
        queue_ms: float = 0.0,
        local_ms: float = 0.0,
        remote_ms: float = 0.0,
        response_queue_ms: float = 0.0,
        send_ms: float = 0.0,
        error: int = 0,
    ) -> None:
        """Count an answered request.

        Args:
            api_name: Kafka's name: "Produce", "Fetch", "Metadata", ...
            queue_ms: read from the socket -> handler began. local_ms: in the handler, running or in storage.
            remote_ms: waiting for records, publishing or group members. response_queue_ms: waiting for
                earlier responses of the connection. send_ms: writing to the socket.
            error: the response's (first) error code; -1: the request ended without an answer.
        """
        counters = self.requests.get(api_name)
        if counters is None:
            counters = self.requests[api_name] = RequestCounters()
        counters.by_version[version] = counters.by_version.get(version, 0) + 1
        counters.errors[error] = counters.errors.get(error, 0) + 1
        counters.total.record(total_ms)
        counters.queue.record(queue_ms)
        counters.local.record(local_ms)
        counters.remote.record(remote_ms)
        counters.response_queue.record(response_queue_ms)
        counters.send.record(send_ms)

    def connection_accepted(self) -> None:
        self.connections_accepted += 1

    def connection_refused(self, reason: str) -> None:
        """Count a refused connection; `reason` is from a small set ("max.connections", ...)."""
        self.connections_refused[reason] = self.connections_refused.get(reason, 0) + 1

    # Topics (event loop). For an unknown topic pass "", which counts in the sum only.

    def messages_in(self, topic: str, records: int, size: int) -> None:
        """Count acknowledged records (appended and published)."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.messages_in += records
            counters.bytes_in += size

    def bytes_out(self, topic: str, size: int) -> None:
        """Count record bytes sent to consumers."""
        self.all_topics.bytes_out += size
        self._topic(topic).bytes_out += size

    def bytes_rejected(self, topic: str, size: int) -> None:
        """Count refused record bytes: too large, damaged, out of sequence."""
        self.all_topics.bytes_rejected += size
        self._topic(topic).bytes_rejected += size

    def produce_request(self, topic: str, *, failed: bool = False) -> None:
        """Count a partition of a produce request, as Kafka does."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.produce_requests += 1
            counters.failed_produce_requests += failed

    def fetch_request(self, topic: str, *, failed: bool = False) -> None:
        """Count a partition of a fetch request."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.fetch_requests += 1
            counters.failed_fetch_requests += failed

    def forget_topics(self, existing: Callable[[str], bool]) -> None:
        """Drop the counters of deleted topics; the sum over all topics still includes them."""
        for topic in [name for name in self.topics if not existing(name)]:
            del self.topics[topic]

    def _topic(self, topic: str) -> TopicCounters:
        counters = self.topics.get(topic)
        if counters is None:
            counters = TopicCounters()
            if topic and len(self.topics) < MAX_TOPICS:
                self.topics[topic] = counters
        return counters

    def cache_hit(self, size: int) -> None:
        """Count bytes of a fetch that came from the hot-tail cache."""
        self.cache_hits += 1
        self.cache_hit_bytes += size

    def cache_miss(self, size: int) -> None:
        """Count bytes of a fetch that were read from storage."""
        self.cache_misses += 1
        self.cache_miss_bytes += size

    # Storage

    def published(
        self, parts: int, size: int, *, total_ms: float, sync_ms: float = 0.0, commit_ms: float = 0.0
    ) -> None:
        """Count a group commit: written, synced (`sync_ms`) and committed. The publisher's thread."""
        publishes = self.publishes
        publishes.parts += parts
        publishes.bytes += size
        publishes.parts_per_commit.record(parts)
        publishes.total.record(total_ms)
        publishes.sync.record(sync_ms)
        publishes.commit.record(commit_ms)

    def storage_call(self, work_ms: float, queue_ms: float = 0.0) -> None:
        """Count a call in a storage thread: its duration, and its wait for a thread. Any thread."""
        with self._storage_lock:
            self.storage_busy_ms += work_ms
            self.storage_calls.record(work_ms)
            self.storage_queue.record(queue_ms)

    # Gauges and windows

    def gauge(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Register a gauge; `read` is called on the event loop at each scrape."""
        self.gauges[gauge] = read

    def tick(self, now_ms: int) -> None:
        """End the quantiles' window when it is over. Called every second and at each scrape."""
        if self._window_end_ms is None:
            self._window_end_ms = now_ms + WINDOW_MS
        if now_ms < self._window_end_ms:
            return
        # After a long pause without ticks both windows are old: the second rotation empties them.
        for _ in range(1 + (now_ms >= self._window_end_ms + WINDOW_MS)):
            for histogram in self._histograms():
                histogram.rotate()
        self._window_end_ms = now_ms + WINDOW_MS

    def _histograms(self) -> list[Histogram]:
        found = [self.loop_lag, self.storage_calls, self.storage_queue, self.elections]
        found += self.publishes.histograms()
        for counters in self.requests.values():
            found += counters.histograms()
        return found


__all__ = ["Gauge", "MaintenanceCounters", "Metrics", "PublishCounters", "RequestCounters", "TopicCounters"]
