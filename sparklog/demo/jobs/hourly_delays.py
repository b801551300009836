"""Streaming job: topic `flights` in, hourly departure delay of each origin to topic `delays`.

Run by `sparklog demo` with spark-submit, killed, and run again; it also runs alone:
    spark-submit hourly_delays.py ROOT CHECKPOINT RECORDS_PER_BATCH
Each task adds its flights up by origin and hour and writes one record for each: the readers add
those up. Sums forgive nothing: a record that appears twice, or not at all, makes them wrong.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat_ws, from_json, struct, to_json, to_timestamp
from pyspark.sql.streaming.query import StreamingQuery

import sparklog.spark
from sparklog.demo.dataset import SPARK_SCHEMA, hourly_delays

SOURCE, TOPIC, GROUP = "flights", "delays", "demo-delays"
DELAYS = "origin STRING, time_hour STRING, flights BIGINT, departures BIGINT, delay_min BIGINT"


def add_up_task(arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up the flights of one task."""
    flights = list(arrow_batches)
    if flights:
        yield from hourly_delays(pa.Table.from_batches(flights)).to_batches()


def start_query(spark: SparkSession, root: str, checkpoint: str, records_per_batch: int) -> StreamingQuery:
    """Start the query; it ends when everything that is in `flights` now has been read."""
    flights = (
        spark.readStream.format("sparklog")
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .option("kafka.group.id", GROUP)
        .load(root)
        .select(from_json(col("value").cast("string"), SPARK_SCHEMA).alias("flight"))
        .select("flight.origin", "flight.time_hour", "flight.dep_delay")
    )
    delays = flights.mapInArrow(add_up_task, DELAYS).select(
        concat_ws("|", "origin", "time_hour").alias("key"),
        to_json(struct("*")).alias("value"),
        to_timestamp("time_hour").alias("timestamp"),
    )
    return (
        delays.writeStream.format("sparklog")
        .option("topic", TOPIC)
        .option("compression.type", "lz4")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(root)
    )


def main(root: str, checkpoint: str, records_per_batch: str) -> None:
    spark = SparkSession.builder.appName("sparklog demo: hourly delays").getOrCreate()
    sparklog.spark.register(spark)
    start_query(spark, root, checkpoint, int(records_per_batch)).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
