"""Merging and compacting isolated topics: their bytes stay in their directories, or are moved into them."""

import pytest

from sparklog.client import SparkLog
from sparklog.maintenance import MergeLimits, RoundReport, Terms, compact, maintain, optimize
from sparklog.maintenance.choose import choose_merges
from sparklog.maintenance.rounds import due_steps
from sparklog.metadata import isolated_prefix
from tests.maintenance.conftest import Append, Put, extents, records
from tests.maintenance.rounds_told import step

ISOLATED = {"sparklog.segment.isolation": "true"}
LIMITS = [MergeLimits(fan_in=None), MergeLimits(fan_in=None, shared_bytes=0)]
SHAPES = ["shared", "one partition each"]


def segments(log: SparkLog, topic: str) -> set[str]:
    partitions = range(len(log.image.topic(topic).partitions))
    return {extent.segment for partition in partitions for extent in extents(log, topic, partition)}


def is_inside(log: SparkLog, topic: str) -> bool:
    inside = {name.startswith(isolated_prefix(topic)) for name in segments(log, topic)}
    assert len(inside) == 1, "some are in the directory, and some are not"
    return inside.pop()


@pytest.mark.parametrize("limits", LIMITS, ids=SHAPES)
def test_merged_segments_stay_in_the_directory(log: SparkLog, append: Append, limits: MergeLimits) -> None:
    for topic in ("orders", "orders-eu"):
        log.create_topic(topic, 2, ISOLATED)
    for number in range(3):
        for topic in ("orders", "t", "orders-eu"):
            for partition in range(2):
                append([b"%d" % number], topic=topic, partition=partition)
    report = optimize(log.metadata, log.clock, limits=limits)
    assert {counts.extents_after for counts in report.topics.values()} == {2}
    assert [is_inside(log, topic) for topic in ("orders", "t", "orders-eu")] == [True, False, True]
    for topic in ("orders", "t", "orders-eu"):
        for partition in range(2):
            assert [value for _, value, _ in records(log, topic, partition)] == [b"0", b"1", b"2"]


def test_many_isolated_topics_in_one_work(log: SparkLog, append: Append) -> None:
    topics = [f"t{number}" for number in range(100)]
    for topic in topics:
        log.create_topic(topic, 1, ISOLATED)
        for number in range(2):
            append([b"%d" % number], topic=topic)
    assert len(list(choose_merges(log.image, LIMITS[0]))) == 1
    optimize(log.metadata, log.clock)
    for topic in topics:
        assert is_inside(log, topic)
        assert len(extents(log, topic)) == 1


@pytest.mark.parametrize("limits", LIMITS, ids=SHAPES)
def test_what_was_written_before_is_moved_even_where_there_is_nothing_to_merge(
    four: SparkLog, append: Append, limits: MergeLimits
) -> None:
    optimize(four.metadata, four.clock, limits=limits)
    four.alter_topic("t", ISOLATED)
    before = records(four), records(four, "a")
    assert "optimize" in due_steps(four.image, four.clock.now_ms(), Terms(limits=limits))
    four.create_topic("new", 1, ISOLATED)
    append([b"x"], topic="new")
    report = optimize(four.metadata, four.clock, limits=limits)
    assert [report.topics[topic].added_extents for topic in ("a", "t", "new")] == [0, 2, 0]
    assert [is_inside(four, topic) for topic in ("a", "t", "new")] == [False, True, True]
    assert (records(four), records(four, "a")) == before
    assert list(choose_merges(four.image, limits)) == []


def test_extents_that_are_inside_are_not_rewritten_with_those_that_move(
    log: SparkLog, append: Append
) -> None:
    append([b"before"])
    log.alter_topic("t", ISOLATED)
    for number in range(3):
        append([b"%d" % number])
    due = MergeLimits(fan_in=256)  # of which there are too few
    optimize(log.metadata, log.clock, limits=due)
    assert is_inside(log, "t")
    assert len(extents(log)) == 4
    assert [value for _, value, _ in records(log)] == [b"before", b"0", b"1", b"2"]


def test_back_again(four: SparkLog, append: Append) -> None:
    four.alter_topic("t", ISOLATED)
    optimize(four.metadata, four.clock)
    four.alter_topic("t", {"sparklog.segment.isolation": "false"})
    assert list(choose_merges(four.image, MergeLimits(fan_in=None))) == []
    before = records(four)
    append([b"more"])
    optimize(four.metadata, four.clock, limits=LIMITS[0])
    assert [extent.segment.startswith("segments/") for extent in extents(four)] == [True]
    assert records(four)[:-1] == before


def test_what_cannot_be_read_is_skipped_and_the_rest_is_moved(four: SparkLog) -> None:
    four.alter_topic("t", ISOLATED)
    (first,) = {extent.segment for extent in extents(four, "t", 0)}
    four.store.delete(first)
    report = optimize(four.metadata, four.clock, raises=False)
    assert [(one.topic, one.partition) for one in report.skipped] == [("t", 0)]
    assert {extent.segment for extent in extents(four, "t", 0)} == {first}
    assert all(one.segment.startswith(isolated_prefix("t")) for one in extents(four, "t", 1))


@pytest.mark.parametrize("isolated_from_the_start", [False, True])
def test_compacted_segments_are_in_the_directory(
    table: SparkLog, put: Put, *, isolated_from_the_start: bool
) -> None:
    if isolated_from_the_start:
        table.alter_topic("table", ISOLATED)
    put((b"a", b"1"), (b"b", b"1"))
    put((b"a", b"2"))
    table.alter_topic("table", ISOLATED)
    compact(table.metadata, table.clock)
    assert is_inside(table, "table")
    assert [value for _, value, _ in records(table, "table")] == [b"1", b"2"]


def test_a_round_moves_them_by_itself(four: SparkLog) -> None:
    def run() -> RoundReport:
        return maintain(four.metadata, four.clock)

    assert step(run(), "optimize").outcome == "nothing"
    four.alter_root(ISOLATED)
    assert step(run(), "optimize").figures["merged_extents"] == 12
    assert is_inside(four, "a")
    assert is_inside(four, "t")
    assert step(run(), "optimize").outcome == "nothing"
