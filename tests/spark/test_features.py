"""What older Sparks lack: named, and replaced."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

import sparklog
from sparklog.cli.doctor import check_environment
from sparklog.client import SparkLog
from sparklog.client.root_checks import Status
from sparklog.errors import DataLossError, OffsetOutOfRangeError
from sparklog.spark import data_source_api
from sparklog.spark.batch_reader import SparklogBatchReader
from sparklog.spark.datasource import SparklogDataSource
from sparklog.spark.features import ADMISSION_CONTROL, FILTER_PUSHDOWN, Feature, missing_features
from sparklog.spark.input_partitions import SparklogInputPartition
from sparklog.spark.options import parse_source_options
from sparklog.spark.rows import arrow_schema
from sparklog.spark.stream_reader import SparklogStreamReader
from tests.spark.conftest import needs
from tests.support.removing import expire_below
from tests.support.told import Told

INSTALLED = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.mark.parametrize(("version", "count"), [((4, 0), 4), ((4, 1), 1), ((4, 2), 0), ((5, 0), 0)])
def test_features_by_version(version: tuple[int, int], count: int) -> None:
    assert len(missing_features(version)) == count


def test_the_table_agrees_with_the_installed_spark() -> None:
    missing = missing_features(INSTALLED)
    assert (FILTER_PUSHDOWN in missing) != data_source_api.CAN_PUSH_FILTERS
    assert (ADMISSION_CONTROL in missing) != data_source_api.CAN_LIMIT_READS
    assert (INSTALLED < (4, 1)) == data_source_api.STREAM_WRITER_MAY_GET_ROWS


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
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    found = next(one for one in check_environment({}) if one.check == "pyspark")
    assert found.status is status
    assert words in found.detail
    assert bool(found.fix) == (status is not Status.OK)


# --- what a query's options ask for in vain ----------------------------------------------------------------


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark 4.0 is, whatever is installed."""
    monkeypatch.setattr(data_source_api, "CAN_LIMIT_READS", False)
    monkeypatch.setattr(data_source_api, "CAN_PUSH_FILTERS", False)


def made(streaming: bool, **options: str) -> object:
    source = SparklogDataSource({"path": "/nowhere", "subscribe": "t", **options})
    schema = StructType(
        [StructField(name, StringType()) for name in arrow_schema(include_headers=False).names]
    )
    return source.streamReader(schema) if streaming else source.reader(schema)


@pytest.mark.parametrize(
    ("streaming", "options", "feature"),
    [
        (True, {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "1"}, ADMISSION_CONTROL),
        (True, {"maxBytesPerTrigger": "5"}, ADMISSION_CONTROL),
        (False, {"filterPushdown": "true"}, FILTER_PUSHDOWN),
    ],
)
@pytest.mark.usefixtures("old_spark")
def test_what_is_asked_for_in_vain_is_said_once(
    streaming: bool, options: dict[str, str], feature: Feature, told: Told
) -> None:
    for _ in range(2):
        assert type(made(streaming, **options)) in (SparklogStreamReader, SparklogBatchReader)
    (message,) = told("sparklog.spark")
    assert message == f"{', '.join(options)}: this Spark has no {feature.name}: {feature.without}"


@pytest.mark.usefixtures("old_spark")
def test_nothing_is_said_to_those_who_do_not_ask(told: Told) -> None:
    made(True, startingOffsets="earliest")
    made(False, filterPushdown="false")
    assert told("sparklog.spark") == []


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


def test_only_the_first_micro_batch_does_not_wait_for_the_least_number_of_records(
    log: SparkLog, root: str
) -> None:
    source = reader(root, minOffsetsPerTrigger="40", maxTriggerDelay="1h")
    first = source.latestOffset()
    source.partitions(source.initialOffset(), first)
    append(log, 39)
    assert source.latestOffset() == first
    append(log, 1)
    assert positions(source.latestOffset()) == {"0": 140}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("told_by", ["commit", "the next question"])
def test_the_groups_progress_is_that_of_every_run(
    log: SparkLog, root: str, starting: str, told_by: str
) -> None:
    """A query that comes back asks for the end first, and that may be where a new one would start."""
    options = {"startingOffsets": starting, "kafka.group.id": "g"}
    first = reader(root, **options)
    end = first.latestOffset()
    first.partitions(first.initialOffset(), end)
    append(log, 5)
    again = reader(root, **options)
    end, start = again.latestOffset(), end
    assert ranges(again.partitions(start, end)) == [(100, 105)]
    if told_by == "commit":
        again.commit(end)
    else:
        assert again.latestOffset() == end
    log.refresh()
    assert log.committed_offsets("g") == {("t", 0): 105}


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
    assert positions(again.latestOffset()) == {"0": 200}  # Trigger.AvailableNow asks once, and means all
    append(log, 100)
    assert positions(again.latestOffset()) == {"0": 240}


def test_a_query_that_is_told_where_it_is_reads_all_there_is_from_there(log: SparkLog, root: str) -> None:
    """So Spark tells the query that goes on: with an empty micro-batch at its last offset."""
    log.create_topic("u", partitions=1)
    first = reader(root, subscribe="t,u")
    end = first.latestOffset()
    append(log, 100)
    again = reader(root, maxOffsetsPerTrigger="40", failOnDataLoss="false")
    assert ranges(again.partitions(end, end)) == []
    following = again.latestOffset()
    assert ranges(again.partitions(end, following)) == [(100, 200)]
    assert following["@kept/u"] == {"0": 0}
    strict = reader(root)
    strict.partitions(end, end)
    with pytest.raises(DataLossError, match="u-0 at offset 0: no longer among"):
        strict.latestOffset()


def test_a_topic_that_is_gone_does_not_stop_a_query_that_goes_on(log: SparkLog, root: str) -> None:
    log.create_topic("u", partitions=1)
    both = {"subscribe": "t,u", "failOnDataLoss": "false"}
    reached = reader(root, **both).latestOffset()
    log.delete_topic("u")
    append(log, 5)
    again = reader(root, **both)
    assert ranges(again.partitions(reached, again.latestOffset())) == [(100, 105)]


@pytest.mark.parametrize("start", ['{"t":{"0":0}}', "group"])
def test_a_start_that_has_expired_does_not_stop_a_query_that_goes_on(
    log: SparkLog, root: str, start: str
) -> None:
    options = {"startingOffsets": start, "group.id": "g"}
    log.commit_offsets("g", {("t", 0): 0})
    reached = reader(root, **options).latestOffset()
    expire_below(log, 50)
    append(log, 5)
    again = reader(root, **options)
    assert ranges(again.partitions(reached, again.latestOffset())) == [(100, 105)]
    log.commit_offsets("g", {("t", 0): 0})
    new = reader(root, **options)
    end = new.latestOffset()
    with pytest.raises((OffsetOutOfRangeError, DataLossError), match="t-0"):
        new.partitions(new.initialOffset(), end)


@pytest.fixture
def both(log: SparkLog, root: str) -> dict[str, Any]:
    """What a query has reached that has read all of t, and u up to 30 of 37."""
    log.create_topic("u", partitions=1)
    log.append("u", pa.table({"value": [b"x"] * 30}), partition=0)
    source = reader(root, subscribe="t,u")
    reached = source.latestOffset()
    source.partitions(source.initialOffset(), reached)
    log.append("u", pa.table({"value": [b"x"] * 7}), partition=0)
    return reached


def read_of_u(parts: Sequence[InputPartition]) -> list[tuple[int, int]]:
    tasks = [part for part in parts if isinstance(part, SparklogInputPartition)]
    return [(r.start_offset, r.end_offset) for task in tasks for r, _ in task.parts if r.topic == "u"]


def test_a_dropped_topic_is_reported_until_what_was_planned_without_it_is_removed(
    log: SparkLog, root: str, both: dict[str, Any]
) -> None:
    append(log, 5)
    source = reader(root)
    planned = source.latestOffset()
    for again in (source, reader(root), reader(root, subscribe="t,u")):  # planned once, it comes again
        with pytest.raises(DataLossError, match=r"u-0 at offset 30: not among .*from the beginning"):
            again.partitions(both, planned)
    source = reader(root, subscribe="t,u")  # and without the plan
    assert read_of_u(source.partitions(both, source.latestOffset())) == [(30, 37)]


def test_a_dropped_topic_that_is_no_loss_is_news_once(log: SparkLog, root: str, both: dict[str, Any]) -> None:
    append(log, 5)
    source = reader(root, failOnDataLoss="false")
    end = source.latestOffset()
    assert ranges(source.partitions(both, end)) == [(100, 105)]
    assert source.latestOffset() == end
    append(log, 5)
    again = reader(root)
    assert ranges(again.partitions(end, again.latestOffset())) == [(105, 110)]


@needs(ADMISSION_CONTROL)
def test_a_micro_batch_that_an_older_spark_planned_loses_nothing(log: SparkLog, root: str) -> None:
    """Its end names a start, as that of a new query does; the query is not new."""
    from sparklog.spark.limited_reader import LimitedStreamReader

    older = reader(root, startingOffsets="latest")
    reached = older.latestOffset()
    older.partitions(older.initialOffset(), reached)
    append(log, 5)
    older = reader(root, startingOffsets="latest")
    planned = older.latestOffset()
    assert ranges(older.partitions(reached, planned)) == [(100, 105)]  # and then it dies
    options = {"path": root, "subscribe": "t"}
    newer = LimitedStreamReader(parse_source_options(options, streaming=True))
    assert ranges(newer.partitions(reached, planned)) == [(100, 105)]


# --- imports -----------------------------------------------------------------------------------------

LIKE_SPARK_4_0 = """
import pkgutil
import sys

import pyspark.sql.datasource as api

for name in sys.argv[2].split(","):
    vars(api).pop(name, None)
    if name in vars(api.DataSourceStreamReader):
        delattr(api.DataSourceStreamReader, name)
sys.modules["pyspark.sql.streaming.datasource"] = None  # its import fails

from pyspark.sql.types import StringType, StructField, StructType

import sparklog.spark
from sparklog.spark.datasource import SparklogDataSource

fields = [StructField(name, StringType()) for name in sys.argv[3].split(",")]
read, written = StructType(fields), StructType(fields[:2])
options = {"path": sys.argv[1], "subscribe": "t"}
assert SparklogDataSource({**options, "filterPushdown": "true"}).reader(read).partitions()
assert SparklogDataSource({**options, "maxOffsetsPerTrigger": "5"}).streamReader(read).latestOffset()
assert SparklogDataSource({"path": sys.argv[1], "topic": "t"}).writer(written, False)
for module in pkgutil.iter_modules(sparklog.spark.__path__):
    if module.name not in ("pushdown", "limited_reader"):
        __import__(f"sparklog.spark.{module.name}")
"""
SINCE_4_0 = {"Filter", "EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "In"}
SINCE_4_0 |= {"LessThanOrEqual", "IsNull", "IsNotNull", "Not", "DataSourceStreamArrowWriter"}
SINCE_4_0 |= {"getDefaultReadLimit", "reportLatestOffset"}


@pytest.mark.slow
@pytest.mark.usefixtures("log")
def test_nothing_is_imported_that_spark_4_0_does_not_have(root: str) -> None:
    """`make test` has one Spark, the newest: an import at the wrong place breaks all reads of the others."""
    words = [sys.executable, "-c", LIKE_SPARK_4_0, root, ",".join(SINCE_4_0)]
    words.append(",".join(arrow_schema(include_headers=False).names))
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
