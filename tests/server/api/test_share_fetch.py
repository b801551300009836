"""ShareFetch: records for members of share groups, once for each, and again when they are given up."""

import pyarrow as pa
import pytest

import sparklog
from sparklog.metadata import AdvanceLogStart
from sparklog_server.runtime.budget import Held
from sparklog_server.share.service import HELD_BYTES
from tests.server.api.share_requests import (
    ACCEPT,
    RELEASE,
    SHARE_SETTINGS,
    Got,
    Worker,
    acquired_of,
    set_group,
)
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = SHARE_SETTINGS | {
    "sparklog.metadata.poll.ms": "10",
    "group.share.max.share.sessions": "2",
}
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


def test_what_is_deleted_has_ended(worker: Worker, log: sparklog.SparkLog) -> None:
    append(log, 5)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    advance = AdvanceLogStart(topic_id=worker.topic_id, partition=0, log_start_offset=3)
    log.metadata.publish(lambda _image: [advance])
    append(log, 1)
    assert worker.fetch(max_wait=10_000) == [Got(5, 5, 1)]
    assert worker.acknowledge({0: [(0, 3, RELEASE), (4, 5, ACCEPT)]}) == "none"
    assert worker.fetch(max_wait=10_000) == [Got(3, 3, 2)]


def test_the_record_limit_is_strict(worker: Worker, log: sparklog.SparkLog) -> None:
    append(log, 5)
    append(log, 5)
    until(lambda: len(log.refresh().topic("orders").partitions[0].extents) > 0, what="they are there")
    assert worker.fetch(max_wait=10_000, max_records=3, share_acquire_mode=1) == [Got(0, 2, 1)]
    assert worker.fetch(max_wait=10_000, max_records=1) == [Got(3, 4, 1)]
    assert worker.fetch(max_records=0) == []


def test_sessions_begin_and_go_on(worker: Worker, log: sparklog.SparkLog) -> None:
    assert worker.fetch_all(epoch=9).error_code.name == "invalid_share_session_epoch"
    stranger = Worker(worker.asker, worker.topic_id, member="m-9")
    assert stranger.fetch_all(epoch=1).error_code.name == "share_session_not_found"
    assert stranger.fetch_all({0: [(0, 0, ACCEPT)]}).error_code.name == "invalid_request"
    nobody = Worker(worker.asker, worker.topic_id, member="")
    assert nobody.fetch_all().error_code.name == "invalid_request"
    append(log, 5)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    worker.close()
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]


def test_sessions_have_a_bound(worker: Worker) -> None:
    for number in range(2):
        found = Worker(worker.asker, worker.topic_id, member=f"n-{number}")
        name = found.fetch_all().error_code.name
    assert name == "share_session_limit_reached"


def test_unknown_partitions_are_errors(asker: WireClient) -> None:
    worker = Worker(asker, "B" * 21 + "A", partitions=[0])
    ((topic,),) = [worker.fetch_all().responses]
    assert [one.error_code.name for one in topic.partitions] == ["unknown_topic_id"]


def test_bytes_that_are_held_have_a_bound(
    worker: Worker, log: sparklog.SparkLog, running_broker: RunningBroker
) -> None:
    shares = running_broker.broker.shares
    running_broker.call_soon(setattr, shares, "held_bytes", HELD_BYTES)
    append(log, 5)
    assert worker.fetch(max_wait=300) == []
    running_broker.call_soon(setattr, shares, "held_bytes", 0)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    assert shares.held_bytes == 0


def test_what_a_fetch_names_counts_until_it_waits_for_records(
    worker: Worker, log: sparklog.SparkLog, running_broker: RunningBroker
) -> None:
    """Its acknowledgements wait for room. A fetch that waits for records keeps none from others."""
    append(log, 100)
    assert worker.fetch(max_wait=10_000) == [Got(0, 99, 1)]
    work = running_broker.broker.dispatcher.work
    running_broker.call_soon(work.overdraw, 2 * work.limit_bytes)
    blocker = Held(work)
    running_broker.call(blocker.take(1))  # it has the overdraft
    fetching = worker.sent({0: [(offset, offset, ACCEPT) for offset in range(100)]}, max_wait=60_000)
    until(lambda: work.waiting == 1, what="it waits for room")
    running_broker.call_soon(work.overdraw, -2 * work.limit_bytes)
    running_broker.call_soon(blocker.release)
    topic_id = worker.topic_id
    until(
        lambda: log.refresh().shares["workers"][topic_id, 0].start_offset == 100, what="it has acknowledged"
    )
    until(lambda: work.used_bytes == 0, what="it waits for records")
    append(log, 1)
    assert acquired_of(fetching()) == [Got(100, 100, 1)]


def test_what_is_released_comes_again(worker: Worker, log: sparklog.SparkLog) -> None:
    append(log, 5)
    assert worker.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    assert worker.fetch({0: [(0, 1, RELEASE), (2, 4, ACCEPT)]}, max_wait=10_000) == [Got(0, 1, 2)]
