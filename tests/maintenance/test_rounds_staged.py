"""What transactions have staged, beside maintenance: it is live, not touched, and all there at the end."""

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import RETAIN_MS, optimize, vacuum
from sparklog.metadata import (
    MetadataLog,
    plan_delete_topic,
    plan_end_transaction,
)
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import Append, extents, records
from tests.metadata.producing import expiring
from tests.support.staged import begin, stage

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> SparkLog:
    """Its files' dates are those of the clock."""
    store = MemoryStore("tests", clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 2)
    begin(log)
    return log


def end(log: SparkLog, *, committed: bool = True) -> None:
    one = log.image.transactions["app"]
    log.metadata.publish(
        lambda image: (
            plan_end_transaction(
                image,
                "app",
                one.producer_id,
                one.producer_epoch,
                committed=committed,
                second=True,
                now_ms=log.clock.now_ms(),
            ).actions
        )
    )


def values(log: SparkLog, topic: str = "t") -> list[tuple[int, bytes]]:
    return [(offset, value) for offset, value, _ in records(log, topic)]


def test_a_sweep_takes_nothing_that_is_staged(log: SparkLog, append: Append, clock: ManualClock) -> None:
    segment = stage(log, 0, b"a", b"b")
    append([b"x"])
    log.close()
    clock.advance_ms(2 * RETAIN_MS)
    log.metadata.write_snapshot()
    other = SparkLog(log.store, MetadataLog.open(log.store, clock, create=False), clock)
    stray = f"segments/{'b' * 32}/00000000.0.log"
    log.store.put_if_absent(stray, b"?")
    clock.advance_ms(2 * RETAIN_MS)
    report = vacuum(other.metadata, clock)
    assert (report.dead.files, report.live.files) == (1, 2)
    assert log.store.exists(segment)
    end(log)
    assert values(log) == [(0, b"x"), (1, b"a"), (2, b"b")]


def test_a_sweep_takes_what_was_aborted(log: SparkLog, clock: ManualClock) -> None:
    segment = stage(log, 0, b"a")
    end(log, committed=False)
    clock.advance_ms(2 * RETAIN_MS)
    assert vacuum(log.metadata, clock).dead.files == 1
    assert not log.store.exists(segment)


def test_and_what_was_staged_for_a_topic_that_is_deleted(log: SparkLog, clock: ManualClock) -> None:
    log.create_topic("gone", 1)
    kept, gone = stage(log, 0, b"a"), stage(log, 0, b"b", topic="gone")
    log.metadata.publish(lambda image: [plan_delete_topic(image, "gone")])
    clock.advance_ms(2 * RETAIN_MS)
    assert vacuum(log.metadata, clock).dead.files == 1
    assert (log.store.exists(kept), log.store.exists(gone)) == (True, False)
    end(log)
    assert values(log) == [(0, b"a")]


def test_merging_leaves_it_alone(log: SparkLog, append: Append, clock: ManualClock) -> None:
    stage(log, 0, b"a", b"b")
    for number in range(4):
        append([b"%d" % number])
    stage(log, 2, b"c")
    staged = list(log.image.transactions["app"].staged_in(log.image.topic("t").topic_id, 0))
    optimize(log.metadata, clock)
    assert len(extents(log)) == 1
    assert list(log.image.transactions["app"].staged_in(log.image.topic("t").topic_id, 0)) == staged
    end(log)
    expected = [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3"), (4, b"a"), (5, b"b"), (6, b"c")]
    assert values(log) == expected
    optimize(log.metadata, clock)
    assert values(log) == expected


def test_its_producer_is_remembered_while_it_is_open(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    stage(log, 0, b"a")
    for number in range(4):
        clock.advance_ms(2 * DAY_MS)
        append([b"%d" % number])
        log.metadata.publish(lambda image: expiring(image, clock.now_ms()))
    stage(log, 1, b"b")
    end(log)
    assert [value for _, value in values(log)] == [b"0", b"1", b"2", b"3", b"a", b"b"]
