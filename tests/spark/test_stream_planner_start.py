"""Where a streaming query starts, and starts again when its first micro-batch has failed. Without Spark.

Scenarios of Spark's KafkaMicroBatchSourceSuite: starting offsets and timestamps by partition, partitions and
topics that are added before the first micro-batch is done, offsets outside the log, with and without
failOnDataLoss.
"""

import json
import logging
from collections.abc import Callable

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import DataLossError, InvalidRequestError, OffsetOutOfRangeError, SparklogError
from sparklog.spark.options import parse_source_options
from sparklog.spark.stream_reader import SparklogStreamReader
from tests.spark.planning import append, planner, read, started, topics
from tests.support.removing import expire_below
from tests.support.told import Told

LAGGING = {"startingOffsets": '{"t":{"0":20,"1":-2}}'}
Change = Callable[[SparkLog], object]


@pytest.fixture
def log(root: str) -> SparkLog:
    """Topic t: partition 0 with 100 records, offset n at n ms; 1 is empty."""
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=2)
    rows = {"value": [b"x"] * 100, "timestamp": pa.array(range(100), pa.int64())}
    opened.append("t", pa.table(rows), partition=0)
    return opened


def add_a_partition(log: SparkLog) -> None:
    log.add_partitions("t", 3)
    append(log, 2, 5)


def add_a_topic(log: SparkLog) -> None:
    log.create_topic("table", partitions=1)
    append(log, 0, 5, "table")


@pytest.mark.parametrize(
    ("options", "change", "error", "start"),
    [
        (LAGGING, add_a_partition, "it lacks t-2", 20),
        ({"subscribePattern": "t", **LAGGING}, add_a_topic, "it lacks table-0", 20),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":30,"1":0}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            add_a_partition,
            "it lacks t-2",
            30,
        ),
        (
            {"assign": '{"t":[0]}', "startingTimestamp": "90"},
            lambda log: expire_below(log, 100),
            "no record with a timestamp of 90",
            90,
        ),
        (LAGGING, lambda log: expire_below(log, 50), "t-0 has no offset 20", 20),
        (LAGGING, lambda log: log.delete_topic("t"), "the root has no t", 20),
    ],
)
def test_a_first_micro_batch_that_was_planned_keeps_its_start(
    log: SparkLog, root: str, options: dict[str, str], change: Change, error: str, start: int
) -> None:
    """It has failed, and the query is started again: how its start would resolve now does not matter."""
    end = started(root, **options)
    assert end["@initial/t"]["0"] == start
    change(log)
    again = planner(root, failOnDataLoss="false", **options)
    first = again.initial_offset()
    low, high = (log.log_start_offset("t", 0), 100) if "t" in log.refresh().topics else (0, 0)
    expected = [("t", 0, max(start, low), high)] if max(start, low) < high else []
    assert read(again.input_partitions(first, end)) == expected

    # A new query hears of it.
    with pytest.raises(SparklogError, match=error):
        started(root, **options)


def test_partitions_added_before_the_first_micro_batch_is_done_are_read_after_it(
    log: SparkLog, root: str
) -> None:
    end = started(root, **LAGGING)
    add_a_partition(log)
    again = planner(root, **LAGGING)
    assert read(again.input_partitions(again.initial_offset(), end)) == [("t", 0, 20, 100)]
    after = again.latest_offset(end, limited=True)
    assert read(again.input_partitions(end, after)) == [("t", 2, 0, 5)]


def test_another_start_does_not_move_a_first_micro_batch_that_was_planned(log: SparkLog, root: str) -> None:
    """The offsets of partition 1 are not named any more, which is an error for a new query only."""
    end = started(root, **LAGGING)
    again = planner(root, startingOffsets='{"t":{"0":70}}')
    assert read(again.input_partitions(again.initial_offset(), end)) == [("t", 0, 20, 100)]


def test_what_expired_of_a_planned_first_micro_batch_is_data_loss(log: SparkLog, root: str) -> None:
    end = started(root, **LAGGING)
    expire_below(log, 50)
    strict = planner(root, **LAGGING)
    with pytest.raises(DataLossError, match="t-0: offsets 20 to 50 are gone"):
        strict.input_partitions(strict.initial_offset(), end)
    lenient = planner(root, failOnDataLoss="false", **LAGGING)
    assert read(lenient.input_partitions(lenient.initial_offset(), end)) == [("t", 0, 50, 100)]


def test_a_start_that_was_an_error_may_resolve_later(log: SparkLog, root: str) -> None:
    """A query that waits for the topic's last partition, say: nothing of the failure is in an offset."""
    options = {"startingOffsets": '{"t":{"0":20,"1":0,"2":1}}'}
    plan = planner(root, **options)
    start = plan.initial_offset()
    with pytest.raises(InvalidRequestError, match="also names t-2"):
        plan.latest_offset(start, limited=True)
    add_a_partition(log)
    end = plan.latest_offset(start, limited=True)
    assert topics(end) == {"t": {"0": 100, "1": 0, "2": 5}}
    assert "@unresolved" not in end
    assert end["@initial/t"] == {"0": 20, "1": 0, "2": 1}
    assert read(plan.input_partitions(start, end)) == [("t", 0, 20, 100), ("t", 2, 1, 5)]


def test_a_start_that_resolves_later_to_the_end_is_an_offset(log: SparkLog, root: str) -> None:
    """There is nothing to read yet, and Spark keeps the answer: it must say where the query stands."""
    options = {"startingOffsets": '{"t":{"0":100,"1":0,"2":0}}'}
    plan = planner(root, **options)
    start = plan.initial_offset()
    log.add_partitions("t", 3)
    end = plan.latest_offset(start, limited=True)
    assert topics(end) == {"t": {"0": 100, "1": 0, "2": 0}}
    assert "@unresolved" not in end
    append(log, 0, 5)
    again = planner(root, **options)
    after = again.latest_offset(end, limited=True)
    assert read(again.input_partitions(end, after)) == [("t", 0, 100, 105)]


# --- Sparks without admission control: they ask for the end first -------------------------------------


def reader(root: str, **options: str) -> SparklogStreamReader:
    given = {"path": root, "subscribe": "t", **options}
    return SparklogStreamReader(parse_source_options(given, streaming=True))


def test_a_first_micro_batch_keeps_its_start_on_an_older_spark(log: SparkLog, root: str) -> None:
    end = reader(root, **LAGGING).latestOffset()
    add_a_partition(log)
    again = reader(root, **LAGGING)
    assert read(again.partitions(again.initialOffset(), end)) == [("t", 0, 20, 100)]


def test_a_start_that_is_an_error_on_an_older_spark_can_be_corrected(log: SparkLog, root: str) -> None:
    """By then the first end is in the checkpoint, without a start."""
    wrong = reader(root, startingOffsets='{"t":{"0":20}}')
    end = wrong.latestOffset()
    with pytest.raises(InvalidRequestError, match="it lacks t-1"):
        wrong.partitions(wrong.initialOffset(), end)
    right = reader(root, **LAGGING)
    assert read(right.partitions(right.initialOffset(), end)) == [("t", 0, 20, 100)]


# --- offsets outside the log --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "start", "said"),
    [(20, 50, "startingOffsets says 20, and the log starts at 50"), (50, 50, None), (100, 100, None),
     (500, 100, "startingOffsets says 500, and the log ends at 100")],
)  # fmt: skip
def test_starting_offsets_outside_the_log_are_data_loss(
    log: SparkLog, root: str, told: Told, offset: int, start: int, said: str | None
) -> None:
    expire_below(log, 50)
    options = {"startingOffsets": json.dumps({"t": {"0": offset, "1": -2}})}
    if said is not None:
        with pytest.raises(OffsetOutOfRangeError, match=f"t-0 has no offset {offset}"):
            started(root, **options)
    plan = planner(root, failOnDataLoss="false", **options)
    end = plan.latest_offset(plan.initial_offset(), limited=True)
    assert end["@initial/t"] == {"0": start, "1": 0}
    append(log, 0, 7)
    after = plan.latest_offset(end, limited=True)
    assert read(plan.input_partitions(end, after)) == [("t", 0, 100, 107)]
    warnings = [r for r in told.records("sparklog.spark") if r.levelno == logging.WARNING]
    assert [r.getMessage() for r in warnings] == (
        [] if said is None else [f"data loss ignored (failOnDataLoss=false): t-0: {said}"]
    )
