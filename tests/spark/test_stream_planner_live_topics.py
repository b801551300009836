"""Plans of topics that are written to, deleted or swept while they are planned. Without Spark."""

from collections.abc import Callable

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.spark.input_partitions import SparklogInputPartition
from tests.spark.planning import append, batch_reader, planner, read, topics
from tests.support.removing import expire_below, merge, remove_dead

Meanwhile = Callable[[Callable[[], None]], None]


@pytest.fixture
def log(root: str) -> SparkLog:
    """Two partitions with 100 records each, offset n at n ms."""
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=2)
    for partition in range(2):
        append_at(opened, partition, range(100))
    return opened


def append_at(log: SparkLog, partition: int, times_ms: range, topic: str = "t") -> None:
    rows = pa.table({"value": [b"x"] * len(times_ms), "timestamp": pa.array(times_ms, pa.int64())})
    log.append(topic, rows, partition=partition)
    log.close()  # the next append begins another segment


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """meanwhile(work): done by somebody else before each time or group that a plan looks up."""

    def arrange(work: Callable[[], None]) -> None:
        by_time, of_group = SparkLog.offset_for_time, SparkLog.committed_offsets

        def offset_for_time(self: SparkLog, *args: object, **options: object) -> object:
            work()
            return by_time(self, *args, **options)  # type: ignore[arg-type]

        def committed_offsets(self: SparkLog, *args: object, **options: object) -> object:
            work()
            return of_group(self, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(SparkLog, "offset_for_time", offset_for_time)
        monkeypatch.setattr(SparkLog, "committed_offsets", committed_offsets)

    return arrange


EVERY = '{"t": {"0": %d, "1": %d}}'


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({"startingTimestamp": "40"}, 40, 100),
        ({"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}, 100, 100),
        ({"startingOffsetsByTimestamp": EVERY % (40, 40)}, 40, 100),
        ({"endingTimestamp": "60"}, 0, 60),
        ({"endingTimestamp": "1000"}, 0, 100),
        ({"startingTimestamp": "40", "endingTimestamp": "1000"}, 40, 100),
        ({"startingOffsets": "group"}, 30, 100),
        ({"endingOffsets": "group"}, 0, 30),
    ],
)
def test_a_batch_read_is_of_one_moment(
    log: SparkLog, root: str, meanwhile: Meanwhile, options: dict[str, str], start: int, end: int
) -> None:
    log.commit_offsets("g", {("t", 0): 30, ("t", 1): 30})
    other = sparklog.open(root)

    def go_on() -> None:
        for partition in range(2):
            append_at(other, partition, range(2_000, 2_010))
            other.commit_offsets("g", {("t", partition): other.log_end_offset("t", partition)})

    meanwhile(go_on)
    expected = [("t", partition, start, end) for partition in range(2) if start < end]
    assert read(batch_reader(root, **{"group.id": "g"}, **options).partitions()) == expected


def test_a_stream_begins_at_one_moment(log: SparkLog, root: str, meanwhile: Meanwhile) -> None:
    other = sparklog.open(root)
    meanwhile(lambda: append_at(other, 1, range(10)))
    options = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}
    assert topics(planner(root, **options).initial_offset()) == {"t": {"0": 100, "1": 100}}


def test_a_topic_that_a_pattern_found_may_be_deleted_meanwhile(
    log: SparkLog, root: str, meanwhile: Meanwhile
) -> None:
    """Its files are there for a week; if they are not, that is for failOnDataLoss."""
    log.create_topic("u", partitions=1)
    append(log, 0, 10, "u")
    other = sparklog.open(root)

    def delete() -> None:
        if "u" in other.topics():
            other.delete_topic("u")

    meanwhile(delete)
    parts = batch_reader(root, subscribePattern=".", startingTimestamp="1").partitions()
    assert read(parts) == [("t", 0, 1, 100), ("t", 1, 1, 100), ("u", 0, 0, 10)]


def test_what_a_newer_look_finds_is_no_later_than_the_plans_end(
    log: SparkLog, root: str, meanwhile: Meanwhile
) -> None:
    """All that the plan could have read has expired, and is gone, before its files are looked at."""
    other = sparklog.open(root)

    def sweep() -> None:
        if other.log_start_offset("t", 0):
            return
        for partition in range(2):
            append_at(other, partition, range(3_000, 3_100))
            expire_below(other, 150, partition=partition)
        merge(other)
        remove_dead(other)

    meanwhile(sweep)
    assert read(batch_reader(root, startingTimestamp="40").partitions()) == []


def test_a_plan_goes_on_with_the_topics_it_began_with(log: SparkLog, root: str, meanwhile: Meanwhile) -> None:
    """A file that is missed makes the log look for a newer image, with another topic of the name."""
    log.create_topic("a", partitions=1)
    for start in range(0, 60, 20):
        append_at(log, 0, range(start, start + 20), "a")
    log.commit_offsets("g", {("a", 0): 5})
    topic_id = log.refresh().topic("t").topic_id
    other = sparklog.open(root)

    def replace() -> None:
        merge(other)
        remove_dead(other)
        other.delete_topic("t")
        other.create_topic("t", partitions=1)

    meanwhile(replace)
    parts = batch_reader(
        root, subscribe="a,t", startingOffsets="group", minPartitions="1", **{"group.id": "g"}
    ).partitions()
    assert read(parts) == [("a", 0, 5, 60), ("t", 0, 0, 100), ("t", 1, 0, 100)]
    plans = [plan for part in parts if isinstance(part, SparklogInputPartition) for _, plan in part.parts]
    assert {plan.topic_id for plan in plans if plan.topic == "t"} == {topic_id}
