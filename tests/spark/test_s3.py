"""Spark over an S3 server: the same queries, with options that reach the executors and show nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparklog
from sparklog.spark.features import ADMISSION_CONTROL
from tests.seaweed import KEY, SECRET, SeaweedServer
from tests.spark.conftest import MISSING
from tests.storage.s3_proxy import FaultyProxy

pytestmark = pytest.mark.spark


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


def test_a_stream_through_s3_with_options_of_the_query(
    spark: SparkSession, s3_root: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    # The environment leads to the server itself: what comes to the proxy goes by the options.
    options = {"s3.endpoint_url": proxy.endpoint_url, "s3.key": KEY, "s3.secret": SECRET}
    numbers = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    numbers.write.format("sparklog").mode("append").options(**options).option("topic", "in").save(s3_root)
    source = (
        spark.readStream.format("sparklog")
        .options(**options, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .load(s3_root)
    )
    sink = (
        source.select("key", "value")
        .writeStream.format("sparklog")
        .options(**options, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = sink.start(s3_root)
    query.awaitTermination(120)
    assert query.exception() is None
    sizes = [1000] if ADMISSION_CONTROL in MISSING else [400, 400, 200]
    assert [progress.numInputRows for progress in query.recentProgress] == sizes
    rows = spark.read.format("sparklog").options(**options, subscribe="out").load(s3_root)
    assert sorted(int(row.value) for row in rows.select("value").collect()) == list(range(1000))

    segments = {request.method for request in proxy.requests if "/segments/" in request.path}
    assert segments == {"GET", "PUT"}
    with sparklog.open(s3_root, create=False) as log:
        assert log.log_end_offset("out", 0) == 1000
        stored = [log.store.read(file.name) for file in log.store.list("", recursive=True)]
    checkpoint = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    shown = [
        rows._jdf.queryExecution().toString().encode(),
        source._jdf.queryExecution().toString().encode(),
        str([progress.json for progress in query.recentProgress]).encode(),
    ]
    for text in (*stored, *checkpoint, *shown):
        assert SECRET.encode() not in text
        assert KEY.encode() not in text


def test_wrong_credentials_fail_the_query_with_the_reason(
    spark: SparkSession, s3_root: str, s3_server: SeaweedServer
) -> None:
    sparklog.open(s3_root).create_topic("in")
    rows = (
        spark.read.format("sparklog").options(subscribe="in", key=KEY, secret="a-wrong-secret").load(s3_root)
    )
    with pytest.raises(
        PySparkException, match=r"(?s)SPARKLOG_STORAGE_REFUSED.*Check the credentials"
    ) as raised:
        rows.collect()
    assert "a-wrong-secret" not in str(raised.value)
