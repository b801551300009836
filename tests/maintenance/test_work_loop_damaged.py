"""What cannot be read is told of, and keeps nothing else from its turn."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import CorruptLogError, DataLossError, UnsupportedVersionError
from sparklog.format.batch_table import scan_batches
from sparklog.maintenance import (
    NO_LIMIT,
    MergeLimits,
    SkippedPartition,
    SkippedPartitions,
    Terms,
    compact,
    due_steps,
    maintain,
    optimize,
)
from sparklog.maintenance.budget import MAX_REMEMBERED, RETRY_MS, Meter
from tests.maintenance.conftest import Append, Put, extents, records

ALL = MergeLimits(fan_in=None)
APART = MergeLimits(fan_in=None, shared_bytes=0)


MAGIC, ATTRIBUTES = 16, 21  # bytes of a batch's header that its CRC is not asked about first


def damage(log: SparkLog, topic: str, partition: int = 0, *, at: int = 65) -> str:
    """A byte of a partition's last extent; returns its segment."""
    extent = extents(log, topic, partition)[-1]
    data = bytearray(log.store.read(extent.segment))
    data[extent.position + at] ^= 0x40
    log.store.put_hint(extent.segment, bytes(data))
    return extent.segment


def counts(log: SparkLog) -> list[int]:
    return [len(extents(log, topic, partition)) for topic in ("a", "t") for partition in range(2)]


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_a_damaged_partition_is_an_error_and_the_others_are_merged(
    four: SparkLog, limits: MergeLimits
) -> None:
    segment = damage(four, "a", 1)
    with pytest.raises(CorruptLogError, match=f"a-1 in {segment}"):
        optimize(four.metadata, four.clock, limits=limits)
    assert counts(four) == [1, 3, 1, 1]
    for topic, partition in (("a", 0), ("t", 0), ("t", 1)):
        assert [value for _, value, _ in records(four, topic, partition)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_and_so_is_a_lost_one(four: SparkLog, limits: MergeLimits) -> None:
    four.store.delete(extents(four, "t", 0)[0].segment)
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        optimize(four.metadata, four.clock, limits=limits)
    assert counts(four) == [1, 1, 3, 1]


@pytest.mark.parametrize(
    ("at", "code"), [(MAGIC, "UNSUPPORTED_MAGIC"), (ATTRIBUTES, "UNSUPPORTED_ATTRIBUTES")]
)
@pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])
def test_and_so_is_what_looks_newer(four: SparkLog, limits: MergeLimits, at: int, code: str) -> None:
    damage(four, "a", 1, at=at)
    report = maintain(four.metadata, four.clock, Terms(limits=limits), steps=["optimize"])
    (found,) = report.skipped
    assert (found.topic, found.partition, found.code) == ("a", 1, code)
    assert counts(four) == [1, 3, 1, 1]
    with pytest.raises(UnsupportedVersionError, match=code):
        optimize(four.metadata, four.clock, limits=limits)


def test_a_round_tells_of_it_and_does_the_rest(four: SparkLog) -> None:
    damage(four, "a")
    terms = Terms(limits=MergeLimits(fan_in=2))
    for outcome in ("done", "failed"):
        report = maintain(four.metadata, four.clock, terms, steps=["optimize"])
        (step,) = report.steps
        assert (step.outcome, report.has_failed) == (outcome, True)
        assert "a-0 is skipped: [SPARKLOG_CORRUPT_BATCH]" in step.message
        (found,) = report.skipped
        assert (found.topic, found.partition, found.code) == ("a", 0, "CORRUPT_BATCH")
        assert not report.is_fruitless  # what it found can be left out
    assert counts(four) == [3, 1, 1, 1]


def test_what_is_left_out_is_not_due(four: SparkLog) -> None:
    damage(four, "a")
    limits = MergeLimits(fan_in=2)
    (found,) = maintain(four.metadata, four.clock, Terms(limits=limits), steps=["optimize"]).skipped
    terms = Terms(limits=limits, skip=frozenset([found.key]))
    image = four.refresh()
    assert list(due_steps(image, four.clock.now_ms(), Terms(limits=limits))) == ["optimize", "retire"]
    assert list(due_steps(image, four.clock.now_ms(), terms)) == ["retire"]  # what was merged
    four.append("a", pa.table({"value": ["x"]}), partition=1)
    report = maintain(four.metadata, four.clock, terms)
    assert (report.has_failed, counts(four)) == (False, [3, 1, 1, 1])


@pytest.mark.parametrize(
    ("at", "code"),
    [(65, "CORRUPT_BATCH"), (MAGIC, "UNSUPPORTED_MAGIC"), (ATTRIBUTES, "UNSUPPORTED_ATTRIBUTES")],
)
def test_so_it_is_with_compaction(table: SparkLog, put: Put, at: int, code: str) -> None:
    for partition in range(2):
        for number in range(3):
            put((b"a", b"%d" % number), partition=partition)
        table.close()
    damage(table, "table", at=at)
    put((b"b", b"1"))  # which is in the way of nothing: the newest extent stays by itself
    put((b"b", b"1"), partition=1)
    limits = MergeLimits(fan_in=3)
    report = maintain(table.metadata, table.clock, Terms(limits=limits), steps=["compact"])
    (found,) = report.skipped
    assert (found.topic, found.partition, found.code) == ("table", 0, code)
    assert report.steps[0].outcome == "done"
    assert [value for _, value, _ in records(table, "table", 1)] == [b"2", b"1"]
    terms = Terms(limits=limits, skip=frozenset([found.key]))
    assert "compact" not in due_steps(table.refresh(), table.clock.now_ms(), terms)


def found_at(partition: int) -> SkippedPartition:
    return SkippedPartition(
        topic="t", topic_id="T" * 22, partition=partition, size_bytes=1, code="CORRUPT_BATCH", message="m"
    )


def test_they_are_remembered_for_an_hour_whatever_the_clock_does() -> None:
    known = SkippedPartitions()
    known.add([found_at(0)], 1_000)
    known.add([found_at(1)], 2_000)
    assert known.keys(2_000) == {("T" * 22, 0), ("T" * 22, 1)}
    assert known.keys(1_000 + RETRY_MS) == {("T" * 22, 1)}
    known.add([found_at(0)], 3_000)
    assert known.keys(2_000 + RETRY_MS) == {("T" * 22, 0)}
    assert known.now(3_000 + RETRY_MS) == []


def test_they_are_forgotten_when_the_clock_is_set_back() -> None:
    known = SkippedPartitions()
    known.add([found_at(0)], 1_000)
    assert known.now(0) == []


def test_what_is_remembered_is_bounded() -> None:
    known = SkippedPartitions()
    known.add(map(found_at, range(MAX_REMEMBERED + 7)), 0)
    left = known.now(0)
    assert (len(left), left[-1].partition) == (MAX_REMEMBERED, MAX_REMEMBERED + 6)


class OneWork(Meter):
    """A budget that has room for a work, and then for no other."""

    def has_room(self) -> bool:
        self.works = getattr(self, "works", 0) + 1
        return self.works == 1


def test_a_budget_that_is_spent_hides_nothing_of_a_compaction(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    damage(table, "table")
    put((b"a", b"1" * 9_000), (b"a", b"2"), partition=1)
    with pytest.raises(CorruptLogError, match="table-0"):
        compact(table.metadata, table.clock, meter=OneWork(NO_LIMIT, table.clock))
    assert len(records(table, "table", 1)) == 2


def test_nor_of_a_merge(log: SparkLog, append: Append) -> None:
    for partition in range(2):
        for _ in range(2):
            append([b"x" * 9_000 if partition else b"x"], partition=partition)
        log.close()
    damage(log, "t")
    with pytest.raises(CorruptLogError, match="t-0 in"):
        optimize(log.metadata, log.clock, limits=APART, meter=OneWork(NO_LIMIT, log.clock))
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [2, 2]


def test_offsets_that_go_back_are_noticed_from_step_to_step(table: SparkLog, put: Put) -> None:
    """No checksum covers the base offset of a batch."""
    for number in range(8):
        put((b"%d" % number, b"x" * 9_000))
    optimize(table.metadata, table.clock, ["table"], APART)
    (extent,) = extents(table, "table")
    data = bytearray(table.store.read(extent.segment))
    position = int(scan_batches(data, where="test").position[4])
    data[position : position + 8] = (1).to_bytes(8, "big")
    table.store.put_hint(extent.segment, bytes(data))
    table.alter_topic("table", {"segment.bytes": "20000"})  # and so are steps: of two batches
    with pytest.raises(CorruptLogError, match=rf"{extent.segment}@{position}"):
        compact(table.metadata, table.clock)
    assert extents(table, "table") == [extent]
