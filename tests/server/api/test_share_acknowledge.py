"""ShareAcknowledge: who may say what of a record, and what becomes of it."""

from collections.abc import Callable
from threading import Event
from typing import Any, Self

import pyarrow as pa
import pytest

import sparklog
from sparklog.client.consumer import read_batches
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.maintenance import CompactionLimits, compact
from sparklog.metadata import DeliveryState, ShareRange
from sparklog_server.protocol.responses import topic_uuid
from sparklog_server.share import dead_letters as dead_letters_module
from sparklog_server.share.service import LETTERS_AT_ONCE
from tests.server.api.share_requests import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    SHARE_SETTINGS,
    Got,
    Worker,
    set_group,
)
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = SHARE_SETTINGS | {
    "sparklog.metadata.poll.ms": "10",
    "group.share.delivery.count.limit": "2",
    "group.share.record.lock.duration.ms": "60000",
}
BROKER_TOPICS = {"orders": 2}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SHORT_MS, DAY_MS = 1_000, 86_400_000
Connect = Callable[[RunningBroker], WireClient]


def append(log: sparklog.SparkLog, count: int, partition: int = 0) -> None:
    values = pa.array([b"%d" % number for number in range(count)], pa.binary())
    partitions = pa.array([partition] * count, pa.int32())
    log.append("orders", pa.table({"key": values, "value": values, "partition": partitions}))


def dead_letters(log: sparklog.SparkLog) -> list[dict[str, object]]:
    """Each with its headers as a dictionary."""
    log.refresh(force=True)
    found = []
    for number in range(len(log.image.topic("dlq.orders").partitions)):
        for batch in read_batches(log.metadata, log.image, "dlq.orders", number, include_headers=True):
            for row in batch.to_pylist():
                headers = {
                    one["key"].removeprefix("__dlq.errors."): one["value"].decode() for one in row["headers"]
                }
                found.append({"key": row["key"], "value": row["value"], "in": number, **headers})
    return found


class HeldBack:
    """Within it commits of a broker begin, and wait until its end."""

    def __init__(self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._metadata, self._monkeypatch = broker.broker.root.log.metadata, monkeypatch
        self._publish, self._began, self._may = self._metadata.publish, Event(), Event()

    def __enter__(self) -> Self:
        self._monkeypatch.setattr(self._metadata, "publish", self._late)
        return self

    def __exit__(self, *_: object) -> None:
        self._may.set()
        self._monkeypatch.setattr(self._metadata, "publish", self._publish)

    def _late(self, *args: Any, **options: Any) -> Any:
        self._began.set()
        assert self._may.wait(60)
        return self._publish(*args, **options)

    def wait(self) -> None:
        """Until a commit has begun."""
        assert self._began.wait(60)


@pytest.fixture
def held_back(running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> HeldBack:
    return HeldBack(running_broker, monkeypatch)


@pytest.fixture
def worker(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    """It has acquired records 0 to 4 of partition 0."""
    found = Worker(asker, log.image.topic("orders").topic_id)
    assert found.fetch() == []
    append(log, 5)
    assert found.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    return found


@pytest.fixture
def other(running_broker: RunningBroker, connect: Connect, worker: Worker) -> Worker:
    """Another member on another connection; it has begun its session."""
    found = Worker(connect(running_broker), worker.topic_id, member="m-2")
    assert found.fetch() == []
    return found


def state_of(log: sparklog.SparkLog, worker: Worker) -> tuple[int, tuple[ShareRange, ...]]:
    log.refresh(force=True)
    state = log.image.shares["workers"][worker.topic_id, 0]
    return state.start_offset, state.ranges


@pytest.mark.parametrize("version", [1, 2])
def test_each_type(worker: Worker, log: sparklog.SparkLog, version: int) -> None:
    worker.version = version
    assert worker.acknowledge({0: [(0, 0, GAP), (1, 1, ACCEPT), (2, 4, (RELEASE, ACCEPT, REJECT))]}) == "none"
    assert state_of(log, worker) == (
        2,
        (
            ShareRange(2, 2, DeliveryState.AVAILABLE, 1),
            ShareRange(3, 3, DeliveryState.ACKNOWLEDGED, 1),
            ShareRange(4, 4, DeliveryState.ARCHIVED, 1),
        ),
    )
    assert worker.fetch(max_wait=10_000) == [Got(2, 2, 2)]


def test_records_that_are_not_held_are_refused(worker: Worker, other: Worker, log: sparklog.SparkLog) -> None:
    assert other.acknowledge({0: [(0, 0, ACCEPT)]}) == "invalid_record_state"
    assert worker.acknowledge({0: [(4, 5, ACCEPT)]}) == "invalid_record_state"
    assert worker.acknowledge({1: [(0, 0, ACCEPT)]}) == "invalid_record_state"
    assert worker.acknowledge({7: [(0, 0, ACCEPT)]}) == "unknown_topic_or_partition"
    assert worker.acknowledge({0: [(0, 1, ())]}) == "invalid_request"
    assert worker.acknowledge({0: [(0, 1, 9)]}) == "invalid_request"
    assert state_of(log, worker) == (0, ())
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"  # below the start: ignored, as in Kafka


def test_epochs(worker: Worker) -> None:
    assert worker.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=0) == "invalid_share_session_epoch"
    assert worker.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=9) == "invalid_share_session_epoch"
    worker.member = "m-9"
    assert worker.acknowledge({0: [(0, 0, ACCEPT)]}) == "share_session_not_found"
    worker.member = ""
    assert worker.acknowledge({0: [(0, 0, ACCEPT)]}) == "invalid_request"


def test_renewing_needs_its_flag(worker: Worker) -> None:
    assert worker.acknowledge({0: [(0, 0, RENEW)]}) == "invalid_request"
    assert worker.acknowledge({0: [(0, 0, RENEW)]}, is_renew_ack=True) == "none"
    assert worker.fetch_all({0: [(1, 1, RENEW)]}, is_renew_ack=True).error_code.name == "none"


def test_a_goodbye_gives_back_what_is_left(worker: Worker, other: Worker) -> None:
    assert worker.acknowledge({0: [(0, 1, ACCEPT)]}, epoch=-1) == "none"
    assert other.fetch(max_wait=10_000) == [Got(2, 4, 1)]


def test_what_a_member_has_of_a_forgotten_partition_stays_its_own(
    worker: Worker, other: Worker, log: sparklog.SparkLog
) -> None:
    """A rebalance takes partitions away while their records are worked on: nobody else gets them."""
    forgotten = {"_": "ForgottenTopic", "topic_id": topic_uuid(worker.topic_id), "partitions": [0]}
    assert worker.fetch(forgotten_topics_data=[forgotten]) == []
    assert other.fetch() == []
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"
    assert state_of(log, worker) == (5, ())


def test_a_lost_connection_counts_as_a_delivery(worker: Worker, other: Worker) -> None:
    worker.asker.close()
    assert other.fetch(max_wait=10_000) == [Got(0, 4, 2)]


@pytest.mark.parametrize("epoch", [None, -1])
def test_a_member_that_begins_anew_while_it_is_acknowledged_has_its_new_session(
    worker: Worker,
    running_broker: RunningBroker,
    connect: Connect,
    held_back: HeldBack,
    epoch: int | None,
) -> None:
    """Its last request has lost its connection, and goes on at the broker; it may be a goodbye."""
    sessions = running_broker.broker.shares.sessions
    forgotten = {"_": "ForgottenTopic", "topic_id": topic_uuid(worker.topic_id), "partitions": [0]}
    with held_back as commits:
        received = worker.sent(
            {0: [(0, 1, ACCEPT)]},
            forgotten_topics_data=[forgotten],
            epoch=worker.epoch if epoch is None else epoch,
        )
        commits.wait()
        again = Worker(connect(running_broker), worker.topic_id)
        assert again.fetch() == [Got(2, 4, 1)]
    assert received().error_code.name == "none"
    assert sessions.partition_count == 1
    assert again.acknowledge({0: [(2, 4, ACCEPT)]}) == "none"


@pytest.mark.slow
def test_a_lock_expires(worker: Worker, other: Worker, log: sparklog.SparkLog) -> None:
    set_group(worker.asker, share_record_lock_duration_ms=str(SHORT_MS))
    append(log, 1)
    assert worker.fetch(max_wait=10_000) == [Got(5, 5, 1)]
    assert other.fetch(max_wait=20_000) == [Got(5, 5, 2)]
    assert worker.acknowledge({0: [(5, 5, ACCEPT)]}) == "invalid_record_state"
    assert other.acknowledge({0: [(5, 5, ACCEPT)]}) == "none"


# --- dead letters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [False, True])
def test_dead_letters(worker: Worker, log: sparklog.SparkLog, copies: bool) -> None:
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(
        worker.asker,
        errors_deadletterqueue_topic_name="dlq.orders",
        errors_deadletterqueue_copy_record_enable=str(copies).lower(),
    )
    assert worker.acknowledge({0: [(0, 2, ACCEPT), (3, 3, REJECT), (4, 4, RELEASE)]}) == "none"
    assert worker.fetch(max_wait=10_000) == [Got(4, 4, 2)]
    assert worker.acknowledge({0: [(4, 4, RELEASE)]}) == "none"
    assert state_of(log, worker) == (5, ())
    common = {"in": 0, "topic": "orders", "partition": "0", "group": "workers"}
    rejected, exhausted = dead_letters(log)
    assert rejected == {
        **common,
        "key": b"3" if copies else None,
        "value": b"3" if copies else None,
        "offset": "3",
        "delivery.count": "1",
        "message": "Offset rejected by client.",
    }
    assert (exhausted["offset"], exhausted["delivery.count"], exhausted["message"]) == (
        "4",
        "2",
        "Offset delivery count exceeded the threshold.",
    )


def test_without_their_topic_records_stay_until_there_is_one(worker: Worker, log: sparklog.SparkLog) -> None:
    set_group(worker.asker, errors_deadletterqueue_topic_name="dlq.orders")
    assert worker.acknowledge({0: [(0, 0, REJECT)]}) != "none"
    assert state_of(log, worker) == (0, ())
    log.create_topic("dlq.orders", 1)
    assert worker.acknowledge({0: [(0, 0, REJECT)]}) != "none"
    log.alter_topic("dlq.orders", {"errors.deadletterqueue.group.enable": "true"})
    assert worker.acknowledge({0: [(1, 4, ACCEPT)]}) == "none"
    assert worker.acknowledge({0: [(0, 0, REJECT)]}) == "none"
    assert len(dead_letters(log)) == 1


def test_a_dead_letter_and_its_record_are_one_commit(worker: Worker, log: sparklog.SparkLog) -> None:
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(worker.asker, errors_deadletterqueue_topic_name="dlq.orders")
    before = log.refresh(force=True).commit
    assert worker.acknowledge({0: [(0, 4, REJECT)]}) == "none"
    after = log.refresh(force=True)
    assert after.commit == before + 1
    assert after.topic("dlq.orders").partitions[0].log_end_offset == 5
    assert state_of(log, worker)[0] == 5


def test_many_large_dead_letters_are_several_commits(
    worker: Worker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_module, "MAX_LETTER_BYTES", 5)
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(
        worker.asker,
        errors_deadletterqueue_topic_name="dlq.orders",
        errors_deadletterqueue_copy_record_enable="true",
    )
    assert worker.acknowledge({0: [(0, 4, REJECT)]}) == "none"
    assert [one["value"] for one in dead_letters(log)] == [b"0", b"1", b"2", b"3", b"4"]
    assert state_of(log, worker)[0] == 5


def test_headers_of_dead_letters_count(
    worker: Worker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_module, "MAX_LETTER_BYTES", 1_000)
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(
        worker.asker,
        errors_deadletterqueue_topic_name="dlq.orders",
        errors_deadletterqueue_copy_record_enable="true",
    )
    header = {"key": "h", "value": b"x" * 600}
    columns = {"value": [b"v"] * 3, "partition": [0] * 3, "headers": [[header]] * 3}
    kinds = {"value": pa.binary(), "partition": pa.int32(), "headers": HEADERS}
    log.append("orders", pa.table({name: pa.array(columns[name], kinds[name]) for name in columns}))
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"
    assert worker.fetch(max_wait=10_000) == [Got(5, 7, 1)]
    before = log.refresh(force=True).commit
    assert worker.acknowledge({0: [(5, 7, REJECT)]}) == "none"
    assert log.refresh(force=True).commit > before + 1  # several
    assert [one["h"] for one in dead_letters(log)] == ["x" * 600] * 3


def test_dead_letters_that_wait_for_their_commit_have_a_bound(
    worker: Worker, log: sparklog.SparkLog, held_back: HeldBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(worker.asker, errors_deadletterqueue_topic_name="dlq.orders")
    log.create_topic("wide", 20)
    wide = Worker(worker.asker, log.image.topic("wide").topic_id, partitions=range(20), member="w")
    assert wide.fetch() == []
    values = pa.array([b"v"] * 20, pa.binary())
    log.append("wide", pa.table({"value": values, "partition": pa.array(range(20), pa.int32())}))
    held = 0
    while held < 20:
        held += len(wide.fetch(max_wait=10_000))
    build, built = dead_letters_module.build, list[None]()

    def counted(*args: Any, **options: Any) -> Any:
        built.append(None)
        return build(*args, **options)

    monkeypatch.setattr(dead_letters_module, "build", counted)
    with held_back as commits:
        received = wide.sent({number: [(0, 0, REJECT)] for number in range(20)}, max_records=0)
        commits.wait()
        until(lambda: len(built) >= LETTERS_AT_ONCE, what="the first ones wait")
        assert len(built) == LETTERS_AT_ONCE
    assert received().error_code.name == "none"
    assert len(built) == len(dead_letters(log)) == 20


def test_a_record_that_compaction_has_removed_ends_without_a_copy(
    worker: Worker, log: sparklog.SparkLog, running_broker: RunningBroker
) -> None:
    log.create_topic("dlq.orders", 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(
        worker.asker,
        errors_deadletterqueue_topic_name="dlq.orders",
        errors_deadletterqueue_copy_record_enable="true",
    )
    log.alter_topic("orders", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    append(log, 6)
    append(log, 1)
    clock = ManualClock(log.clock.now_ms() + 30 * DAY_MS)
    compact(log.metadata, clock, limits=CompactionLimits(dedupe_buffer_bytes=1 << 20))
    rows = read_batches(log.metadata, log.refresh(), "orders", 0)
    assert min(row["offset"] for one in rows for row in one.to_pylist()) == 6
    running_broker.settle()
    assert worker.acknowledge({0: [(0, 3, REJECT), (4, 4, ACCEPT)]}) == "none"
    assert (state_of(log, worker), dead_letters(log)) == ((5, ()), [])


def test_a_record_that_is_too_large_for_the_topic_is_not_copied(
    worker: Worker, log: sparklog.SparkLog
) -> None:
    configs = {"errors.deadletterqueue.group.enable": "true", "max.message.bytes": "400"}
    log.create_topic("dlq.orders", 1, configs)
    set_group(
        worker.asker,
        errors_deadletterqueue_topic_name="dlq.orders",
        errors_deadletterqueue_copy_record_enable="true",
    )
    values = pa.array([b"v" * 1_000], pa.binary())
    log.append("orders", pa.table({"value": values, "partition": pa.array([0], pa.int32())}))
    assert worker.fetch(max_wait=10_000) == [Got(5, 5, 1)]
    assert worker.acknowledge({0: [(4, 5, REJECT)]}) == "none"
    assert [one["value"] for one in dead_letters(log)] == [b"4", None]


@pytest.mark.parametrize("name", ["__dlq", "orders"])
def test_names_of_dead_letter_topics(worker: Worker, name: str) -> None:
    with pytest.raises(AssertionError, match="invalid_config"):
        set_group(worker.asker, errors_deadletterqueue_topic_name=name)


# --- resets and storage ------------------------------------------------------------------------------


def test_after_a_reset_an_older_acknowledgement_is_refused(worker: Worker, log: sparklog.SparkLog) -> None:
    answer = worker.asker.ask(
        91,
        0,
        group_id="workers",
        topics=[
            {
                "_": "AlterShareGroupOffsetsRequestTopic",
                "topic_name": "orders",
                "partitions": [
                    {"_": "AlterShareGroupOffsetsRequestPartition", "partition_index": 0, "start_offset": 1}
                ],
            }
        ],
    )
    assert answer.error_code.name == "none"
    assert worker.acknowledge({0: [(1, 4, ACCEPT)]}) == "invalid_record_state"
    assert worker.fetch(max_wait=10_000) == [Got(1, 4, 1)]
    assert state_of(log, worker) == (1, ())


def test_what_cannot_be_written_is_not_acknowledged(
    worker: Worker, running_broker: RunningBroker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = running_broker.broker.publisher

    def fails(*_: object) -> object:
        raise StorageError("STORAGE_FAILED", "the storage is away", fix="wait")

    with monkeypatch.context() as patch:
        patch.setattr(running_broker.broker.root.log.metadata, "publish", fails)
        assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) != "none"
    assert state_of(log, worker) == (0, ())
    assert worker.acknowledge({0: [(0, 4, ACCEPT)]}) == "none"
    until(lambda: publisher.pending_submissions == 0, what="nothing waits")
