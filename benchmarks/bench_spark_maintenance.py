"""Maintenance as a Spark job: how much faster two tasks merge and compact than one.

A root of `--gigabytes`: half of it a topic of small extents (`optimize` merges it), half a compacted topic
in which each key was written `--rewrites` times (`compact` cleans it). Each run has a copy of hard links,
since what a segment holds never changes; by turns, a Spark with one slot and one with two merges and compacts
a copy. The writer's fsync is off, the job's is not.

    python -m benchmarks.bench_spark_maintenance [--gigabytes 20] [--partitions 8] [--rounds 2] [--parent DIR]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import sparklog
from benchmarks import bench_compaction, bench_maintenance
from sparklog.client import AppendOptions, SparkLog

STORED_BYTES = 116  # of a record of 100 bytes, as it lies in a batch
SMALL_RECORDS = 20_000  # a publish: 290 KB in each of eight partitions
LARGE_RECORDS = 400_000


def write(root: Path, gigabytes: float, partitions: int, rewrites: int) -> None:
    """Both topics, without fsync."""
    os.fsync = lambda fd: None
    records = int(gigabytes * 1e9 / 2 / STORED_BYTES)
    with sparklog.open(root) as log:
        log.create_topic("t", partitions)
        log.create_topic("compacted", partitions, configs={"cleanup.policy": "compact"})
        for first in range(0, records, SMALL_RECORDS):
            publish(log, "t", bench_maintenance.rows(first, SMALL_RECORDS, partitions))
        for first in range(0, records, LARGE_RECORDS):
            table = bench_compaction.rows(first, LARGE_RECORDS, max(1, records // rewrites))
            publish(log, "compacted", table)


def publish(log: SparkLog, topic: str, table: object) -> None:
    with log.appender(AppendOptions(compression="none")) as appender:
        appender.add(table, topic)
        log.publish([appender.finish()])


def maintain(root: str, slots: int) -> dict[str, float]:
    """In a process of its own, which ends with its Spark."""
    from pyspark.sql import SparkSession

    from sparklog.spark import maintenance

    spark = SparkSession.builder.master(f"local[{slots}]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.parallelize(range(slots), slots).map(lambda one: one).collect()
    found: dict[str, float] = {}
    begin = busy(), time.perf_counter()
    report = maintenance.optimize(spark, root, ["t"]).topics["t"]
    found["merged MB"] = report.merged_bytes / 1e6
    found["optimize s"] = time.perf_counter() - begin[1]
    found["optimize CPU s"] = busy() - begin[0]
    begin = busy(), time.perf_counter()
    cleaned = maintenance.compact(spark, root, ["compacted"]).topics["compacted"]
    found["compacted to MB"] = cleaned.bytes_after / 1e6
    found["compact s"] = time.perf_counter() - begin[1]
    found["compact CPU s"] = busy() - begin[0]
    spark.stop()
    return {name: round(value, 2) for name, value in found.items()}


def busy() -> float:
    """Seconds of CPU of this process and of those it started."""
    own = psutil.Process()
    every = [own, *own.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def maintained(root: Path, slots: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_spark_maintenance", "--maintain", str(root)]
    output = subprocess.run([*command, "--slots", str(slots)], check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def run(parent: Path, gigabytes: float, partitions: int, rewrites: int, rounds: int) -> None:
    source = parent / "source"
    took = bench_maintenance.timed(lambda: write(source, gigabytes, partitions, rewrites))
    files, size = bench_maintenance.files_of(source)
    print(json.dumps({"wrote s": round(took, 1), "files": files, "GB": round(size / 1e9, 2)}), flush=True)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for number in range(rounds):
        for slots in (1, 2) if number % 2 == 0 else (2, 1):
            copy = parent / f"copy-{number}-{slots}"
            shutil.copytree(source, copy, copy_function=os.link)
            found[slots].append(maintained(copy, slots))
            print(json.dumps({"slots": slots, **found[slots][-1]}), flush=True)
            shutil.rmtree(copy)
    for part in ("optimize s", "compact s"):
        ratios = [one[part] / two[part] for one, two in zip(found[1], found[2], strict=True)]
        print(
            json.dumps(
                {
                    "part": part,
                    "one task against two": round(statistics.median(ratios), 2),
                    "of": [round(min(ratios), 2), round(max(ratios), 2)],
                }
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rewrites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parent", default=None, help="where the roots are made")
    parser.add_argument("--maintain", help=argparse.SUPPRESS)
    parser.add_argument("--slots", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.maintain:
        print(json.dumps(maintain(options.maintain, options.slots)))
        return
    with tempfile.TemporaryDirectory(dir=options.parent) as parent:
        run(Path(parent), options.gigabytes, options.partitions, options.rewrites, options.rounds)


if __name__ == "__main__":
    main()
