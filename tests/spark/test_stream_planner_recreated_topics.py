"""A topic that was deleted and created again is another topic, also where its offsets fit. Without Spark."""

from typing import Any

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import DataLossError
from tests.spark.planning import append, planner, read, topics


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=1)
    append(opened, 0, 100)
    return opened


def make_anew(log: SparkLog, count: int) -> None:
    log.delete_topic("t")
    log.create_topic("t", partitions=1)
    append(log, 0, count)


def test_a_topic_made_anew_is_data_loss_even_where_its_offsets_fit(log: SparkLog, root: str) -> None:
    plan = planner(root)
    end = plan.latest_offset(plan.initial_offset(), limited=True)
    make_anew(log, 500)
    with pytest.raises(DataLossError, match="t was deleted and created again"):
        plan.latest_offset(end, limited=True)


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_it_is_read_from_its_beginning_by_a_query_that_has_read_nothing_yet(
    log: SparkLog, root: str, starting: str
) -> None:
    """Its first position is of the old topic; taken for one of the new, the first records were lost."""
    plan = planner(root, startingOffsets=starting, failOnDataLoss="false")
    start = plan.initial_offset()
    make_anew(log, 150)
    end = plan.latest_offset(start, limited=True)
    assert read(plan.input_partitions(start, end)) == [("t", 0, 0, 150)]
    append(log, 0, 5)
    after = plan.latest_offset(end, limited=True)
    assert read(plan.input_partitions(end, after)) == [("t", 0, 150, 155)]


def test_it_is_planned_from_its_beginning_again_after_a_crash(log: SparkLog, root: str) -> None:
    options = {"startingOffsets": "latest", "failOnDataLoss": "false"}
    plan = planner(root, **options)
    start = plan.initial_offset()
    make_anew(log, 150)
    end = plan.latest_offset(start, limited=True)
    append(log, 0, 5)
    again = planner(root, **options)
    assert read(again.input_partitions(again.initial_offset(), end)) == [("t", 0, 0, 150)]


def test_the_start_of_the_first_micro_batch_is_that_of_the_topic_it_was_planned_for(
    log: SparkLog, root: str
) -> None:
    """Made anew after the plan, before it ran: not one record of the new topic is passed over."""
    options = {"startingOffsets": "latest", "failOnDataLoss": "false"}
    plan = planner(root, **options)
    start = plan.initial_offset()
    append(log, 0, 20)
    end = plan.latest_offset(start, limited=True)
    make_anew(log, 150)
    again = planner(root, **options)
    assert read(again.input_partitions(again.initial_offset(), end)) == []
    with pytest.raises(DataLossError, match="t was deleted and created again"):
        planner(root, startingOffsets="latest").input_partitions(start, end)
    after = again.latest_offset(end, limited=True)
    assert read(again.input_partitions(end, after)) == [("t", 0, 0, 150)]


@pytest.mark.parametrize("has_read", [False, True])
def test_it_is_read_though_it_ends_where_the_old_one_did(log: SparkLog, root: str, has_read: bool) -> None:
    plan = planner(root, startingOffsets="earliest" if has_read else "latest", failOnDataLoss="false")
    start: dict[str, Any] = plan.initial_offset()
    if has_read:
        start = plan.latest_offset(start, limited=True)
    make_anew(log, 100)
    end = plan.latest_offset(start, limited=True)
    assert topics(end) == topics(start)
    assert end != start
    assert read(plan.input_partitions(start, end)) == [("t", 0, 0, 100)]
    assert plan.latest_offset(end, limited=True) == end


def test_available_now_ends_though_the_topic_is_made_anew_with_each_micro_batch(
    log: SparkLog, root: str
) -> None:
    """What is in the newest one is read by the next run, from its beginning."""
    plan = planner(root, failOnDataLoss="false", maxOffsetsPerTrigger="40")
    offset = plan.initial_offset()
    plan.freeze_end()
    seen = []
    for _ in range(10):
        end = plan.latest_offset(offset, limited=True)
        if end == offset:
            break
        seen += read(plan.input_partitions(offset, end))
        offset = end
        make_anew(log, 70)
    else:
        pytest.fail("the query does not come to an end")
    assert seen == [("t", 0, 0, 40)]
    later = planner(root, failOnDataLoss="false")
    later.freeze_end()
    end = later.latest_offset(offset, limited=True)
    assert read(later.input_partitions(offset, end)) == [("t", 0, 0, 70)]
