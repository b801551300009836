"""Shorthands of the Spark tests, and the types of what they hand out."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sparklog.spark import notices
from sparklog.spark.features import ADMISSION_CONTROL, Feature, missing_features

Options = Mapping[str, str]
CopyStream = Callable[[Options, Options], StreamingQuery]
Until = Callable[[Callable[[], bool], StreamingQuery], None]

MISSING = missing_features(tuple(int(part) for part in pyspark.__version__.split(".")[:2]))

# Without admission control Trigger.AvailableNow is one micro-batch: the one that the crash has left, if any.
RUNS_AFTER_A_CRASH = 2 if ADMISSION_CONTROL in MISSING else 1


def needs(feature: Feature) -> pytest.MarkDecorator:
    """A test of what not every supported Spark has. What happens without it is a test with `lacks`."""
    return pytest.mark.skipif(feature in MISSING, reason=f"Spark {pyspark.__version__} has no {feature.name}")


def lacks(feature: Feature) -> pytest.MarkDecorator:
    """A test of what happens instead, on a Spark without it."""
    return pytest.mark.skipif(
        feature not in MISSING, reason=f"Spark {pyspark.__version__} has {feature.name}"
    )


@pytest.fixture(autouse=True)
def _no_notices() -> None:
    """What one test's options were warned about is no matter of the next one's."""
    notices.reset()


class Write(Protocol):
    """What the fixture `write` is."""

    def __call__(self, df: DataFrame, **options: str) -> None: ...


class Read(Protocol):
    """What the fixture `read` is."""

    def __call__(self, **options: str) -> DataFrame: ...


@pytest.fixture
def write(root: str) -> Write:
    """write(df, topic="t", **options): a batch write to the test's root."""

    def write_to(df: DataFrame, **options: str) -> None:
        df.write.format("sparklog").mode("append").options(**options).save(root)

    return write_to


@pytest.fixture
def read(spark: SparkSession, root: str) -> Read:
    """read(subscribe="t", **options): a batch read of the test's root."""

    def read_from(**options: str) -> DataFrame:
        return spark.read.format("sparklog").options(**options).load(root)

    return read_from


@pytest.fixture
def copy_stream(spark: SparkSession, root: str, tmp_path: Path) -> CopyStream:
    """copy_stream(source options, sink options): run a query from topic to topic until it has caught up."""

    def run(source: Options, sink: Options) -> StreamingQuery:
        rows = spark.readStream.format("sparklog").options(**source).load(root)
        writer = (
            rows.select("key", "value")
            .writeStream.format("sparklog")
            .options(**sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = writer.start(root)
        query.awaitTermination(200)
        assert not query.isActive, "the query did not end"
        return query

    return run


@pytest.fixture
def until() -> Until:
    """until(condition, query): wait for a streaming query to bring something about."""

    def wait(condition: Callable[[], bool], query: StreamingQuery) -> None:
        end = time.monotonic() + 200
        while not condition():
            if query.exception() is not None and query.isActive is False:
                raise AssertionError(f"the query died: {query.exception()}")
            assert time.monotonic() < end, "nothing happened in time"
            query.awaitTermination(0.2)  # type: ignore[arg-type]  # pyspark takes float, its stub says int

    return wait
