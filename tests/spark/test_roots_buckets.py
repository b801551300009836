"""Spark over gs:// and az:// emulators, and HDFS: options reach the executors, and show nowhere."""

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.bucket_servers import ACCOUNT, ACCOUNT_KEY, NAMES, BucketServer, are_built

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not are_built(), reason="make test-stores has them")]


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_through_a_bucket_with_options_of_the_query(
    spark: SparkSession, bucket_server: Callable[[str], BucketServer], name: str, tmp_path: Path
) -> None:
    server = bucket_server(name)
    root = server.new_root()
    # The JVM's Python workers have none of this process's variables: all they know goes by the options.
    options: dict[str, Any] = {
        "gs": {"fs.gs.storage.root.url": server.endpoint_url, "fs.gs.auth.type": "UNAUTHENTICATED"},
        "azure": {
            "azure.account_name": ACCOUNT,
            "fs.azure.account.key": ACCOUNT_KEY,
            "azure.endpoint_url": f"{server.endpoint_url}/{ACCOUNT}",
        },
        "hdfs": {"hdfs.user": getpass.getuser(), "endpoint_url": server.endpoint_url},
    }[name]
    numbers = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    numbers.write.format("sparklog").mode("append").options(**options).option("topic", "in").save(root)
    source = (
        spark.readStream.format("sparklog")
        .options(**options, subscribe="in", startingOffsets="earliest")
        .load(root)
    )
    query = (
        source.select("key", "value")
        .writeStream.format("sparklog")
        .options(**options, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(root)
    )
    query.awaitTermination(120)
    assert query.exception() is None
    rows = spark.read.format("sparklog").options(**options, subscribe="out").load(root)
    assert sorted(int(row.value) for row in rows.select("value").collect()) == list(range(1000))
    with sparklog.open(root, create=False) as log:
        assert log.log_end_offset("out", 0) == 1000
    shown = rows._jdf.queryExecution().toString() + source._jdf.queryExecution().toString()
    stored = [
        path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()
    ]
    assert not any(ACCOUNT_KEY in text for text in [shown, *stored])
