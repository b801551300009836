"""How each side is read and written by Spark, in its own words and with its natural settings.

Place: what a side is found by: a root, a bootstrap address, a directory of tables.
"""

from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

FILES = ("parquet", "delta")
SCHEMA = "key binary, value binary"


def codec_options(side: str, codec: str) -> dict[str, str]:
    """The option that names the codec."""
    if side in FILES:
        return {"compression": "uncompressed" if codec == "none" else codec}
    return {"compression.type" if side == "sparklog" else "kafka.compression.type": codec}


def write(df: DataFrame, side: str, place: str, topic: str, options: dict[str, str]) -> None:
    """Append the rows of a data frame."""
    writer: DataFrameWriter = df.write.format(side).mode("append").options(**options)
    if side == "sparklog":
        writer.option("topic", topic).save(place)
    elif side == "kafka":
        writer.option("topic", topic).option("kafka.bootstrap.servers", place).save()
    else:
        writer.save(f"{place}/{topic}")


def read(
    spark: SparkSession, side: str, place: str, topic: str, options: dict[str, str] | None = None
) -> DataFrame:
    """All of a topic."""
    return _load(spark.read.format(side).options(**(options or {})), side, place, topic)


def copy(
    spark: SparkSession,
    side: str,
    place: str,
    topics: tuple[str, str],
    checkpoint: str,
    *,
    options: dict[str, str] | None = None,
    sink_options: dict[str, str] | None = None,
    available_now: bool,
) -> StreamingQuery:
    """Start a query that copies keys and values from one topic to another, from where the first begins."""
    reader = spark.readStream.format(side).options(**(options or {}))
    if side == "parquet":
        reader = reader.schema(SCHEMA)
    elif side != "delta":
        reader = reader.option("startingOffsets", "earliest")
    df = _load(reader, side, place, topics[0]).select("key", "value")
    writer = (
        df.writeStream.format(side).option("checkpointLocation", checkpoint).options(**(sink_options or {}))
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    if side == "sparklog":
        return writer.option("topic", topics[1]).start(place)
    if side == "kafka":
        return writer.option("topic", topics[1]).option("kafka.bootstrap.servers", place).start()
    return writer.start(f"{place}/{topics[1]}")


def _load(reader: DataFrameReader | DataStreamReader, side: str, place: str, topic: str) -> DataFrame:
    if side == "sparklog":
        return reader.option("subscribe", topic).load(place)
    if side == "kafka":
        return reader.option("subscribe", topic).option("kafka.bootstrap.servers", place).load()
    return reader.load(f"{place}/{topic}")
