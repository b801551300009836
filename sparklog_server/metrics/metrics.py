"""What the broker counts. Plain attributes and lists, because every request and batch passes here.

Invariants: nothing here grows with traffic: per topic one record (at most MAX_TOPICS, those of deleted
    topics are dropped at the next scrape), per API one, histograms of fixed size. A metric exists only
    when something feeds it: gauges are read from callables that their owners register.
Not here: names and labels for Prometheus (observe/), HTTP (http/).
Concurrency: each counter has one writing thread: requests, fetches and topics are counted on the event
    loop; `published` on the publisher's thread; `storage_call` wherever it is called, under a lock.
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
# Quantiles cover the last one to two windows, so that a dashboard shows what is happening now, not the
# average since the start; `count` and `total` are since the start.
# Invariants: the memory never grows; a quantile is at most 1/16 (6 %) above the true value, and never
#     above the largest value seen in the window.
# Not here: when a window ends (`Metrics.tick`).
# Concurrency: one writing thread; reading at the same time may miss the newest value.


STEPS_PER_OCTAVE = 16  # linear within an octave, as HdrHistogram
OCTAVES = 36  # 2^-10 ms (1 us) .. 2^26 ms (18 hours)
LOWEST_EXPONENT = -10
BUCKETS = STEPS_PER_OCTAVE * OCTAVES


class Histogram:
    """Durations (or any positive numbers) of one kind."""

    __slots__ = ("_current", "_current_max", "_previous", "_previous_max", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = [0] * BUCKETS
        self._previous = [0] * BUCKETS
        self._current_max = 0.0
        self._previous_max = 0.0

    def record(self, value: float) -> None:
        """Count one value; what is not positive counts as the smallest."""
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
        """End a window: what is older than the one just ended no longer shows in quantiles."""
        self._previous, self._current = self._current, [0] * BUCKETS
        self._previous_max, self._current_max = self._current_max, 0.0

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """The value below which each share of the recent values lies; 0 if there were none."""
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
# What this broker has done for transactions. Counted on the event loop.


class TransactionCounters:
    """Since the start."""

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
    """Numbers that somebody else owns; `Metrics.gauge` says where to read them."""

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

    def add(self, other: "TopicCounters") -> None:
        """Keep the sums of a topic that is gone."""
        for name in TopicCounters.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class RequestCounters:
    """Requests of one API; the times are Kafka's: total = queue + local + remote + response queue + send."""

    __slots__ = ("by_version", "errors", "local", "queue", "remote", "response_queue", "send", "total")

    def __init__(self) -> None:
        self.by_version: dict[int, int] = {}
        self.errors: dict[int, int] = {}  # error code -> responses that carried it; 0 is NONE
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
    """What maintenance by this broker has done. The event loop's."""

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
        self.is_dead = False  # nobody looks any more
        self.dirty_ratio = 0.0  # the largest; this and the next as of the last look
        self.compaction_overdue_ms = 0
        self.recopied_ratio = 0.0  # of the last compaction: bytes written, of those in whose place they stand
        self.clean_ms = 0
        self.uncleanable_partitions = 0
        self.uncleanable_bytes = 0


class Metrics:
    """The broker's counters; one per broker, made before everything else."""

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
        self.state_records_skipped: Counter[str] = Counter()  # that say nothing; by internal topic
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
        """One answered request.

        Args:
            api_name: Kafka's name: "Produce", "Fetch", "Metadata", ...
            queue_ms: read from the socket -> handler began. local_ms: in the handler, running or in storage.
            remote_ms: waiting for others (purgatory, publish, rebalance). response_queue_ms: waiting for
                earlier responses of the connection. send_ms: writing to the socket.
            error: the response's (first) error code; -1 for a request that ended without an answer.
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
        """A connection closed at once; `reason` is one of a few words ("max.connections", ...)."""
        self.connections_refused[reason] = self.connections_refused.get(reason, 0) + 1

    # Topics (event loop). An unknown topic's name must not be given: pass "" (counted in the sum only).

    def messages_in(self, topic: str, records: int, size: int) -> None:
        """Records acknowledged (appended and published)."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.messages_in += records
            counters.bytes_in += size

    def bytes_out(self, topic: str, size: int) -> None:
        """Record bytes handed to consumers."""
        self.all_topics.bytes_out += size
        self._topic(topic).bytes_out += size

    def bytes_rejected(self, topic: str, size: int) -> None:
        """Record bytes refused: too large, damaged, out of sequence."""
        self.all_topics.bytes_rejected += size
        self._topic(topic).bytes_rejected += size

    def produce_request(self, topic: str, *, failed: bool = False) -> None:
        """One partition of a produce request, as Kafka counts."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.produce_requests += 1
            counters.failed_produce_requests += failed

    def fetch_request(self, topic: str, *, failed: bool = False) -> None:
        """One partition of a fetch request."""
        for counters in (self.all_topics, self._topic(topic)):
            counters.fetch_requests += 1
            counters.failed_fetch_requests += failed

    def forget_topics(self, existing: Callable[[str], bool]) -> None:
        """Drop the counters of topics that are gone; the sum over all topics keeps theirs."""
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
        """Bytes of a fetch that came from the hot-tail cache."""
        self.cache_hits += 1
        self.cache_hit_bytes += size

    def cache_miss(self, size: int) -> None:
        """Bytes of a fetch that were read from storage."""
        self.cache_misses += 1
        self.cache_miss_bytes += size

    # Storage

    def published(
        self, parts: int, size: int, *, total_ms: float, sync_ms: float = 0.0, commit_ms: float = 0.0
    ) -> None:
        """Count a group commit: written, synced and committed. The publisher's thread."""
        publishes = self.publishes
        publishes.parts += parts
        publishes.bytes += size
        publishes.parts_per_commit.record(parts)
        publishes.total.record(total_ms)
        publishes.sync.record(sync_ms)
        publishes.commit.record(commit_ms)

    def storage_call(self, work_ms: float, queue_ms: float = 0.0) -> None:
        """A call in a storage thread: how long it ran, and how long it waited for one. Any thread."""
        with self._storage_lock:
            self.storage_busy_ms += work_ms
            self.storage_calls.record(work_ms)
            self.storage_queue.record(queue_ms)

    # Gauges and windows

    def gauge(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Say where a number can be read; `read` is called on the event loop at each scrape."""
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
