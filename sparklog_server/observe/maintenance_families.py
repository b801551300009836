"""What maintenance by this broker has done, under Kafka's name where that means the same.

Sources: Kafka LogCleanerManager (time-since-last-run-ms).
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog_server.observe.families import Labels, counter, gauges
from sparklog_server.observe.observation import Observation


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
