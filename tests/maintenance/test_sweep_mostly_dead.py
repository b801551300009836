"""Segments that are mostly dead: counted by the doctor, and rewritten, so that a vacuum can remove them."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.root_checks import check_usage
from sparklog.clock import ManualClock
from sparklog.maintenance import RETAIN_MS, maintain, measure_usage, vacuum
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments
from sparklog.metadata import Action, Image, MetadataLog, plan_advance_log_start
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import extents, records
from tests.maintenance.rounds_told import FEW, step

FAILED_BYTES = 200_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> SparkLog:
    """Ten good records, and what twenty tasks wrote that failed, in one segment of 4 MB."""
    store = MemoryStore("tests", clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 2, {"compression.type": "none"})
    for task in range(20):
        appender = log.appender()
        appender.add(pa.table({"value": [b"f" * FAILED_BYTES]}), "t")
        appender.finish()  # and nobody publishes it
        if task % 2:
            log.append("t", pa.table({"value": [b"good %d" % task]}), partition=task % 4 // 2)
    return log


def stored_bytes(log: SparkLog) -> int:
    return sum(file.size for file in log.store.list("", recursive=True) if file.name.endswith(".log"))


def commit_often(log: SparkLog) -> None:
    """A root that is not new: vacuum by itself looks at those alone."""
    while log.image.commit < 256:
        log.alter_root({"compression.type": "none" if log.image.commit % 2 else "lz4"})


def expire_to(metadata: MetadataLog, offset: int) -> None:
    topic_id = metadata.image.topic("t").topic_id

    def plan(image: Image) -> list[Action]:
        action = plan_advance_log_start(image, topic_id, 0, offset)
        return [] if action is None else [action]

    metadata.publish(plan)


def test_the_doctor_counts_what_is_dead_in_live_files(log: SparkLog, clock: ManualClock) -> None:
    usage = measure_usage(log.metadata, clock, limit_ms=1000)
    live = sum(extent.size for partition in range(2) for extent in extents(log, partition=partition))
    assert usage.dead_bytes == stored_bytes(log) - live > 20 * FAILED_BYTES
    assert usage.unused.files == 0
    assert "MB are of no record any more" in check_usage(log).detail


def test_a_round_rewrites_them_and_a_vacuum_removes_them(log: SparkLog, clock: ManualClock) -> None:
    before = [records(log, partition=partition) for partition in range(2)]
    commit_often(log)
    (segment,) = {extent.segment for partition in range(2) for extent in extents(log, partition=partition)}
    assert mostly_dead_segments(log.metadata, clock) == []  # it may be written to still
    clock.advance_ms(DAY_MS)
    assert mostly_dead_segments(log.metadata, clock) == [segment]
    report = maintain(log.metadata, clock, FEW, steps=["vacuum"])
    assert step(report, "vacuum").figures["rewritten_bytes"] > 0
    assert [records(log, partition=partition) for partition in range(2)] == before
    assert segment not in {extent.segment for number in range(2) for extent in extents(log, partition=number)}
    assert mostly_dead_segments(log.metadata, clock) == []
    clock.advance_ms(RETAIN_MS)
    vacuum(log.metadata, clock)
    assert stored_bytes(log) < 10_000
    assert [records(log, partition=partition) for partition in range(2)] == before


def test_one_extent_is_enough_to_be_rewritten(log: SparkLog, clock: ManualClock) -> None:
    commit_often(log)
    expire_to(log.metadata, extents(log, "t", 0)[-1].base_offset)
    assert len(extents(log, "t", 0)) == 1
    clock.advance_ms(DAY_MS)
    before = records(log, partition=0)
    maintain(log.metadata, clock, steps=["vacuum"])
    assert records(log, partition=0) == before
    assert mostly_dead_segments(log.metadata, clock) == []
