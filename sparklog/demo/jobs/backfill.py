"""Batch job: all flights of the CSV into the topic `flights`, keyed by tail number.

Run by `sparklog demo` with spark-submit; it also runs alone:
    spark-submit backfill.py flights.csv ROOT
All or nothing: the records appear in one commit, so a failed run leaves none. The write is
idempotent too: `txnAppId` and `txnVersion` make a second run of the same version a no-op.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, struct, to_json, to_timestamp

import sparklog.spark
from sparklog.demo.dataset import MISSING, SPARK_SCHEMA

TOPIC = "flights"


def write_flights(spark: SparkSession, csv_path: str, root: str) -> None:
    """Write the flights."""
    flights = spark.read.csv(csv_path, schema=SPARK_SCHEMA, header=True, nullValue=MISSING)
    records = flights.select(
        col("tailnum").alias("key"),
        to_json(struct("*")).alias("value"),
        to_timestamp("time_hour").alias("timestamp"),
    )
    (
        records.write.format("sparklog")
        .mode("append")
        .option("topic", TOPIC)
        .option("compression.type", "lz4")
        .option("txnAppId", "demo-backfill")
        .option("txnVersion", 1)
        .save(root)
    )


def main(csv_path: str, root: str) -> None:
    spark = SparkSession.builder.appName("sparklog demo: backfill").getOrCreate()
    sparklog.spark.register(spark)
    write_flights(spark, csv_path, root)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
