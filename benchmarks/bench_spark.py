"""Spark's source and sink as fractions of what its bridge to Python allows; idle cost; latency.

Everything runs in one session on two cores, the contenders interleaved; reported are the medians of
the ratios within each round and their spread. Run: python -m benchmarks.bench_spark [--quick]
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

# Workers import this package to find the ceiling's classes.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")])
)

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sparklog.spark
from benchmarks.ceiling import STREAM_PARTITIONS, CeilingDataSource

PARTITIONS = 2
End = tuple[str, dict[str, str], str]  # format, options, path


def warm_pages(directory: str, size: int) -> None:
    """Use, and free again, as many pages of memory as a job is about to fill with its files.

    In a virtual machine that gives unused memory back to its host, the first use of each page costs far
    more than writing to it (12 us per 4 KiB where this was written: 340 MB/s instead of 3,000), and only the
    contender that writes would pay for it. --cold leaves that in.
    """
    path = Path(directory, "warm-pages")
    chunk = bytes(4 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, len(chunk)):
            file.write(chunk)
    path.unlink()


def session() -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.noDataProgressEventInterval": "1s",
    }
    spark = (
        sparklog.spark.configure(SparkSession.builder.config(map=settings)).master("local[2]").getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    sparklog.spark.register(spark)
    spark.dataSource.register(CeilingDataSource)
    return spark


def json_value(size: int) -> bytes:
    """A document of exactly `size` bytes, which lz4 brings to about half."""
    text = "{"
    while len(text) < size:
        text += f'"reading_{len(text)}": {int.from_bytes(os.urandom(6))}, '
    return (text[: size - 1] + "}").encode()


def input_rows(spark: SparkSession, rows: int, value_bytes: int, kind: str) -> DataFrame:
    """Keys and values, cheap for Spark to make: one of 97 prepared values each."""
    make = json_value if kind == "json" else os.urandom
    table = [(i, make(value_bytes)) for i in range(97)]
    spark.createDataFrame(table, "i int, v binary").createOrReplaceTempView(f"values_{value_bytes}")
    values = spark.sql(f"SELECT collect_list(v) vs FROM values_{value_bytes}").collect()[0].vs
    from pyspark.sql import functions as F  # noqa: N812

    array = F.array(*[F.lit(bytes(v)) for v in values])
    return spark.range(rows, numPartitions=PARTITIONS).select(
        F.lpad(F.col("id").cast("string"), 12, "0").cast("binary").alias("key"),
        F.element_at(array, (F.col("id") % 97 + 1).cast("int")).alias("value"),
    )


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def write_job(df: DataFrame, codec: str, root: str) -> Callable[[], None]:
    writer = df.write.format("sparklog").mode("append").option("topic", "t").option("compression.type", codec)
    return lambda: writer.save(root)


def read_job(spark: SparkSession, source: str, options: dict[str, str], root: str) -> Callable[[], None]:
    df = spark.read.format(source).options(**options).load(root)
    return lambda: df.write.format("noop").mode("overwrite").save()


def one_round(
    spark: SparkSession, df: DataFrame, shape: tuple[int, int, str], root: str, turn: int, *, cold: bool
) -> dict[str, float]:
    """Seconds of each contender, who take turns in going first."""
    rows, value_bytes, codec = shape
    sparklog.open(root, create=True).create_topic("t", partitions=PARTITIONS)
    prepared = {"rows": str(rows), "bytes": str(value_bytes), "partitions": str(PARTITIONS)}
    pairs = (
        ("sink", write_job(df, codec, root), "discard", df.write.format("ceiling").mode("append").save),
        (
            "source",
            read_job(spark, "sparklog", {"subscribe": "t"}, root),
            "prepared",
            read_job(spark, "ceiling", prepared, root),
        ),
    )
    seconds = {}
    for ours, our_job, ceiling, ceiling_job in pairs:
        jobs = [(ours, our_job), (ceiling, ceiling_job)]
        for name, job in jobs if turn % 2 else reversed(jobs):
            if not cold:
                warm_pages(root, rows * (value_bytes + 40))
            seconds[name] = timed(job)
    shutil.rmtree(root)
    return seconds


def throughput(spark: SparkSession, base: str, rounds: int, megabytes: int, *, cold: bool) -> None:
    pages = "cold" if cold else "warm"
    print(
        f"\nthroughput, {pages} pages (median ratio within a round [min, max]; aim: sink 0.60, source 0.45)"
    )
    for value_bytes in (100, 1000):
        rows = megabytes * 1_000_000 // (value_bytes + 12) // 20_000 * 20_000
        for kind, codec in (("random", "none"), ("random", "lz4"), ("json", "lz4")):
            df = input_rows(spark, rows, value_bytes, kind)
            shape = (rows, value_bytes, codec)
            all_rounds = [one_round(spark, df, shape, f"{base}/{n}", n, cold=cold) for n in range(rounds + 1)]
            for side, ceiling in (("sink", "discard"), ("source", "prepared")):
                measured = all_rounds[1:]  # the first warms up: imports, JIT
                ratios = [seconds[ceiling] / seconds[side] for seconds in measured]
                rate = rows / statistics.median(seconds[side] for seconds in measured) / 1e6
                print(
                    f"  {side:6} {value_bytes:5} B {kind:6} {codec:4}  {spread(ratios)} of the ceiling   "
                    f"{rate:5.2f} M records/s  {rate * (value_bytes + 12):6.0f} MB/s",
                    flush=True,
                )


def stream(spark: SparkSession, source: End, sink: End, checkpoint: str) -> StreamingQuery:
    df = spark.readStream.format(source[0]).options(**source[1]).load(source[2])
    writer = df.select("key", "value").writeStream.format(sink[0]).options(**sink[1])
    return writer.option("checkpointLocation", checkpoint).start(sink[2])


def contenders(base: str, rows: int) -> dict[str, tuple[End, End]]:
    root = f"{base}/streams"
    ours = {"subscribe": "in", "startingOffsets": "earliest"}
    if rows:
        ours["maxOffsetsPerTrigger"] = str(rows)
    return {
        "trivial": (("ceiling", {"rows": str(rows)}, base), ("ceiling", {}, base)),
        "sparklog": (("sparklog", ours, root), ("sparklog", {"topic": "out"}, root)),
    }


def latency(spark: SparkSession, base: str, rounds: int) -> None:
    """Duration of micro-batches of 1,000 rows, from Spark's own progress reports."""
    print("\nmicro-batch of 1,000 rows (aim: at most 50 ms more than trivial)")
    differences = []
    phases: dict[str, dict[str, list[float]]] = {"trivial": {}, "sparklog": {}}
    for n in range(rounds + 1):
        medians = {}
        order = list(contenders(base, 1000).items())
        for name, (source, sink) in order if n % 2 else reversed(order):
            query = stream(spark, source, sink, f"{base}/latency-{name}-{n}")
            while len([p for p in query.recentProgress if p.numInputRows]) < 45:
                query.awaitTermination(1)
            progress = [p.durationMs for p in query.recentProgress if p.numInputRows][10:]
            query.stop()
            medians[name] = statistics.median(p["triggerExecution"] for p in progress)
            for phase in progress[0] if n else ():
                phases[name].setdefault(phase, []).extend(p.get(phase, 0) for p in progress)
        if n == 0:
            continue  # warm-up
        differences.append(medians["sparklog"] - medians["trivial"])
        print(
            f"  round {n}: trivial {medians['trivial']:.0f} ms, sparklog {medians['sparklog']:.0f} ms",
            flush=True,
        )
    print(f"  sparklog takes {spread(differences)} ms longer; by phase (medians, trivial -> sparklog):")
    for phase, durations in phases["trivial"].items():
        ours = phases["sparklog"].get(phase, [0])
        print(f"    {phase:18} {statistics.median(durations):5.0f} -> {statistics.median(ours):5.0f} ms")


def cpu_seconds() -> float:
    process = psutil.Process()
    total = 0.0
    for p in [process, *process.children(recursive=True)]:
        try:
            times = p.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            pass
    return total


def idle(spark: SparkSession, base: str, rounds: int, seconds: int) -> None:
    """CPU of the whole process tree while a query waits for data."""
    print("\nidle stream, % of one core (aim: at most 3 more than trivial)")
    shares: dict[str, list[float]] = {"trivial": [], "sparklog": []}
    root = f"{base}/idle"
    sparklog.open(root, create=True).create_topic("in", partitions=4)
    for n in range(rounds):
        for name, (source, sink) in contenders(base, 0).items():
            where = (source[0], source[1], root if name == "sparklog" else source[2])
            query = stream(spark, where, sink, f"{base}/idle-{name}-{n}")
            query.awaitTermination(6)  # settle
            before, start = cpu_seconds(), time.perf_counter()
            query.awaitTermination(seconds)
            shares[name].append(100 * (cpu_seconds() - before) / (time.perf_counter() - start))
            query.stop()
    more = [ours - theirs for ours, theirs in zip(shares["sparklog"], shares["trivial"], strict=True)]
    print(
        f"  trivial {spread(shares['trivial'])}, sparklog {spread(shares['sparklog'])}, more: {spread(more)}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds, less data")
    parser.add_argument("--cold", action="store_true", help="throughput also without warm_pages")
    parser.add_argument("--dir", help="where the roots go (default: the temporary directory)")
    parser.add_argument("--only", choices=["throughput", "latency", "idle"])
    args = parser.parse_args(argv)
    base = tempfile.mkdtemp(prefix="sparklog-bench-", dir=args.dir)
    spark = session()
    try:
        if args.only in (None, "throughput"):
            rounds, megabytes = (3, 120) if args.quick else (5, 240)
            for cold in (False, True) if args.cold else (False,):
                throughput(spark, base, rounds, megabytes, cold=cold)
        if args.only in (None, "latency", "idle"):
            log = sparklog.open(f"{base}/streams", create=True)
            log.create_topic("in", partitions=STREAM_PARTITIONS)
            df = input_rows(spark, 600_000, 100, "random")
            df.write.format("sparklog").mode("append").option("topic", "in").save(f"{base}/streams")
        if args.only in (None, "latency"):
            latency(spark, base, rounds=2 if args.quick else 3)
        if args.only in (None, "idle"):
            idle(spark, base, rounds=2 if args.quick else 3, seconds=10 if args.quick else 15)
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
