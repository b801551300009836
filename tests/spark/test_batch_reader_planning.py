"""Where a batch read starts and ends, without Spark: ranges that cannot be."""

import json

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import DataLossError, InvalidRequestError, OffsetOutOfRangeError
from sparklog.metadata.model.extents import AdvanceLogStart
from sparklog.spark.batch_reader import SparklogBatchReader
from sparklog.spark.input_partitions import SparklogInputPartition
from sparklog.spark.options import parse_source_options
from tests.spark.planning import append, batch_reader, planner, read, started, topics
from tests.support.removing import expire_below


@pytest.fixture
def log(root: str) -> SparkLog:
    """Partition 0 has offsets 0 to 99, offset n at n ms; partition 1 none."""
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=2)
    timestamps = pa.array(range(100), pa.timestamp("ms"))
    opened.append("t", pa.table({"value": [b"x"] * 100, "timestamp": timestamps}), partition=0)
    return opened


def planned(root: str, **options: str) -> list[tuple[int, int, int]]:
    """(partition, start, end) of what the tasks would read."""
    parsed = parse_source_options({"path": root, "subscribe": "t", **options}, streaming=False)
    tasks = SparklogBatchReader(parsed).partitions()
    parts = [part for task in tasks if isinstance(task, SparklogInputPartition) for part, _ in task.parts]
    return [(part.partition, part.start_offset, part.end_offset) for part in parts]


def offsets(first: int, second: int) -> str:
    return json.dumps({"t": {"0": first, "1": second}})


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"startingOffsets": offsets(50, 0), "endingOffsets": offsets(20, 0)}, "t-0 from 50 to 20"),
        ({"startingTimestamp": "50", "endingTimestamp": "20"}, "t-0 from 50 to 20"),
        ({"startingTimestamp": "50", "endingOffsets": offsets(20, -1)}, "t-0 from 50 to 20"),
        ({"startingOffsets": offsets(50, 0), "endingTimestamp": "20"}, "t-0 from 50 to 20"),
        ({"startingOffsets": offsets(50, 0), "endingOffsets": "group", "group.id": "g"}, "t-0 from 50 to 7"),
        (
            {"startingOffsetsByTimestamp": offsets(50, 5), "endingOffsetsByTimestamp": offsets(49, 5)},
            "t-0 from 50 to 49",
        ),
    ],
)
def test_a_start_after_the_end_is_refused(
    log: SparkLog, root: str, options: dict[str, str], found: str, loss: str
) -> None:
    log.commit_offsets("g", {("t", 0): 7})
    given = {"startingOffsetsByTimestampStrategy": "latest", "failOnDataLoss": loss, **options}
    with pytest.raises(InvalidRequestError, match=f"found a start after the end, .*: {found} ") as info:
        planned(root, **given)
    assert info.value.code == "INVALID_OPTION"


def test_a_start_beyond_the_log_is_refused(log: SparkLog, root: str) -> None:
    beyond = {"startingOffsets": offsets(200, 0)}
    with pytest.raises(OffsetOutOfRangeError, match="t-0 has no offset 200"):
        planned(root, **beyond)
    with pytest.raises(InvalidRequestError, match="t-0 from 200 to 100"):
        planned(root, failOnDataLoss="false", **beyond)


def test_an_empty_range_is_no_error(log: SparkLog, root: str) -> None:
    same = {"startingOffsets": offsets(50, 0), "endingOffsets": offsets(50, 0)}
    assert planned(root, **same) == []
    assert planned(
        root, startingTimestamp="20", endingTimestamp="21", startingOffsetsByTimestampStrategy="latest"
    ) == [(0, 20, 21)]


def test_an_end_that_the_log_has_left_behind_is_lost_data(log: SparkLog, root: str) -> None:
    topic_id = log.image.topic("t").topic_id
    log.metadata.publish(lambda image: [AdvanceLogStart(topic_id=topic_id, partition=0, log_start_offset=50)])
    with pytest.raises(OffsetOutOfRangeError, match="t-0 has no offset 20"):
        planned(root, endingOffsets=offsets(20, 0))
    assert planned(root, endingOffsets=offsets(20, 0), failOnDataLoss="false") == []


@pytest.mark.parametrize(
    ("committed", "message", "start", "end"),
    [
        (20, "t-0: group g has committed offset 20, and the log starts at 50", 50, 50),
        (
            150,
            "t-0: group g has committed offset 150, and the log ends at 100; was the topic deleted",
            50,
            100,
        ),
    ],
)
def test_a_groups_position_outside_the_log_is_data_loss(
    log: SparkLog, root: str, committed: int, message: str, start: int, end: int
) -> None:
    """Past the end it is of another log of this name: nothing of this one has been read."""
    expire_below(log, 50)
    log.commit_offsets("g", {("t", 0): committed})
    for side in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLossError, match=message):
            planned(root, **{side: "group", "group.id": "g"})
    with pytest.raises(DataLossError, match=message):
        started(root, startingOffsets="group", **{"group.id": "g"})
    lenient = {"group.id": "g", "failOnDataLoss": "false"}
    assert planned(root, startingOffsets="group", **lenient) == [(0, start, 100)]
    assert planned(root, endingOffsets="group", **lenient) == ([(0, 50, end)] if end > 50 else [])
    initial = planner(root, startingOffsets="group", **lenient).initial_offset()
    assert topics(initial) == {"t": {"0": start, "1": 0}}


def test_partitions_that_a_group_has_not_committed_are_no_loss(log: SparkLog, root: str) -> None:
    expire_below(log, 50)
    assert planned(root, startingOffsets="group", **{"group.id": "g"}) == [(0, 50, 100)]
    log.commit_offsets("g", {("t", 0): 100, ("t", 1): 0})
    assert planned(root, startingOffsets="group", **{"group.id": "g"}) == []


@pytest.mark.parametrize("text", ["{}", '{"t": {}}'])
@pytest.mark.parametrize(
    "option",
    ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"],
)
def test_partitions_must_be_named_also_where_none_is(
    log: SparkLog, root: str, option: str, text: str
) -> None:
    with pytest.raises(InvalidRequestError, match=r"must name exactly the partitions .*; it lacks t-0, t-1"):
        planned(root, **{option: text})
    if option.startswith("starting"):
        with pytest.raises(InvalidRequestError, match="it lacks t-0, t-1"):
            started(root, **{option: text})


@pytest.fixture
def two_topics(log: SparkLog) -> SparkLog:
    """The topic u, besides t: partitions 0 and 1 with 10 records each."""
    log.create_topic("u", partitions=2)
    for partition in range(2):
        append(log, partition, 10, "u")
    return log


def test_a_whole_topic_has_one_offset(two_topics: SparkLog, root: str) -> None:
    mixed = {"subscribe": "t,u", "startingOffsets": '{"u": "eArLiEst", "t": {"0": 90, "1": 0}}'}
    assert read(batch_reader(root, **mixed).partitions()) == [
        ("t", 0, 90, 100),
        ("u", 0, 0, 10),
        ("u", 1, 0, 10),
    ]
    ends = {"subscribe": "t,u", "endingOffsets": '{"u": {"0": 3, "1": -1}, "t": "latest"}'}
    assert read(batch_reader(root, **ends).partitions()) == [
        ("t", 0, 0, 100),
        ("u", 0, 0, 3),
        ("u", 1, 0, 10),
    ]
    one = {"assign": '{"t": [0], "u": [1]}', "startingOffsets": '{"t": "earliest", "u": "earliest"}'}
    assert read(batch_reader(root, **one).partitions()) == [("t", 0, 0, 100), ("u", 1, 0, 10)]


def test_a_stream_starts_a_whole_topic_at_its_end(two_topics: SparkLog, root: str) -> None:
    """And a topic that the pattern finds later, at its beginning."""
    options = {"subscribePattern": "[tuv]", "startingOffsets": '{"t": "latest", "u": "earliest"}'}
    plan = planner(root, **options)
    start = plan.initial_offset()
    assert topics(start) == {"t": {"0": 100, "1": 0}, "u": {"0": 0, "1": 0}}
    two_topics.create_topic("v", partitions=1)
    append(two_topics, 0, 5, "v")
    end = plan.latest_offset(start, limited=True)
    assert read(plan.input_partitions(start, end)) == [("u", 0, 0, 10), ("u", 1, 0, 10), ("v", 0, 0, 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"t": "earliest"}'}, "it lacks u-0, u-1"),
        ({"startingOffsets": '{"t": "earliest", "u": {"0": 1}}'}, "it lacks u-1"),
        (
            {"startingOffsets": '{"t": "earliest", "u": "earliest", "w": "earliest"}'},
            "name topics that are not read: w",
        ),
        ({"startingOffsets": '{"t": "earliest", "u": "latest"}'}, "can't be latest in a batch query"),
        ({"endingOffsets": '{"t": "earliest", "u": "latest"}'}, "can't be earliest"),
        (
            {"startingOffsets": '{"t": "group", "u": {"0": 1}}'},
            "expected earliest or latest for a whole topic",
        ),
        ({"startingOffsets": '{"t": "earliest", "u": [1]}'}, "expected JSON of the form"),
        ({"startingOffsets": '{"t": "earliest", "u": -2}'}, "expected JSON of the form"),
        ({"startingOffsetsByTimestamp": '{"t": "earliest", "u": {"0": 1}}'}, "expected JSON of the form"),
    ],
)
def test_offsets_of_whole_topics_are_checked(
    two_topics: SparkLog, root: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        batch_reader(root, subscribe="t,u", **options).partitions()
    assert caught.value.code == "INVALID_OPTION"
