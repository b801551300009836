"""What the broker does: traffic, requests, load, and what lies behind them (publishing, cache, loop).

Invariants: a family is there only if something feeds it; what cannot happen here (shrinking in-sync
    replicas, unclean elections) has none.
Sources: the names that Strimzi's dashboards use; Kafka BrokerTopicMetrics, RequestChannel.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog.client import OFFSETS_TOPIC
from sparklog_server.metrics.metrics import Gauge, RequestCounters
from sparklog_server.observe.families import counter, counters, gauge, gauges, quantiles
from sparklog_server.observe.observation import Observation
from sparklog_server.protocol.errors import ErrorCode

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
        "sparklog_publish_ms", "Bundles published: write, sync, commit.", [({}, publishes.total)]
    )
    yield from quantiles(
        "sparklog_publish_commit_ms", "Metadata commits of bundles.", [({}, publishes.commit)]
    )
    yield from quantiles(
        "sparklog_publish_bundle_parts",
        "Produced partitions that shared one sync and one commit.",
        [({}, publishes.parts_per_bundle)],
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
