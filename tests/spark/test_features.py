"""What older Sparks lack: named, and replaced."""

from collections.abc import Sequence

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition

import sparklog
from sparklog.cli import environment_checks
from sparklog.cli.environment_checks import Status, check_environment
from sparklog.client import SparkLog
from sparklog.spark import data_source_api
from sparklog.spark.features import ADMISSION_CONTROL, FEATURES, missing_features
from sparklog.spark.input_partitions import SparklogInputPartition
from sparklog.spark.options import parse_source_options
from sparklog.spark.stream_reader import SparklogStreamReader

INSTALLED = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.mark.parametrize(("version", "count"), [((4, 0), 4), ((4, 1), 1), ((4, 2), 0), ((5, 0), 0)])
def test_features_by_version(version: tuple[int, int], count: int) -> None:
    assert len(missing_features(version)) == count


def test_the_table_agrees_with_the_installed_spark() -> None:
    missing = {feature.name for feature in missing_features(INSTALLED)}
    lacking = {
        feature.name
        for feature, has in zip(
            [one for one in FEATURES if one.name != "Unix sockets between the JVM and Python"],
            (
                data_source_api.CAN_PUSH_FILTERS,
                data_source_api.STREAM_WRITER_GETS_ARROW,
                data_source_api.CAN_LIMIT_READS,
            ),
            strict=True,
        )
        if not has
    }
    assert lacking == missing - {"Unix sockets between the JVM and Python"}
    assert hasattr(datasource, "DataSourceArrowWriter")  # since 4.0


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        ("3.5.9", Status.FAIL, "3.5.9"),
        ("4.0.5", Status.WARN, "no filter pushdown: "),
        ("4.1.4", Status.WARN, f"no {ADMISSION_CONTROL.name}: "),
        ("4.3.0", Status.OK, "4.3.0"),
    ],
)
def test_doctor_names_what_an_older_spark_lacks(
    monkeypatch: pytest.MonkeyPatch, version: str, status: Status, words: str
) -> None:
    monkeypatch.setattr(environment_checks, "_version", lambda package: version)
    found = next(one for one in check_environment({}) if one.check == "pyspark")
    assert found.status is status
    assert words in found.detail
    assert bool(found.fix) == (status is not Status.OK)


# --- a streaming source that is not told where a micro-batch starts (before 4.2) ---------------------------


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=1)
    append(opened, 100)
    return opened


def append(log: SparkLog, count: int) -> None:
    log.append("t", pa.table({"value": [b"x"] * count}), partition=0)


def reader(root: str, **options: str) -> SparklogStreamReader:
    given = {"path": root, "subscribe": "t", "startingOffsets": "earliest", "s3.refresh_interval_ms": "0"}
    if "://" not in root:
        del given["s3.refresh_interval_ms"]
    return SparklogStreamReader(parse_source_options({**given, **options}, streaming=True))


def positions(offset: dict[str, object]) -> object:
    return offset["t"]


def ranges(parts: Sequence[InputPartition]) -> list[tuple[int, int]]:
    tasks = [part for part in parts if isinstance(part, SparklogInputPartition)]
    return [(one.start_offset, one.end_offset) for task in tasks for one, _ in task.parts]


def test_a_new_query_reads_all_there_is_and_then_so_much_at_a_time(log: SparkLog, root: str) -> None:
    source = reader(root, maxOffsetsPerTrigger="40")
    first = source.latestOffset()  # Spark asks for the end first, and then for the start
    assert ranges(source.partitions(source.initialOffset(), first)) == [(0, 100)]
    append(log, 100)
    ends = [source.latestOffset() for _ in range(5)]
    assert [positions(end) for end in ends] == [{"0": n} for n in (140, 180, 200, 200, 200)]
    assert ends[2] == ends[3] == ends[4]  # nothing new: the very same, or Spark runs empty micro-batches
    assert ranges(source.partitions(first, ends[0])) == [(100, 140)]


def test_a_crash_in_the_first_micro_batch_keeps_its_start(log: SparkLog, root: str) -> None:
    """Without the start in the end's offset, records 100 to 104 would never be read."""
    first = reader(root, startingOffsets="latest")
    planned = first.latestOffset()
    assert ranges(first.partitions(first.initialOffset(), planned)) == []
    append(log, 5)
    end = first.latestOffset()
    assert ranges(first.partitions(planned, end)) == [(100, 105)]
    append(log, 5)  # the query is dead, its first micro-batch is not noted as done, and the log has grown
    again = reader(root, startingOffsets="latest")
    assert ranges(again.partitions(again.initialOffset(), planned)) == []
    assert ranges(again.partitions(planned, again.latestOffset())) == [(100, 110)]


def test_a_query_that_goes_on_starts_where_spark_says(log: SparkLog, root: str) -> None:
    """Its first micro-batch was empty, so the offset that it stands at looks like that of a new one."""
    first = reader(root, startingOffsets="latest")
    reached = first.latestOffset()
    first.partitions(first.initialOffset(), reached)
    append(log, 5)  # while nobody reads
    again = reader(root, startingOffsets="latest")
    end = again.latestOffset()
    assert ranges(again.partitions(reached, end)) == [(100, 105)]
    assert again.latestOffset() == end


def test_a_restarted_query_goes_on_from_what_spark_repeats(log: SparkLog, root: str) -> None:
    first = reader(root, maxOffsetsPerTrigger="40")
    end = first.latestOffset()
    again = reader(root, maxOffsetsPerTrigger="40")
    again.partitions(again.initialOffset(), end)  # the micro-batch that had not been finished
    append(log, 100)
    assert positions(again.latestOffset()) == {"0": 140}


def test_a_topic_that_is_gone_does_not_stop_a_query_that_goes_on(log: SparkLog, root: str) -> None:
    log.create_topic("u", partitions=1)
    both = {"subscribe": "t,u", "failOnDataLoss": "false"}
    reached = reader(root, **both).latestOffset()
    log.delete_topic("u")
    append(log, 5)
    again = reader(root, **both)
    assert ranges(again.partitions(reached, again.latestOffset())) == [(100, 105)]
