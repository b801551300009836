"""A streaming query from topic in to topic out, in a process of its own, to be killed.

Until it is killed: a query that fails is started again, from its checkpoint. With --once it ends with what is
there.

Usage: python streaming_job.py ROOT CHECKPOINT MAX_OFFSETS [--once]
"""

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import sparklog.spark


def main(root: str, checkpoint: str, max_offsets: str, *flags: str) -> None:
    builder = sparklog.spark.configure(SparkSession.builder.master("local[2]"))
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", 2)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    sparklog.spark.register(spark)
    rows = (
        spark.readStream.format("sparklog").option("subscribe", "in").option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets).load(root)
    )  # fmt: skip
    writer = rows.select("key", "value").writeStream.format("sparklog").option("topic", "out")
    writer = writer.option("num.partitions", "3").option("checkpointLocation", checkpoint)
    if "--once" in flags:
        writer.trigger(availableNow=True).start(root).awaitTermination()
        spark.stop()
    while "--once" not in flags:
        try:
            writer.start(root).awaitTermination()
        except StreamingQueryException as error:
            print(error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
