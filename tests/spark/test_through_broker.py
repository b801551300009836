"""Spark with nothing but kafka.bootstrap.servers, beside Kafka clients, through a real broker."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparklog
from sparklog.testing import Broker

pytestmark = pytest.mark.spark


def consume(sparklog_broker: Broker, topic: str, count: int) -> dict[tuple[int, int], bytes]:
    """(partition, offset) -> value, as a Kafka client reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": sparklog_broker.bootstrap_servers,
            "group.id": "check",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: dict[tuple[int, int], bytes] = {}
    while len(found) < count:
        for message in consumer.consume(count, timeout=10):
            assert message.error() is None
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None  # noqa: PT018
            found[partition, offset] = value
    consumer.close()
    return found


def test_batch_write_and_read(spark: SparkSession, sparklog_broker: Broker) -> None:
    sparklog.open(sparklog_broker.root, create=False).create_topic("batch", 3)
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format("sparklog").mode("append").option(
        "kafka.bootstrap.servers", sparklog_broker.bootstrap_servers
    ).option("topic", "batch").save()
    by_client = consume(sparklog_broker, "batch", 100)
    read = spark.read.format("sparklog").option("kafka.bootstrap.servers", sparklog_broker.bootstrap_servers)
    by_spark = {
        (row.partition, row.offset): bytes(row.value)
        for row in read.option("subscribe", "batch").load().collect()
    }
    assert by_spark == by_client


def test_a_stream_from_topic_to_topic(spark: SparkSession, sparklog_broker: Broker, tmp_path: Path) -> None:
    log = sparklog.open(sparklog_broker.root, create=False)
    log.create_topic("from", 2)
    log.create_topic("to", 1)
    producer = Producer({"bootstrap.servers": sparklog_broker.bootstrap_servers})
    for number in range(50):
        producer.produce("from", f"value {number}", str(number))
    assert producer.flush(30) == 0

    def options(**more: str) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": sparklog_broker.bootstrap_servers, **more}

    rows = spark.readStream.format("sparklog").options(
        **options(subscribe="from", startingOffsets="earliest")
    )
    query = (
        rows.load()
        .select("key", "value")
        .writeStream.format("sparklog")
        .options(**options(topic="to", checkpointLocation=str(tmp_path / "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(consume(sparklog_broker, "to", 50).values()) == sorted(
        f"value {n}".encode() for n in range(50)
    )
    checkpoint = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint" / "offsets").iterdir())
    assert sparklog_broker.bootstrap_servers.encode() not in checkpoint


def test_an_address_where_nobody_listens(spark: SparkSession) -> None:
    read = spark.read.format("sparklog").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(PySparkException, match=r"BROKER_UNREACHABLE.*Connection refused"):
        read.option("subscribe", "t").load().collect()
