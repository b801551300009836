"""What tests of Python's transactions have in common."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.transaction import LogTransaction
from sparklog.errors import SparklogError
from sparklog.metadata import TransactionPhase, plan_abort_transactions


@contextlib.contextmanager
def refused(kind: type[SparklogError], match: str = "SPARKLOG_") -> Iterator[None]:
    """It ends with this error."""
    with pytest.raises(kind, match=match):
        yield


def begin(txn: LogTransaction) -> None:
    """And end it, with nothing in it."""
    with txn:
        pass


def rows(*values: str) -> pa.Table:
    return pa.table({"key": list(values), "value": list(values)})


def values(log: SparkLog, topic: str) -> list[str]:
    if topic not in log.refresh().topics:
        return []
    found: list[str] = []
    for partition in range(log.partition_count(topic)):
        for arrow_batch in log.read_batches(topic, partition):
            found += [value.decode() for value in arrow_batch.column("value").to_pylist()]
    return sorted(found)


def phase(log: SparkLog, transactional_id: str = "app") -> TransactionPhase:
    return log.refresh().transactions[transactional_id].phase


def abort_as_a_broker(log: SparkLog, transactional_id: str = "app") -> None:
    """What a broker does with a transaction that takes too long."""
    done = log.metadata.publish(
        lambda image: plan_abort_transactions(image, [transactional_id], now_ms=log.clock.now_ms())
    )
    assert done.actions
