"""Where a group goes on: every way of a reset against the offset that is right, and Kafka's CSV file."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.admin import delete_records
from sparklog.client.groups import TopicPartition
from sparklog.client.offset_reset import (
    Bounds,
    Mode,
    Reset,
    ResetPlan,
    parse_plan_csv,
    plan_csv,
    plan_reset,
    propose_reset,
)
from sparklog.errors import InvalidRequestError, UnknownTopicError

AT = ("t", 0)
BOUNDS = {AT: Bounds(10, 50)}


def offset(reset: Reset, *, committed: int | None = 30, found: int | None = None) -> tuple[int, int]:
    """The new offset, and how many notes there are."""
    known = {} if committed is None else {AT: committed}
    plan = plan_reset("g", reset, BOUNDS, committed=known, found_by_time={AT: found})
    return plan.offsets[AT], len(plan.notes)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        (Mode.EARLIEST, 0, (10, 0)),
        (Mode.LATEST, 0, (50, 0)),
        (Mode.CURRENT, 0, (30, 0)),
        (Mode.OFFSET, 20, (20, 0)),
        (Mode.OFFSET, 10, (10, 0)),
        (Mode.OFFSET, 50, (50, 0)),
        (Mode.OFFSET, 9, (10, 1)),
        (Mode.OFFSET, 51, (50, 1)),
        (Mode.SHIFT, 5, (35, 0)),
        (Mode.SHIFT, -5, (25, 0)),
        (Mode.SHIFT, 0, (30, 0)),
        (Mode.SHIFT, -21, (10, 1)),
        (Mode.SHIFT, 21, (50, 1)),
    ],
)
def test_each_way_has_its_offset(mode: Mode, value: int, expected: tuple[int, int]) -> None:
    assert offset(Reset(mode=mode, value=value)) == expected


def test_a_time_is_a_lookup_or_the_log_end() -> None:
    assert offset(Reset(mode=Mode.TIME, value=7), found=33) == (33, 0)
    assert offset(Reset(mode=Mode.TIME, value=7), found=None) == (50, 1)


@pytest.mark.parametrize(("wanted", "expected"), [(20, (20, 0)), (0, (10, 1)), (99, (50, 1))])
def test_a_file_is_kept_within_the_log(wanted: int, expected: tuple[int, int]) -> None:
    assert offset(Reset(mode=Mode.FILE, offsets={AT: wanted})) == expected


def test_a_group_that_has_committed_nothing() -> None:
    assert offset(Reset(mode=Mode.CURRENT), committed=None) == (50, 1)
    with pytest.raises(InvalidRequestError, match="t-0: group 'g' has committed no offset"):
        offset(Reset(mode=Mode.SHIFT, value=1), committed=None)


def test_what_is_committed_outside_of_the_log_stays_or_is_shifted_into_it() -> None:
    assert offset(Reset(mode=Mode.CURRENT), committed=3) == (3, 0)
    assert offset(Reset(mode=Mode.SHIFT, value=1), committed=3) == (10, 1)


# --- of a log -----------------------------------------------------------------------------------------


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    """Topic t: two partitions of ten records, each a second after the other, from 1,000,000 ms on. The first
    has lost three. The group has read five of each, and topic `gone`.
    """
    log.create_topic("t", 2)
    for partition in range(2):
        times = pa.array([1_000_000 + 1000 * n for n in range(10)], pa.timestamp("ms", "UTC"))
        rows = {"value": pa.array([b"v"] * 10), "timestamp": times}
        log.append("t", pa.table(rows), partition=partition)
    delete_records(log.metadata, {("t", 0): 3})
    log.commit_offsets("g", {("t", 0): 5, ("t", 1): 5, ("gone", 0): 7})
    return log


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset(mode=Mode.EARLIEST), (3, 0)),
        (Reset(mode=Mode.LATEST), (10, 10)),
        (Reset(mode=Mode.CURRENT), (5, 5)),
        (Reset(mode=Mode.OFFSET, value=2), (3, 2)),
        (Reset(mode=Mode.SHIFT, value=-3), (3, 2)),
        (Reset(mode=Mode.TIME, value=1_000_000), (3, 0)),
        (Reset(mode=Mode.TIME, value=1_006_500), (7, 7)),
        (Reset(mode=Mode.TIME, value=1_009_001), (10, 10)),
        (Reset(mode=Mode.FILE, offsets={("t", 0): 6, ("t", 1): 4}), (6, 4)),
    ],
)
def test_of_a_log(filled: SparkLog, reset: Reset, expected: tuple[int, int]) -> None:
    plan = propose_reset(filled, "g", reset)
    assert dict(plan.offsets) == {("t", 0): expected[0], ("t", 1): expected[1]}
    assert filled.committed_offsets("g") == {("t", 0): 5, ("t", 1): 5, ("gone", 0): 7}


def test_only_partitions_that_are_named(filled: SparkLog) -> None:
    assert dict(propose_reset(filled, "new", Reset(mode=Mode.LATEST), [("t", 1)]).offsets) == {("t", 1): 10}
    with pytest.raises(UnknownTopicError):
        propose_reset(filled, "g", Reset(mode=Mode.LATEST), [("t", 2)])
    assert propose_reset(filled, "new", Reset(mode=Mode.LATEST)).offsets == {}


# --- Kafka's file -------------------------------------------------------------------------------------


def plan(group: str, offsets: Mapping[TopicPartition, int]) -> ResetPlan:
    return ResetPlan(group=group, offsets=offsets)


def test_a_plan_is_read_as_it_was_written() -> None:
    offsets = {("t", 0): 5, ("t", 1): 0, ("u.v", 3): (1 << 63) - 1}
    one = plan_csv([plan("g", offsets)], with_group=False)
    assert one.splitlines() == ["t,0,5", "t,1,0", "u.v,3,9223372036854775807"]
    assert parse_plan_csv(one, ["g"]) == {"g": offsets}
    names = ["g", 'with, "quotes"']
    both = plan_csv([plan(name, offsets) for name in names], with_group=True)
    assert both.splitlines()[0] == "g,t,0,5"
    assert parse_plan_csv(f"\ufeff{both}\n", names) == dict.fromkeys(names, offsets)
    assert parse_plan_csv(both, ["g"]) == {"g": offsets}


@pytest.mark.parametrize(
    ("text", "groups", "problem"),
    [
        ("t,0", ["g"], "found 't,0'"),
        ("t,x,5", ["g"], "found 't,x,5'"),
        ("t,0,-1", ["g"], "found 't,0,-1'"),
        ("t,0,5", ["g", "h"], "found 't,0,5'"),
        ("t,0,5\nt,0,6", ["g"], "line 2: found t-0 of group 'g' again"),
        (f"t,0,{1 << 63}", ["g"], "too large"),
        (f"t,{'9' * 5000},5", ["g"], "too large"),
        ("h,t,0,5", ["g"], "found nothing for group 'g'"),
        ("", ["g"], "found nothing for group 'g'"),
        (f'"{"x" * 200_000}', ["g"], "field larger than"),
    ],
)
def test_other_files_are_refused(text: str, groups: list[str], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as raised:
        parse_plan_csv(text, groups)
    assert raised.value.code == "INVALID_PARTITION_FILE"
