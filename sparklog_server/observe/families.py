"""Prometheus families with exact names.

Kafka's histograms are exported as by the JMX exporter: gauges with the label quantile, and a count.
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
    """Return a family with one number."""
    return gauges(name, help_text, [({}, value)])


def gauges(name: str, help_text: str, rows: Rows) -> Metric:
    """Return a family with a number for each set of labels."""
    family = GaugeMetricFamily(name, help_text)
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def counter(name: str, help_text: str, value: float) -> Metric:
    """Return a family with one increasing number; `name` ends in _total or _count."""
    return counters(name, help_text, [({}, value)])


def counters(name: str, help_text: str, rows: Rows) -> Metric:
    """Return a family with an increasing number for each set of labels."""
    family: Metric
    if name.endswith("_total"):
        family = CounterMetricFamily(name, help_text)
    else:
        # Untyped: prometheus_client requires _total, but the JMX exporter's names end in _count.
        family = Metric(name, help_text, "untyped")
    for labels, value in rows:
        family.add_sample(name, dict(labels), value)
    return family


def quantiles(name: str, help_text: str, histograms: Iterable[tuple[Labels, Histogram]]) -> Iterator[Metric]:
    """Yield the quantiles of the last minute or two, and the number of values since the start."""
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
    yield counters(f"{name}_count", f"{help_text} Number since the start.", counts)


# --- broker families ---------------------------------------------------------------------------------
#
# The broker's work: traffic, requests, load, and internals (publishing, cache, loop).
#
# Invariants: a family exists only if it has a source; there are none for events that cannot happen here
#     (shrinking in-sync replicas, unclean elections).
# Sources: the names that Strimzi's dashboards use; Kafka BrokerTopicMetrics, RequestChannel.


_TRAFFIC = {
    "messagesin": ("messages_in", "Records acknowledged to producers."),
    "bytesin": ("bytes_in", "Bytes of records acknowledged to producers."),
    "bytesout": ("bytes_out", "Bytes of records sent to consumers."),
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
    """Yield records and requests by topic; without label: all topics, including deleted ones."""
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
    """Yield requests by API."""
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
        "Answers by the error code of the whole answer; NONE without an error.",
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
    """Yield the idle shares, and the sizes of queues and caches."""
    yield gauge(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "Share of the last minute in which the event loop was idle (0 to 1, as Kafka).",
        seen.loop_idle,
    )
    yield gauge(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "Share of the last minute in which storage threads waited for work (0 to 1, as Kafka).",
        seen.storage_idle,
    )
    for source, name in _GAUGES.items():
        if source in seen.gauges:
            yield gauge(name, f"{source.value.capitalize()}.", seen.gauges[source])
    waiting = [
        ({"delayedOperation": name}, seen.gauges[source])
        for source, name in _PURGATORIES.items()
        if source in seen.gauges
    ]
    yield gauges("kafka_server_delayedoperationpurgatory_purgatorysize", "Requests that wait.", waiting)


def internal_families(seen: Observation) -> Iterator[Metric]:
    """Yield metrics without a counterpart in Kafka."""
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
        "Connections closed: by the exceeded limit immediately, or `authentication`: a TLS handshake or "
        "a login that failed.",
        [({"reason": reason}, count) for reason, count in sorted(metrics.connections_refused.copy().items())],
    )
    yield counter(
        "sparklog_offsets_records_skipped_total",
        "Records of __consumer_offsets without a known key, of another writer; they are skipped.",
        metrics.state_records_skipped[OFFSETS_TOPIC],
    )
    yield gauges("sparklog_broker_state", "1 for the broker's current state.", [({"state": seen.state}, 1)])
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
# Brokers, the controller and leaders: Kafka's metrics of replicas.
#
# All replicas of a partition are the same bytes, on shared storage. So a replica is in sync if its broker is
# alive, no replica is lost with a disk, and a broker that does not see the root has lost all its replicas.
# Invariants: as in Kafka, a broker counts its replicas, its led partitions with a replica out of sync, and,
#     as controller, the partitions without a leader. Each partition is reported by one broker, so that sums
#     over brokers are right: by its leader, or by the controller if it has none.
# Concurrency: pure functions of an observation, in the thread of a scrape.
# Sources: Kafka ReplicaManager, KafkaController, kafka_exporter.


@dataclass(frozen=True, slots=True)
class ReportedPartition:
    """A partition that this broker reports; `in_sync` counts its live replicas, even if the root is not
    visible.
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
class BrokerPartitions:
    """A broker's partitions, and counts of all partitions.

    Fields:
        replicas: number of its replicas.
        led: number of partitions that it leads.
        unled: number of partitions without a leader.
        not_preferred: number of partitions whose leader is not their first replica.
        reported: partitions that it leads; on the controller also those without a leader.
    """

    replicas: int
    led: int
    unled: int
    not_preferred: int
    reported: tuple[ReportedPartition, ...]

    @property
    def under_replicated(self) -> int:
        """The number of led partitions with a replica out of sync."""
        return sum(
            partition.leader != NO_NODE and partition.in_sync < len(partition.replicas)
            for partition in self.reported
        )


def broker_partitions(seen: Observation) -> BrokerPartitions:
    """Return the broker's partitions in the observed image."""
    image, node_id = seen.image, seen.node_id
    replicas = led = unled = not_preferred = 0
    reported: list[ReportedPartition] = []
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
                reported.append(ReportedPartition(name, state, leadership.leader, leadership.replicas, live))
    return BrokerPartitions(replicas, led, unled, not_preferred, tuple(reported))


def cluster_families(seen: Observation, own: BrokerPartitions) -> Iterator[Metric]:
    """Yield the numbers of brokers, partitions and leaders."""
    lost = 0 if seen.partitions_available else 1
    brokers = [broker for broker in seen.image.brokers.values() if not broker.is_fenced]
    unled = own.unled if seen.is_controller else 0
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this broker is the controller.",
        int(seen.is_controller),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that cannot be written: on the controller those without a leader; on every broker those "
        "that it leads, if it does not serve or does not see its root.",
        len(own.reported) if lost else unled,
    )
    yield from _controller_families(seen, own)
    yield gauge(
        "kafka_server_replicamanager_partitioncount",
        "Partitions of which this broker is a replica.",
        own.replicas,
    )
    yield gauge("kafka_server_replicamanager_leadercount", "Partitions led by this broker.", own.led)
    yield gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions led by this broker with a fenced replica; all with a replica on this broker, if it does "
        "not serve or does not see its root.",
        own.replicas if lost else own.under_replicated,
    )
    yield gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions that cannot be written through this broker: all, if it does not serve or does not see "
        "its root.",
        lost * own.replicas,
    )
    yield gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Partitions of which this broker is a replica, if it does not see its root.",
        0 if seen.root_visible else own.replicas,
    )
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1 if the root is not visible.",
        int(not seen.root_visible),
    )
    yield gauge(
        "kafka_brokers",
        "Registered brokers that are not fenced.",
        len(brokers),
    )


def _controller_families(seen: Observation, own: BrokerPartitions) -> Iterator[Metric]:
    """Yield the controller's metrics of the cluster; every broker reports them: all have the same image."""
    brokers = seen.image.brokers.values()
    fenced = sum(broker.is_fenced for broker in brokers)
    for name, text, value in (
        ("globaltopiccount", "Topics.", len(seen.image.topics)),
        ("globalpartitioncount", "Partitions.", seen.image.partition_count),
        ("activebrokercount", "Registered brokers that are not fenced.", len(brokers) - fenced),
        ("fencedbrokercount", "Registered brokers that are fenced: stopped, or dead.", fenced),
        (
            "preferredreplicaimbalancecount",
            "Partitions whose leader is not their first replica.",
            own.not_preferred,
        ),
    ):
        yield gauge(f"kafka_controller_kafkacontroller_{name}", text, value)
    yield from quantiles(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Commits of this broker, as controller, that gave partitions leaders.",
        [({}, seen.metrics.elections)],
    )


def replica_families(seen: Observation, own: BrokerPartitions) -> Iterator[Metric]:
    """Yield the leader and replicas of each reported partition."""
    available, reported = seen.partitions_available, own.reported

    def live(partition: ReportedPartition) -> int:
        return partition.in_sync if available else 0

    yield gauges(
        "kafka_topic_partition_leader",
        "The partition's leader; -1: none.",
        ((partition.labels, partition.leader) for partition in reported),
    )
    yield gauges(
        "kafka_topic_partition_replicas",
        "Number of the partition's replicas: brokers that may lead and serve it.",
        ((partition.labels, len(partition.replicas)) for partition in reported),
    )
    yield gauges(
        "kafka_topic_partition_in_sync_replica",
        "Number of replicas that are not fenced; 0 if this broker does not serve, or does not see its root.",
        ((partition.labels, live(partition)) for partition in reported),
    )
    yield gauges(
        "kafka_topic_partition_under_replicated_partition",
        "1 if not all replicas are in sync.",
        ((partition.labels, int(live(partition) < len(partition.replicas))) for partition in reported),
    )


# --- log families ------------------------------------------------------------------------------------
#
# Partitions, their offsets and sizes, and the lag of groups.
#
# Invariants: each partition is reported by one broker, and each group by its coordinator; rows are bounded by
#     the numbers of partitions and of committed offsets.
# Concurrency: one scrape at a time (collector.py).
# Sources: kafka_exporter's README.


def partition_families(seen: Observation, own: BrokerPartitions) -> Iterator[Metric]:
    """Yield sizes and offsets of the reported partitions, as Kafka and kafka_exporter do."""
    states = [(partition.labels, partition.state) for partition in own.reported]
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
        "The log start offset.",
        ((labels, state.log_start_offset) for labels, state in states),
    )


def group_families(seen: Observation) -> Iterator[Metric]:
    """Yield committed offsets and lag, in records and in seconds."""
    offsets, lags, seconds = [], [], []
    sums: dict[str, float] = {}
    for group in seen.groups:
        for where, committed in sorted(dict(group.offsets).items(), key=lambda item: item[0]):
            offset = committed.offset
            if offset < 0:
                continue  # an administrator has reset it
            state = _partition(seen.image, *where)
            labels = {"consumergroup": group.name, **_labels(*where)}
            offsets.append((labels, float(offset)))
            if state is not None:
                lag = state.lag(offset)
                lags.append((labels, float(lag)))
                seconds.append((labels, _lag_seconds(state, offset, seen.now_ms)))
                sums[group.name] = sums.get(group.name, 0.0) + lag
    yield gauges("kafka_consumergroup_current_offset", "The group's committed offset.", offsets)
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
# Maintenance by this broker, under Kafka's names where they mean the same.
#
# Sources: Kafka LogCleaner, LogCleanerManager.


def maintenance_families(seen: Observation) -> Iterator[Metric]:
    """Yield counts of rounds, and of merged extents and removed records."""
    counters = seen.metrics.maintenance
    since: list[tuple[Labels, float]] = []
    if counters.last_round_ms is not None:
        since.append(({}, max(0, seen.now_ms - counters.last_round_ms)))
    yield gauges(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Milliseconds since the end of the last round of maintenance; none before the first. Rounds only run "
        "if something is due.",
        since,
    )
    yield from _compaction(counters)
    yield counter("sparklog_maintenance_rounds_total", "Rounds of maintenance.", counters.rounds)
    yield counter(
        "sparklog_maintenance_failed_rounds_total",
        "Rounds with a failure; log-cleaner.log has the errors.",
        counters.failed_rounds,
    )
    yield counter(
        "sparklog_maintenance_expired_records_total",
        "Records removed by retention.ms and retention.bytes.",
        counters.expired_records,
    )
    yield counter("sparklog_maintenance_merged_extents_total", "Merged extents.", counters.merged_extents)
    yield counter(
        "sparklog_maintenance_merged_bytes_total", "Stored bytes of merged extents.", counters.merged_bytes
    )


def _compaction(counters: MaintenanceCounters) -> Iterator[Metric]:
    """Yield the metrics of Kafka's cleaner."""
    for name, help_text, number in (
        (
            "cleanermanager_max_dirty_percent",
            "The largest dirty ratio of a compacted partition, as of the last check.",
            100 * counters.dirty_ratio,
        ),
        (
            "cleanermanager_uncleanable_partitions_count",
            "Partitions skipped for an hour, since a file is damaged or lost; log-cleaner.log names them.",
            counters.uncleanable_partitions,
        ),
        (
            "cleanermanager_uncleanable_bytes",
            "Stored bytes of the extents of uncleanable partitions that were due for rewriting.",
            counters.uncleanable_bytes,
        ),
        (
            "cleaner_cleaner_recopy_percent",
            "Bytes written by the last compaction, in percent of the bytes that they replace.",
            100 * counters.recopied_ratio,
        ),
        ("cleaner_max_clean_time_secs", "Duration of the last compaction.", counters.clean_ms / 1000),
        (
            "cleaner_max_compaction_delay_secs",
            "The longest time by which records exceed max.compaction.lag.ms, as of the last check.",
            counters.compaction_overdue_ms / 1000,
        ),
        (
            "cleaner_deadthreadcount",
            "1 if a bug has ended maintenance; none runs until the broker is restarted.",
            int(counters.is_dead),
        ),
    ):
        yield gauges(f"kafka_log_log{name}", help_text, [({}, number)])


# --- transaction families ----------------------------------------------------------------------------
#
# Transactions, under Kafka's names where they mean the same.
#
# Invariants: a broker reports the transactional ids that it coordinates, so that sums over brokers are right,
#     whichever broker did the work.
# Sources: Kafka ReplicaManager (PartitionsWithLateTransactionsCount, KIP-664).


_GRACE_MS = 300_000  # as in Kafka: five minutes past the time-out


def transaction_families(seen: Observation) -> Iterator[Metric]:
    """Yield ids by state, staged extents, and the transactions that this broker has ended."""
    own = list(coordinated(seen.image, seen.node_id))
    states = Counter(txn.phase for txn in own)
    ongoing = [txn for txn in own if txn.is_ongoing]
    late = [txn for txn in ongoing if txn.is_timed_out(seen.now_ms - _GRACE_MS)]
    yield gauge(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "Partitions of transactions that are still open five minutes past their time-out.",
        sum(len(txn.partitions) for txn in late),
    )
    yield gauges(
        "sparklog_transactions",
        "Transactional ids that this broker coordinates.",
        (({"state": name}, states[phase]) for phase, name in STATE_NAMES.items()),
    )
    yield gauge(
        "sparklog_transactions_oldest_open_ms",
        "Age of the oldest open transaction of these ids.",
        max((max(0, seen.now_ms - txn.started_ms) for txn in ongoing), default=0),
    )
    yield gauge(
        "sparklog_transactions_staged_bytes",
        "Bytes that these ids have staged: stored, and not visible yet.",
        sum(txn.staged_bytes for txn in own),
    )
    yield gauge(
        "sparklog_transactions_staged_extents",
        "Staged extents of these ids.",
        sum(txn.staged_extents for txn in own),
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
        "Transactional ids that this broker has removed, since they were unused.",
        [({}, done.forgotten)],
    )
