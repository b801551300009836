"""Transactions as metrics tell of them."""

from dataclasses import replace

from sparklog.metadata import Transaction, TransactionPhase
from sparklog.metadata.model.transaction_values import PartitionSet, transactions_of
from sparklog_server.metrics.metrics import Gauge, Metrics
from sparklog_server.observe.families import transaction_families
from sparklog_server.observe.observation import Observation
from tests.metadata.cluster_roots import cluster

NOW_MS = 1_000_000


def transaction(name: str, phase: TransactionPhase, started_ms: int = 0, timeout_ms: int = 1) -> Transaction:
    is_open = phase is TransactionPhase.ONGOING
    places = [("A" * 22, 0), ("A" * 22, 1)] if is_open else []
    return Transaction(
        transactional_id=name,
        producer_id=hash(name) % 1000,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        changed_ms=0,
        phase=phase,
        started_ms=started_ms,
        partitions=PartitionSet(places),
        staged_extents=2 if is_open else 0,
        staged_bytes=300 if is_open else 0,
    )


def told(*found: Transaction, metrics: Metrics | None = None) -> dict[str, float]:
    image = replace(cluster((1,)), transactions=transactions_of(found))
    seen = Observation(
        node_id=1,
        state="RUNNING",
        is_serving=True,
        is_registered=True,
        is_controller=True,
        root_visible=True,
        image=image,
        metrics=metrics or Metrics(),
        gauges=dict.fromkeys(Gauge, 0.0),
        groups=(),
        loop_idle=1.0,
        storage_idle=1.0,
        now_ms=NOW_MS,
    )
    return {
        ".".join([sample.name.removeprefix("sparklog_"), *sample.labels.values()]): sample.value
        for family in transaction_families(seen)
        for sample in family.samples
    }


def test_ids_by_state_and_what_they_have_staged() -> None:
    found = told(
        transaction("a", TransactionPhase.EMPTY),
        transaction("b", TransactionPhase.ONGOING, NOW_MS - 500),
        transaction("c", TransactionPhase.ONGOING, NOW_MS - 300_002),
        transaction("d", TransactionPhase.COMMITTED),
    )
    assert found["transactions.Ongoing"] == 2
    assert found["transactions.Empty"] == found["transactions.CompleteCommit"] == 1
    assert found["transactions.CompleteAbort"] == 0
    assert found["transactions_oldest_open_ms"] == 300_002
    assert (found["transactions_staged_bytes"], found["transactions_staged_extents"]) == (600, 4)
    assert found["kafka_server_replicamanager_partitionswithlatetransactionscount"] == 2


def test_what_was_done_here_is_counted() -> None:
    metrics = Metrics()
    done = metrics.transactions
    done.initialised, done.committed, done.aborted = 1, 2, 3
    done.timed_out, done.aborted_by_administrators, done.forgotten = 4, 5, 6
    found = told(metrics=metrics)
    by = {key.partition(".")[2]: value for key, value in found.items() if "ended" in key}
    assert by == {"commit": 2, "abort": 3, "timeout": 4, "administrator": 5}
    assert found["transactional_producers_total"] == 1
    assert found["transactional_ids_forgotten_total"] == 6
    assert found["transactions_oldest_open_ms"] == 0
