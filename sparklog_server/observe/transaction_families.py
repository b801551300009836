"""Transactions, under Kafka's name where one means the same.

Invariants: a broker tells of the transactional ids for which clients are sent to it, so that sums over
    brokers are right whichever of them did the work.
Sources: Kafka ReplicaManager (PartitionsWithLateTransactionsCount, KIP-664).
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog.client.transaction_view import STATE_NAMES, coordinated
from sparklog_server.observe.families import counters, gauge, gauges
from sparklog_server.observe.observation import Observation

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
