"""ShareFetch: records for members of share groups, once for each, and again when they are given up."""

import pyarrow as pa
import pytest

import sparklog
from tests.server.api.share_requests import ACCEPT, RELEASE, SHARE_SETTINGS, Got, Worker, set_group
from tests.support.wire_client import WireClient

BROKER_SETTINGS = SHARE_SETTINGS | {"sparklog.metadata.poll.ms": "10"}
BROKER_TOPICS = {"orders": 2}


def append(log: sparklog.SparkLog, count: int, partition: int = 0) -> None:
    values = pa.array([b"%d" % number for number in range(count)], pa.binary())
    partitions = pa.array([partition] * count, pa.int32())
    log.append("orders", pa.table({"value": values, "partition": partitions}))


@pytest.fixture
def clock_ms(log: sparklog.SparkLog) -> int:
    return log.clock.now_ms()


@pytest.fixture
def worker(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    """Its session has begun, and the group begins at offset 0."""
    found = Worker(asker, log.image.topic("orders").topic_id)
    assert found.fetch() == []
    return found


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("latest", []),
        ("earliest", [Got(0, 9, 1)]),
        ("by_duration:P1DT1H1M1.5S", [Got(5, 9, 1)]),
        ("by_duration:PT1S", []),
    ],
)
def test_where_a_group_begins(
    asker: WireClient, log: sparklog.SparkLog, clock_ms: int, reset: str, expected: list[Got]
) -> None:
    """Five records of two days ago, and five of one day ago."""
    day_ms = 86_400_000
    times = [clock_ms - 2 * day_ms] * 5 + [clock_ms - day_ms] * 5
    rows = {
        "value": pa.array([b"v"] * 10, pa.binary()),
        "partition": pa.array([0] * 10, pa.int32()),
        "timestamp": pa.array([1000 * one for one in times], pa.timestamp("us", "UTC")),
    }
    log.append("orders", pa.table(rows))
    set_group(asker, share_auto_offset_reset=reset)
    assert Worker(asker, log.image.topic("orders").topic_id).fetch() == expected


def test_records_are_acquired_once_and_acknowledged(worker: Worker, log: sparklog.SparkLog) -> None:
    append(log, 5)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    assert worker.fetch() == []
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"
    log.refresh()
    state = log.image.shares["workers"][worker.topic_id, 0]
    assert (state.start_offset, state.ranges) == (5, ())


def test_what_is_released_comes_again(worker: Worker, log: sparklog.SparkLog) -> None:
    append(log, 5)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    assert worker.fetch({0: [(0, 1, RELEASE), (2, 4, ACCEPT)]}, max_wait=10_000) == [Got(0, 1, 2)]
