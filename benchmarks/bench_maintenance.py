"""A root after many small publishes: what it costs to read, and what merging gives back.

N publishes of 1,000 records of 100 bytes to 8 partitions each (fsync is off in the writer: what is measured
is not how they were written), then the same figures before and after `optimize`, and of the same data written
at once. Times are of one process, warm; the three roots are read in turn.

    python -m benchmarks.bench_maintenance [--publishes 10000] [--partitions 8] [--rounds 3] [--parent DIR]
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import sparklog
from sparklog.client import AppendOptions, SparkLog
from sparklog.clock import SystemClock
from sparklog.maintenance import optimize

RECORDS, VALUE_BYTES = 1_000, 100
START_MS = 1_700_000_000_000


def rows(first: int, count: int, partitions: int) -> pa.Table:
    """Values that do not compress to nothing, times that ascend by a millisecond."""
    values = np.random.default_rng(first).integers(0, 256, count * VALUE_BYTES, np.uint8).tobytes()
    offsets = pa.py_buffer(np.arange(0, count * VALUE_BYTES + 1, VALUE_BYTES, dtype=np.int32))
    return pa.table(
        {
            "value": pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(values)]),
            "timestamp": pa.array(np.arange(first, first + count) + START_MS),
            "partition": pa.array((np.arange(first, first + count) % partitions).astype(np.int32)),
        }
    )


def write(root: Path, publishes: int, partitions: int, *, per_publish: int) -> None:
    """`publishes` times RECORDS rows, `per_publish` of these in a publish."""
    real, os.fsync = os.fsync, lambda fd: None
    try:
        with sparklog.open(root) as log:
            log.create_topic("t", partitions)
            for number in range(0, publishes, per_publish):
                with log.appender(AppendOptions()) as appender:
                    for one in range(number, min(number + per_publish, publishes)):
                        appender.add(rows(one * RECORDS, RECORDS, partitions), "t")
                    log.publish([appender.finish()])
    finally:
        os.fsync = real


def files_of(root: Path) -> tuple[int, int]:
    """(files, bytes) beneath the root."""
    sizes = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(root: Path, publishes: int, seed: int) -> dict[str, float]:
    """Opening, scanning all, finding offsets by time, in this process."""
    chance = random.Random(seed)
    begin = time.perf_counter()
    with sparklog.open(root, create=False) as log:
        opened = time.perf_counter() - begin
        partitions = len(log.image.topic("t").partitions)
        cpu = time.process_time()
        scanned = timed(lambda: scan(log, partitions))
        cpu = time.process_time() - cpu
        last = publishes * RECORDS
        lookups = [
            timed(
                lambda: log.offset_for_time(
                    "t", chance.randrange(partitions), START_MS + chance.randrange(last)
                )
            )
            for _ in range(50)
        ]
        end = log.log_end_offset("t", 0)
        firsts = [timed(lambda: next(log.read_batches("t", 0, chance.randrange(end)))) for _ in range(20)]
    return {
        "open ms": opened * 1000,
        "scan s": scanned,
        "scan M records/s of CPU": last / cpu / 1e6,
        "by time ms": float(np.median(lookups)) * 1000,
        "by time, max ms": max(lookups) * 1000,
        "first batch ms": float(np.median(firsts)) * 1000,
    }


def scan(log: SparkLog, partitions: int) -> int:
    return sum(part.num_rows for p in range(partitions) for part in log.read_batches("t", p))


def measured(root: Path, publishes: int, seed: int) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_maintenance", "--measure", str(root)]
    command += ["--publishes", str(publishes), "--seed", str(seed)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def run(parent: Path, publishes: int, partitions: int, rounds: int) -> None:
    small, merged, large = parent / "small", parent / "merged", parent / "large"
    took = timed(lambda: write(small, publishes, partitions, per_publish=1))
    print(json.dumps({"publishes": publishes, "wrote s": round(took, 1)}), flush=True)
    write(large, publishes, partitions, per_publish=max(1, publishes // 10))
    shutil.copytree(small, merged)
    before = files_of(merged)
    cpu = time.process_time()
    with sparklog.open(merged, create=False) as log:
        begin = time.perf_counter()
        report = optimize(log.metadata, SystemClock()).topics["t"]
        took = time.perf_counter() - begin
        log.metadata.write_snapshot()
    cpu = time.process_time() - cpu
    print(
        json.dumps(
            {
                "extents": [report.extents_before, report.extents_after],
                "merged MB": round(report.merged_bytes / 1e6),
                "MB/s": round(report.merged_bytes / 1e6 / took),
                "MB/s of CPU": round(report.merged_bytes / 1e6 / cpu),
                "files": [before[0], files_of(merged)[0]],
            }
        ),
        flush=True,
    )
    roots = {"small": small, "merged": merged, "at once": large}
    found = {
        name: [measured(root, publishes, seed) for seed in range(rounds)] for name, root in roots.items()
    }
    for name, figures in found.items():
        medians = {key: round(float(np.median([one[key] for one in figures])), 2) for key in figures[0]}
        print(json.dumps({"root": name, **medians}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--publishes", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parent", default=None, help="where the roots are made")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure), options.publishes, options.seed)))
        return
    with tempfile.TemporaryDirectory(dir=options.parent) as parent:
        run(Path(parent), options.publishes, options.partitions, options.rounds)


if __name__ == "__main__":
    main()
