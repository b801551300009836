"""Users' rows stay out of the topics in which groups and brokers keep their state."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.metadata import is_internal
from sparklog.storage import MemoryStore
from tests.support.roots import opened

ROWS = pa.table({"key": [b"k"], "value": [b"v"]})


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        yield log


def transact(log: SparkLog, topic: str) -> None:
    with log.transaction("app") as txn:
        txn.append("t", ROWS)
        txn.append(topic, ROWS)


def by_column(log: SparkLog, topic: str) -> None:
    with log.appender() as appender:
        appender.add(ROWS, "t")
        appender.add(ROWS.append_column("topic", pa.array([topic])))
        log.publish([appender.finish()])


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, "__transaction_state", "__share_group_state"])
@pytest.mark.parametrize(
    "write",
    [lambda log, topic: log.append(topic, ROWS), by_column, transact],
    ids=["append", "column", "txn"],
)
def test_nobody_writes_rows_there(log: SparkLog, write: Callable[[SparkLog, str], None], topic: str) -> None:
    log.create_topic("t", 1)
    log.commit_offsets("g", {("t", 0): 3})
    before = log.topics(include_internal=True)
    with pytest.raises(InvalidRequestError, match=f"topic {topic} is internal") as caught:
        write(log, topic)
    assert caught.value.code == "INTERNAL_TOPIC"
    assert log.topics(include_internal=True) == before
    assert log.log_end_offset("t", 0) == 0
    assert log.committed_offsets("g") == {("t", 0): 3}


def test_a_transaction_goes_on_after_a_refusal(log: SparkLog) -> None:
    log.create_topic("t", 1)
    with log.transaction("app") as txn:
        with pytest.raises(InvalidRequestError, match="internal"):
            txn.append(OFFSETS_TOPIC, ROWS)
        txn.append("t", ROWS)
        txn.commit_offsets("g", {("t", 0): 1})
    assert log.log_end_offset("t", 0) == 1
    assert log.committed_offsets("g") == {("t", 0): 1}


def test_two_underscores_alone_are_a_users_own(log: SparkLog) -> None:
    assert not is_internal("__debezium-heartbeat")
    log.append("__debezium-heartbeat", ROWS)
    assert log.topics() == ["__debezium-heartbeat"]
