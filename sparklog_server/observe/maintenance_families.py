"""What maintenance by this broker has done, under Kafka's name where that means the same.

Sources: Kafka LogCleaner, LogCleanerManager.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog_server.metrics.metrics import MaintenanceCounters
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
