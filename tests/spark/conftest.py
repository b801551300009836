"""Shorthands of the Spark tests."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(spark, root) -> Callable[..., None]:
    """write(df, topic="t", **options): a batch write to the test's root."""

    def write_to(df, **options):
        df.write.format("sparklog").mode("append").options(**options).save(root)

    return write_to


@pytest.fixture
def read(spark, root):
    """read(subscribe="t", **options): a batch read of the test's root."""

    def read_from(**options):
        return spark.read.format("sparklog").options(**options).load(root)

    return read_from


@pytest.fixture
def copy_stream(spark, root, tmp_path: Path):
    """copy_stream(source options, sink options): run a query from topic to topic until it has caught up."""

    def run(source, sink, *, checkpoint="checkpoint", transform=lambda df: df.select("key", "value"), query_name=None):
        rows = spark.readStream.format("sparklog").options(**source).load(root)
        writer = (
            transform(rows)
            .writeStream.format("sparklog")
            .options(**sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )
        query = writer.start(root)
        query.awaitTermination(120)
        assert not query.isActive, "the query did not end"
        return query

    return run


@pytest.fixture
def until():
    """until(condition, query): wait for a streaming query to bring something about."""

    def wait(condition, query, timeout_s=90):
        end = time.monotonic() + timeout_s
        while not condition():
            if query.exception() is not None and query.isActive is False:
                raise AssertionError(f"the query died: {query.exception()}")
            assert time.monotonic() < end, "nothing happened in time"
            query.awaitTermination(0.2)

    return wait
