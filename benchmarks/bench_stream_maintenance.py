"""A stream of many micro-batches, with the maintenance that it starts itself and without.

A streaming query copies a topic in `--batches` micro-batches into a new root, whose only company it is. By
turns with `maintenance` as it comes and off: how long micro-batches took, how long all of them, and what the
root then is. The processes that maintenance starts use the same cores.

    python -m benchmarks.bench_stream_maintenance [--batches 2000] [--records 2000] [--rounds 1]
                                                  [--parent DIR]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from pyspark.sql import SparkSession

import sparklog
from benchmarks.bench_maintenance import files_of, rows
from benchmarks.bench_spark import session
from sparklog.client import AppendOptions

PARTITIONS = 8


def write(root: Path, records: int) -> None:
    with sparklog.open(root) as log:
        log.create_topic("t", PARTITIONS)
        for first in range(0, records, 500_000):
            with log.appender(AppendOptions()) as appender:
                appender.add(rows(first, min(500_000, records - first), PARTITIONS), "t")
                log.publish([appender.finish()])


def copy(spark: SparkSession, source: Path, root: Path, checkpoint: Path, records: int, upkeep: str) -> dict:
    """One query from start to end."""
    read = spark.readStream.format("sparklog").option("subscribe", "t").option("startingOffsets", "earliest")
    read = read.option("maxOffsetsPerTrigger", str(records)).option("minPartitions", "1")
    sink = read.load(str(source)).select("key", "value", "partition").writeStream.format("sparklog")
    sink = sink.option("checkpointLocation", str(checkpoint)).option("topic", "t")
    sink = sink.option("num.partitions", str(PARTITIONS)).option("maintenance", upkeep)
    begin = time.perf_counter()
    query = sink.trigger(availableNow=True).start(str(root))
    query.awaitTermination()
    took = time.perf_counter() - begin
    batches = np.array([one["durationMs"]["triggerExecution"] for one in query.recentProgress])
    with sparklog.open(root, create=False) as log:
        extents = [len(part.extents) for part in log.image.topic("t").partitions]
        begin = time.perf_counter()
        count = sum(one.num_rows for p in range(PARTITIONS) for one in log.read_batches("t", p))
        scanned = time.perf_counter() - begin
    tenth = max(1, len(batches) // 10)
    return {
        "maintenance": upkeep,
        "s": round(took, 1),
        "batches": len(batches),
        "records": count,
        "median ms": float(np.median(batches)),
        "p99 ms": float(np.percentile(batches, 99)),
        "first tenth ms": float(np.median(batches[:tenth])),
        "last tenth ms": float(np.median(batches[-tenth:])),
        "extents a partition": max(extents),
        "files": files_of(root)[0],
        "scan s": round(scanned, 3),
        "memory MB": round(psutil.Process().memory_info().rss / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--records", type=int, default=2_000, help="a micro-batch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--parent", default=None, help="where the roots are made")
    options = parser.parse_args()
    spark = session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(options.batches + 10))
    with tempfile.TemporaryDirectory(dir=options.parent) as name:
        parent = Path(name)
        write(parent / "source", options.batches * options.records)
        copy(
            spark,
            parent / "source",
            parent / "warm",
            parent / "warm-checkpoint",
            options.batches * 100,
            "off",
        )
        ratios = []
        for number in range(options.rounds):
            took = {}
            for upkeep in ("auto", "off") if number % 2 == 0 else ("off", "auto"):
                root = parent / f"root-{number}-{upkeep}"
                found = copy(
                    spark, parent / "source", root, parent / f"c-{root.name}", options.records, upkeep
                )
                took[upkeep] = found["s"]
                print(json.dumps(found), flush=True)
            ratios.append(took["off"] / took["auto"])
        print(json.dumps({"throughput of auto against off": round(statistics.median(ratios), 3)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
