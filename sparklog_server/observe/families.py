"""Prometheus families with exact names, in one line each.

Kafka's histograms become what the JMX exporter makes of them: gauges with the label quantile, and a count.
Sources: Strimzi's kafka-metrics.yaml.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sparklog.client import OFFSETS_TOPIC
from sparklog.client.cluster_view import STATE_NAMES, coordinated
from sparklog.metadata import NO_NODE, Image, PartitionState, in_sync
from sparklog_server.metrics.metrics import Gauge, Histogram, MaintenanceCounters, RequestCounters
from sparklog_server.observe.observation import GroupView, Observation
from sparklog_server.protocol.apis import ErrorCode

QUANTILES = (0.50, 0.75, 0.95, 0.98, 0.99, 0.999)
QUANTILE_NAMES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
Labels = Mapping[str, str]
Rows = Iterable[tuple[Labels, float]]


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One number."""
    return gauges(name, help_text, [({}, value)])


def gauges(name: str, help_text: str, rows: Rows) -> Metric:
    """A number for each set of labels."""
    family = GaugeMetricFamily(name, help_text)
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def counter(name: str, help_text: str, value: float) -> Metric:
    """One number that only grows; `name` ends in _total or _count."""
    return counters(name, help_text, [({}, value)])


def counters(name: str, help_text: str, rows: Rows) -> Metric:
    """As `counter`, for each set of labels."""
    family: Metric
    if name.endswith("_total"):
        family = CounterMetricFamily(name, help_text)
    else:
        # The JMX exporter's _count has no _total, which prometheus_client insists on: untyped, then.
        family = Metric(name, help_text, "untyped")
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def quantiles(name: str, help_text: str, histograms: Iterable[tuple[Labels, Histogram]]) -> Iterator[Metric]:
    """Gauges of the quantiles of the last minute or two, and how many values there were since the start."""
    rows: list[tuple[Labels, float]] = []
    counts: list[tuple[Labels, float]] = []
    for labels, histogram in histograms:
        found = histogram.quantiles(QUANTILES)
        rows += [
            ({**labels, "quantile": quantile}, value)
            for quantile, value in zip(QUANTILE_NAMES, found, strict=True)
        ]
        counts.append((labels, histogram.count))
    yield gauges(name, help_text, rows)
    yield counters(f"{name}_count", f"{help_text} How many since the start.", counts)


# --- broker families ---------------------------------------------------------------------------------
#
# What the broker does: traffic, requests, load, and what lies behind them (publishing, cache, loop).
#
# Invariants: a family is there only if something feeds it; what cannot happen here (shrinking in-sync
#     replicas, unclean elections) has none.
# Sources: the names that Strimzi's dashboards use; Kafka BrokerTopicMetrics, RequestChannel.


_TRAFFIC = {
    "messagesin": ("messages_in", "Records acknowledged to producers."),
    "bytesin": ("bytes_in", "Bytes of records acknowledged to producers."),
    "bytesout": ("bytes_out", "Bytes of records handed to consumers."),
    "bytesrejected": ("bytes_rejected", "Bytes of records refused."),
    "totalproducerequests": ("produce_requests", "Produce requests, by partition."),
    "totalfetchrequests": ("fetch_requests", "Fetch requests, by topic."),
    "failedproducerequests": ("failed_produce_requests", "Produce requests refused, by partition."),
    "failedfetchrequests": ("failed_fetch_requests", "Fetch requests refused, by topic."),
}
_TIMES = {
    "totaltimems": ("total", "Milliseconds from a request's arrival until its answer is sent."),
    "requestqueuetimems": ("queue", "Milliseconds until the handler began."),
    "localtimems": ("local", "Milliseconds in the handler."),
    "remotetimems": ("remote", "Milliseconds of waiting for records, publishing or other members."),
    "responsequeuetimems": (
        "response_queue",
        "Milliseconds of waiting for the connection's earlier answers.",
    ),
    "responsesendtimems": ("send", "Milliseconds of writing to the connection."),
}
_GAUGES = {
    Gauge.REQUEST_QUEUE_SIZE: "kafka_network_requestchannel_requestqueuesize",
    Gauge.CONNECTION_COUNT: "kafka_server_socket_server_metrics_connection_count",
    Gauge.CACHE_BYTES: "sparklog_fetch_cache_bytes",
    Gauge.PUBLISH_BACKLOG_BYTES: "sparklog_publish_backlog_bytes",
}
_PURGATORIES = {
    Gauge.PURGATORY_FETCH: "Fetch",
    Gauge.PURGATORY_PRODUCE: "Produce",
    Gauge.PURGATORY_REBALANCE: "Rebalance",
}


def traffic_families(seen: Observation) -> Iterator[Metric]:
    """Records and requests by topic; without label: all topics, those that are gone included."""
    topics = sorted(seen.metrics.topics.copy().items())
    for name, (attribute, help_text) in _TRAFFIC.items():
        yield counters(
            f"kafka_server_brokertopicmetrics_{name}_total",
            help_text,
            [
                ({}, getattr(seen.metrics.all_topics, attribute)),
                *(({"topic": topic}, getattr(of_topic, attribute)) for topic, of_topic in topics),
            ],
        )


def request_families(seen: Observation) -> Iterator[Metric]:
    """Requests by API."""
    requests: list[tuple[str, RequestCounters]] = sorted(seen.metrics.requests.copy().items())
    yield counters(
        "kafka_network_requestmetrics_requests_total",
        "Requests answered.",
        [
            ({"request": name, "version": str(version)}, count)
            for name, of_api in requests
            for version, count in sorted(of_api.by_version.copy().items())
        ],
    )
    yield counters(
        "kafka_network_requestmetrics_errors_total",
        "Answers by the error code of the whole answer; NONE where there is none.",
        [
            ({"request": name, "error": _error_name(code)}, count)
            for name, of_api in requests
            for code, count in sorted(of_api.errors.copy().items())
        ],
    )
    for name, (attribute, help_text) in _TIMES.items():
        yield from quantiles(
            f"kafka_network_requestmetrics_{name}",
            help_text,
            [({"request": api}, getattr(of_api, attribute)) for api, of_api in requests],
        )


def saturation_families(seen: Observation) -> Iterator[Metric]:
    """How much more the broker could do."""
    yield gauge(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "Share of the last minute in which the event loop had nothing to do (0 to 1, as Kafka).",
        seen.loop_idle,
    )
    yield gauge(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "Share of the last minute in which storage threads waited for work (0 to 1, as Kafka).",
        seen.storage_idle,
    )
    for one, name in _GAUGES.items():
        if one in seen.gauges:
            yield gauge(name, f"{one.value.capitalize()}.", seen.gauges[one])
    waiting = [
        ({"delayedOperation": name}, seen.gauges[one])
        for one, name in _PURGATORIES.items()
        if one in seen.gauges
    ]
    yield gauges("kafka_server_delayedoperationpurgatory_purgatorysize", "Requests that wait.", waiting)


def internal_families(seen: Observation) -> Iterator[Metric]:
    """What only sparklog has."""
    metrics, publishes = seen.metrics, seen.metrics.publishes
    yield from quantiles("sparklog_event_loop_lag_ms", "How late timers fire.", [({}, metrics.loop_lag)])
    yield from quantiles(
        "sparklog_storage_call_ms", "Calls of storage threads.", [({}, metrics.storage_calls)]
    )
    yield from quantiles(
        "sparklog_storage_queue_ms", "Waiting for a storage thread.", [({}, metrics.storage_queue)]
    )
    yield from quantiles(
        "kafka_log_logflushstats_logflushrateandtimems",
        "Syncs of the broker's segment.",
        [({}, publishes.sync)],
    )
    yield from quantiles(
        "sparklog_publish_ms", "Group commits published: write, sync, commit.", [({}, publishes.total)]
    )
    yield from quantiles(
        "sparklog_publish_commit_ms", "Metadata commits of group commits.", [({}, publishes.commit)]
    )
    yield from quantiles(
        "sparklog_publish_commit_parts",
        "Produced partitions that shared one sync and one commit.",
        [({}, publishes.parts_per_commit)],
    )
    yield counter("sparklog_publish_parts_total", "Produced partitions published.", publishes.parts)
    yield counter("sparklog_publish_bytes_total", "Produced bytes published.", publishes.bytes)
    yield counter("sparklog_fetch_cache_hits_total", "Reads from the hot-tail cache.", metrics.cache_hits)
    yield counter("sparklog_fetch_cache_hit_bytes_total", "Their bytes.", metrics.cache_hit_bytes)
    yield counter("sparklog_fetch_cache_misses_total", "Reads from storage.", metrics.cache_misses)
    yield counter("sparklog_fetch_cache_miss_bytes_total", "Their bytes.", metrics.cache_miss_bytes)
    yield counter(
        "sparklog_connections_accepted_total", "Connections accepted.", metrics.connections_accepted
    )
    yield counters(
        "sparklog_connections_refused_total",
        "Connections closed at once, by the limit that they hit.",
        [({"reason": reason}, count) for reason, count in sorted(metrics.connections_refused.copy().items())],
    )
    yield counter(
        "sparklog_offsets_records_skipped_total",
        "Records of __consumer_offsets that say nothing (no key, or none that is known), which somebody else "
        "wrote; they are passed over.",
        metrics.state_records_skipped[OFFSETS_TOPIC],
    )
    yield gauges(
        "sparklog_broker_state", "1 for the state that the broker is in.", [({"state": seen.state}, 1)]
    )
    yield gauge("sparklog_metadata_commit", "Number of the newest metadata commit.", seen.image.commit)


def _error_name(code: int) -> str:
    if code == -1:
        return "UNKNOWN_SERVER_ERROR"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


# --- cluster families --------------------------------------------------------------------------------
#
# Brokers, the controller and leaders: what Kafka's questions about replicas are answered with here.
#
# All replicas of a partition are the same bytes, on storage that all brokers share. So a replica is in sync
# if its broker lives, none can be lost with a disk, and a broker that does not see the root has lost all at
# once.
# Invariants: as Kafka has it, a broker counts the replicas that it has, how many of those it leads lack a
#     follower, and, as controller, how many partitions nobody leads. So that sums over brokers are right, a
#     partition is told of by one broker: by its leader, or by the controller if it has none.
# Concurrency: pure functions of an observation, in the thread of a scrape.
# Sources: Kafka ReplicaManager, KafkaController, kafka_exporter.


@dataclass(frozen=True, slots=True)
class Told:
    """A partition that this broker tells of; `in_sync` counts its replicas that are, whatever is seen of the
    root.
    """

    topic: str
    state: PartitionState
    leader: int
    replicas: tuple[int, ...]
    in_sync: int

    @property
    def labels(self) -> Labels:
        return {"topic": self.topic, "partition": str(self.state.partition)}


@dataclass(frozen=True, slots=True)
class Standing:
    """A broker among others.

    Fields:
        replicas: how many it has.
        led: partitions that it leads.
        unled: partitions that nobody leads.
        not_preferred: partitions that another one leads than the first of their replicas.
        told: those that it leads; and those that nobody does, if it is controller.
    """

    replicas: int
    led: int
    unled: int
    not_preferred: int
    told: tuple[Told, ...]

    @property
    def under_replicated(self) -> int:
        """Of those that it leads: which lack one."""
        return sum(one.leader != NO_NODE and one.in_sync < len(one.replicas) for one in self.told)


def standing_of(seen: Observation) -> Standing:
    """As of the image that was seen."""
    image, node_id = seen.image, seen.node_id
    replicas = led = unled = not_preferred = 0
    told: list[Told] = []
    for name, topic in image.topics.items():
        for state in topic.partitions:
            leadership = state.leadership
            replicas += node_id in leadership.replicas
            is_unled = leadership.leader == NO_NODE
            led += leadership.leader == node_id
            unled += is_unled
            not_preferred += not is_unled and leadership.leader != leadership.replicas[0]
            if leadership.leader == node_id or (is_unled and seen.is_controller):
                live = len(in_sync(leadership, image))
                told.append(Told(name, state, leadership.leader, leadership.replicas, live))
    return Standing(replicas, led, unled, not_preferred, tuple(told))


def cluster_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Counts of brokers, partitions and leaders."""
    lost = 0 if seen.partitions_available else 1
    brokers = [one for one in seen.image.brokers.values() if not one.is_fenced]
    unled = standing.unled if seen.is_controller else 0
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this broker is the controller.",
        int(seen.is_controller),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that cannot be written: on the controller those that nobody leads; on every broker those "
        "that it leads, when it does not serve or does not see its root.",
        len(standing.told) if lost else unled,
    )
    yield from _controller_families(seen, standing)
    yield gauge(
        "kafka_server_replicamanager_partitioncount",
        "Partitions of which this broker is a replica.",
        standing.replicas,
    )
    yield gauge("kafka_server_replicamanager_leadercount", "Partitions led by this broker.", standing.led)
    yield gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions led by this broker of which another replica is fenced; all of which it is one, when it "
        "does not serve or does not see its root.",
        standing.replicas if lost else standing.under_replicated,
    )
    yield gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions to which nobody can write through this broker: all, when it does not serve or does not "
        "see its root.",
        lost * standing.replicas,
    )
    yield gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Partitions of which this broker is a replica, when it does not see its root.",
        0 if seen.root_visible else standing.replicas,
    )
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1 if the root is not visible.",
        int(not seen.root_visible),
    )
    yield gauge(
        "kafka_brokers",
        "Brokers that are registered, and not fenced.",
        len(brokers),
    )


def _controller_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """What every controller tells of the whole, and so does every broker here: all have the same image."""
    brokers = seen.image.brokers.values()
    fenced = sum(one.is_fenced for one in brokers)
    for name, text, value in (
        ("globaltopiccount", "Topics.", len(seen.image.topics)),
        ("globalpartitioncount", "Partitions.", seen.image.partition_count),
        ("activebrokercount", "Brokers that are registered, and not fenced.", len(brokers) - fenced),
        ("fencedbrokercount", "Brokers that are registered and fenced: stopped, or dead.", fenced),
        (
            "preferredreplicaimbalancecount",
            "Partitions that another broker leads than the first of their replicas.",
            standing.not_preferred,
        ),
    ):
        yield gauge(f"kafka_controller_kafkacontroller_{name}", text, value)
    yield from quantiles(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Commits of this broker, as controller, that gave partitions leaders.",
        [({}, seen.metrics.elections)],
    )


def replica_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Leaders and replicas of each partition."""
    available, told = seen.partitions_available, standing.told

    def live(one: Told) -> int:
        return one.in_sync if available else 0

    yield gauges(
        "kafka_topic_partition_leader",
        "The broker that leads it; -1: none does.",
        ((one.labels, one.leader) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_replicas",
        "Brokers that may lead and serve it.",
        ((one.labels, len(one.replicas)) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_in_sync_replica",
        "Those of them that are not fenced; 0 if this broker does not serve, or does not see its root.",
        ((one.labels, live(one)) for one in told),
    )
    yield gauges(
        "kafka_topic_partition_under_replicated_partition",
        "1 if these are fewer.",
        ((one.labels, int(live(one) < len(one.replicas))) for one in told),
    )


# --- log families ------------------------------------------------------------------------------------
#
# What is in the log: partitions, their offsets and sizes, and how far groups are behind.
#
# Invariants: a partition is told of by one broker, and a group by its coordinator; rows
#     are bounded by partitions and by what groups have committed.
# Concurrency: one scrape at a time (collector.py).
# Sources: kafka_exporter's README.


def partition_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Sizes and offsets, as Kafka and kafka_exporter show them, of what this broker tells of."""
    states = [(one.labels, one.state) for one in standing.told]
    yield gauges(
        "kafka_log_log_size",
        "Stored bytes.",
        ((labels, state.extents.stored_bytes) for labels, state in states),
    )
    yield gauges(
        "kafka_topic_partitions",
        "Partitions of a topic; from the controller.",
        (
            ({"topic": name}, len(topic.partitions))
            for name, topic in seen.image.topics.items()
            if seen.is_controller
        ),
    )
    yield gauges(
        "kafka_topic_partition_current_offset",
        "The next offset.",
        ((labels, state.log_end_offset) for labels, state in states),
    )
    yield gauges(
        "kafka_topic_partition_oldest_offset",
        "The first offset that is kept.",
        ((labels, state.log_start_offset) for labels, state in states),
    )


def group_families(seen: Observation) -> Iterator[Metric]:
    """Committed offsets and lag, in records and in seconds."""
    offsets, lags, seconds = [], [], []
    sums: dict[str, float] = {}
    for group in seen.groups:
        for where, committed in sorted(dict(group.offsets).items(), key=lambda item: item[0]):
            offset = committed.offset
            if offset < 0:
                continue  # reset by an administrator: none
            state = _partition(seen.image, *where)
            labels = {"consumergroup": group.name, **_labels(*where)}
            offsets.append((labels, float(offset)))
            if state is not None:
                lag = max(0, state.log_end_offset - offset)
                lags.append((labels, float(lag)))
                seconds.append((labels, _lag_seconds(state, offset, seen.now_ms)))
                sums[group.name] = sums.get(group.name, 0.0) + lag
    yield gauges("kafka_consumergroup_current_offset", "The offset that a group has committed.", offsets)
    yield gauges("kafka_consumergroup_lag", "Records that a group has not read.", lags)
    yield gauges(
        "kafka_consumergroup_lag_sum",
        "Records that a group has not read, in all its partitions.",
        (({"consumergroup": name}, lag) for name, lag in sums.items()),
    )
    yield gauges(
        "kafka_consumergroup_members",
        "Members of a group.",
        (({"consumergroup": group.name}, group.members) for group in seen.groups),
    )
    yield gauges(
        "sparklog_consumergroup_lag_seconds",
        "Age of the oldest records that a group has not read, by the newest timestamp of their extent; 0 if "
        "it has read all.",
        seconds,
    )
    yield gauges("sparklog_groups", "Groups by state.", _by_state(seen.groups))


def _by_state(groups: tuple[GroupView, ...]) -> list[tuple[Labels, float]]:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.state] = counts.get(group.state, 0) + 1
    return [({"state": state}, count) for state, count in sorted(counts.items())]


def _lag_seconds(state: PartitionState, offset: int, now_ms: int) -> float:
    start = max(offset, state.log_start_offset)
    extents = state.extents
    index = extents.index_after(start)
    if start >= state.log_end_offset or index >= len(extents):
        return 0.0
    return max(0, now_ms - extents[index].max_timestamp_ms) / 1000


def _partition(image: Image, name: str, partition: int) -> PartitionState | None:
    topic = image.topics.get(name)
    return topic.partitions[partition] if topic and partition < len(topic.partitions) else None


def _labels(topic: str, partition: int) -> dict[str, str]:
    return {"topic": topic, "partition": str(partition)}


# --- maintenance families ----------------------------------------------------------------------------
#
# What maintenance by this broker has done, under Kafka's name where that means the same.
#
# Sources: Kafka LogCleaner, LogCleanerManager.


def maintenance_families(seen: Observation) -> Iterator[Metric]:
    """Rounds, and what was merged and removed in them."""
    counters = seen.metrics.maintenance
    since: list[tuple[Labels, float]] = []
    if counters.last_round_ms is not None:
        since.append(({}, max(0, seen.now_ms - counters.last_round_ms)))
    yield gauges(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Milliseconds since a round of maintenance has ended; none before the first. There are rounds when "
        "something is due.",
        since,
    )
    yield from _compaction(counters)
    yield counter("sparklog_maintenance_rounds_total", "Rounds of maintenance.", counters.rounds)
    yield counter(
        "sparklog_maintenance_failed_rounds_total",
        "Rounds in which something failed; log-cleaner.log says what.",
        counters.failed_rounds,
    )
    yield counter(
        "sparklog_maintenance_expired_records_total",
        "Records removed by retention.ms and retention.bytes.",
        counters.expired_records,
    )
    yield counter(
        "sparklog_maintenance_merged_extents_total", "Extents put together.", counters.merged_extents
    )
    yield counter("sparklog_maintenance_merged_bytes_total", "Their stored bytes.", counters.merged_bytes)


def _compaction(counters: MaintenanceCounters) -> Iterator[Metric]:
    """What Kafka's cleaner shows."""
    for name, help_text, number in (
        (
            "cleanermanager_max_dirty_percent",
            "The largest dirty ratio of a partition, of what may be compacted, as of the last look.",
            100 * counters.dirty_ratio,
        ),
        (
            "cleanermanager_uncleanable_partitions_count",
            "Partitions left out for an hour, since a file is damaged or lost; log-cleaner.log says which.",
            counters.uncleanable_partitions,
        ),
        (
            "cleanermanager_uncleanable_bytes",
            "Stored bytes of their extents that were to be rewritten.",
            counters.uncleanable_bytes,
        ),
        (
            "cleaner_cleaner_recopy_percent",
            "Bytes written by the last compaction, of those in whose place they stand.",
            100 * counters.recopied_ratio,
        ),
        ("cleaner_max_clean_time_secs", "How long the last compaction took.", counters.clean_ms / 1000),
        (
            "cleaner_max_compaction_delay_secs",
            "How much longer than max.compaction.lag.ms records wait already, at most, as of the last look.",
            counters.compaction_overdue_ms / 1000,
        ),
        (
            "cleaner_deadthreadcount",
            "1 if a fault of the broker's has ended maintenance; there is none until it starts again.",
            int(counters.is_dead),
        ),
    ):
        yield gauges(f"kafka_log_log{name}", help_text, [({}, number)])


# --- transaction families ----------------------------------------------------------------------------
#
# Transactions, under Kafka's name where one means the same.
#
# Invariants: a broker tells of the transactional ids for which clients are sent to it, so that sums over
#     brokers are right whichever of them did the work.
# Sources: Kafka ReplicaManager (PartitionsWithLateTransactionsCount, KIP-664).


_GRACE_MS = 300_000  # as in Kafka: five minutes past the time-out


def transaction_families(seen: Observation) -> Iterator[Metric]:
    """Ids by state, what is staged, and what this broker has decided."""
    own = list(coordinated(seen.image, seen.node_id))
    states = Counter(one.phase for one in own)
    is_open = [one for one in own if one.is_ongoing]
    late = [one for one in is_open if one.is_timed_out(seen.now_ms - _GRACE_MS)]
    yield gauge(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "Partitions of transactions that are open five minutes past their time-out: nobody aborts them.",
        sum(len(one.partitions) for one in late),
    )
    yield gauges(
        "sparklog_transactions",
        "Transactional ids for which clients are sent to this broker.",
        (({"state": name}, states[phase]) for phase, name in STATE_NAMES.items()),
    )
    yield gauge(
        "sparklog_transactions_oldest_open_ms",
        "How long the oldest of their open transactions has been open.",
        max((max(0, seen.now_ms - one.started_ms) for one in is_open), default=0),
    )
    yield gauge(
        "sparklog_transactions_staged_bytes",
        "What they have staged: stored, and not visible yet.",
        sum(one.staged_bytes for one in own),
    )
    yield gauge(
        "sparklog_transactions_staged_extents", "Its extents.", sum(one.staged_extents for one in own)
    )
    done = seen.metrics.transactions
    yield counters(
        "sparklog_transactions_ended_total",
        "Transactions that this broker has ended.",
        (
            ({"by": "commit"}, done.committed),
            ({"by": "abort"}, done.aborted),
            ({"by": "timeout"}, done.timed_out),
            ({"by": "administrator"}, done.aborted_by_administrators),
        ),
    )
    yield counters(
        "sparklog_transactional_producers_total",
        "Producers that this broker has initialised with a transactional id.",
        [({}, done.initialised)],
    )
    yield counters(
        "sparklog_transactional_ids_forgotten_total",
        "Transactional ids that this broker has forgotten, since nobody used them.",
        [({}, done.forgotten)],
    )
