"""One side's Spark: a process with a session of its own, which does what the runner asks, and tells the time.

Commands come as JSON lines on stdin, answers go as JSON lines to stdout. Each side has its own driver, so
that CPU and memory can be told apart, and none profits from what another has warmed up.

    python -m benchmarks.peers.spark_driver SIDE PLACE DIRECTORY JARS
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.peers import formats

SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
TASKS = 2
TASK_A_PARTITION = {"minPartitions": "1"}  # as Kafka's connector; by default we have TASKS of them


def session(side: str, jars: str) -> SparkSession:
    """local[2], and the side's jars."""
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName(f"peers-{side}").config(map=SESSION)
    if jars:
        builder = builder.config("spark.jars", jars)
    if side == "delta":
        builder = builder.config(map=DELTA)
    if side == "sparklog":
        import sparklog.spark

        sparklog.spark.configure(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if side == "sparklog":
        sparklog.spark.register(spark)
    return spark


def json_value(size: int, seed: int) -> bytes:
    """A document of exactly `size` bytes, which lz4 brings to about half."""
    text, number = "{", seed * 7919 + 1
    while len(text) < size:
        number = number * 6364136223846793005 % (1 << 64)
        text += f'"reading_{len(text)}": {number >> 20}, '
    return (text[: size - 1] + "}").encode()


def input_rows(spark: SparkSession, records: int, value_bytes: int, tasks: int = TASKS) -> DataFrame:
    """Keys of 12 bytes and values, cheap for Spark to make: each one of 97 prepared values."""
    values = F.array(*[F.lit(json_value(value_bytes, n)) for n in range(97)])
    return spark.range(records, numPartitions=tasks).select(
        F.lpad(F.col("id").cast("string"), 12, "0").cast("binary").alias("key"),
        F.element_at(values, (F.col("id") % 97 + 1).cast("int")).alias("value"),
    )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Driver:
    """The commands."""

    def __init__(self, side: str, place: str, directory: str, jars: str) -> None:
        self.side, self.place, self.directory = side, place, directory
        self.spark = session(side, jars)
        self._query: StreamingQuery | None = None
        self._settings: dict[str, str] = {}

    def settings(self, values: dict[str, str]) -> dict:
        """Settings of the session for what comes next, instead of the last ones."""
        for name in self._settings.keys() - values.keys():
            self.spark.conf.unset(name)
        for name, value in values.items():
            self.spark.conf.set(name, value)
        self._settings = values
        return {}

    def write(
        self,
        topic: str,
        records: int,
        value_bytes: int,
        codec: str,
        options: dict[str, str],
        tasks: int | None = None,
    ) -> dict:
        """Batch write."""
        df = input_rows(self.spark, records, value_bytes, tasks or TASKS)
        options = {**formats.codec_options(self.side, codec), **options}
        return {"seconds": timed(lambda: formats.write(df, self.side, self.place, topic, options))}

    def read(self, topic: str, into: str, options: dict[str, str] | None = None) -> dict:
        """Batch read, to nowhere, or to ten groups with counts and sums."""
        df = formats.read(self.spark, self.side, self.place, topic, options).select("key", "value")
        if into == "noop":
            return {"seconds": timed(lambda: df.write.format("noop").mode("overwrite").save())}
        groups = df.groupBy(F.substring("key", 12, 1)).agg(F.count("*"), F.sum(F.length("value")))
        return {"seconds": timed(groups.collect)}

    def count(self, topic: str) -> dict:
        return {"records": formats.read(self.spark, self.side, self.place, topic).count()}

    def between(self, topic: str, start_ms: int, end_ms: int, mode: str) -> dict:
        """Count the records of a time: found by a scan, by offsets for times, or by filters pushed down."""
        options = {
            "scan": {},
            "lookup": {"startingTimestamp": str(start_ms), "endingTimestamp": str(end_ms)},
            "pushdown": {"filterPushdown": "true"},
        }[mode]
        df = formats.read(self.spark, self.side, self.place, topic, options)
        low, high = (F.timestamp_millis(F.lit(ms)) for ms in (start_ms, end_ms))
        df = df.where((F.col("timestamp") >= low) & (F.col("timestamp") < high))
        found: list[int] = []
        seconds = timed(
            lambda: found.append(df.select(F.length("value").alias("n")).agg(F.count("n")).first()[0])
        )
        return {"seconds": seconds, "records": found[0]}

    def copy(self, source: str, sink: str, options: dict[str, str], sink_options: dict[str, str]) -> dict:
        """Streaming copy of all there is, and then stop."""
        checkpoint = tempfile.mkdtemp(dir=self.directory)

        def run() -> None:
            query = formats.copy(
                self.spark,
                self.side,
                self.place,
                (source, sink),
                checkpoint,
                options=options,
                sink_options=sink_options,
                available_now=True,
            )
            query.awaitTermination()
            done.extend(p for p in query.recentProgress if p.numInputRows)

        done: list[StreamingQueryProgress] = []
        seconds = timed(run)
        return {"seconds": seconds, "micro_batches": len(done), **_running(done)}

    def start_copy(self, source: str, sink: str, options: dict[str, str]) -> dict:
        """A copy that goes on until stop_copy."""
        checkpoint = tempfile.mkdtemp(dir=self.directory)
        topics = (source, sink)
        self._query = formats.copy(
            self.spark, self.side, self.place, topics, checkpoint, options=options, available_now=False
        )
        return {}

    def stop_copy(self) -> dict:
        query, self._query = self._query, None
        assert query is not None
        progress = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
        error = query.exception()
        query.stop()
        assert error is None, str(error)
        return {"micro_batch_ms": sorted(progress)[len(progress) // 2] if progress else None}


def _running(done: list[StreamingQueryProgress]) -> dict[str, float]:
    """The micro-batches after the first, in which the query starts."""
    if len(done) < 2:
        return {"running_records": 0, "running_seconds": 0.0}
    first, last = (
        datetime.fromisoformat(one.timestamp).timestamp() + one.durationMs["triggerExecution"] / 1000
        for one in (done[0], done[-1])
    )
    return {"running_records": sum(one.numInputRows for one in done[1:]), "running_seconds": last - first}


def main() -> None:
    side, place, directory, jars = sys.argv[1:]
    started = time.perf_counter()
    driver = Driver(side, place, directory, jars)
    print(json.dumps({"session_seconds": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        words: dict[str, Any] = json.loads(line)
        try:
            answer = getattr(driver, words.pop("do"))(**words)
        except Exception as error:  # noqa: BLE001 - told to the runner
            answer = {"error": str(error).strip()[:2000]}
        print(json.dumps(answer), flush=True)
    driver.spark.stop()


if __name__ == "__main__":
    main()
