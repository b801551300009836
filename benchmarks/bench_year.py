"""A year of a root in an hour: small publishes without end, while maintenance runs.

One process publishes `--publishes` times `--records` records of 100 bytes, spread over `--partitions`
partitions: each time an extent in each, in the process's own segments. Its fsync is off: the disk is not
measured. Another runs `sparklog maintain --watch`. Ten times on the way a third opens the root, as somebody
would who comes along. At the end: what there is when nothing more is published, when the rounds have found
nothing to do any more, and after a last round of everything (`optimize`, and a `vacuum` that keeps nothing
for slow writers); and how long a scan takes, compared in turns with the same data written at once.

    python -m benchmarks.bench_year [--publishes 500000] [--partitions 8] [--records 80] [--parent DIR]
                                    [--interval 10s] [--no-maintenance]

`--segment-bytes BYTES` alone instead measures offsets found by time in one merged segment of that size.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import psutil

import sparklog
from benchmarks.bench_maintenance import RECORDS, START_MS, rows, scan, write
from sparklog.client import AppendOptions, SparkLog
from sparklog.clock import SystemClock
from sparklog.maintenance import Terms, due_steps, optimize

METADATA = "__cluster_metadata"
LOOKS = 10
REST_SECONDS = 600  # at most, in the end
VACUUM = ["vacuum", "--retain", "0s", "--force"]


# --- a process each ------------------------------------------------------------------------------------


def write_year(root: Path, publishes: int, partitions: int, records: int) -> dict[str, float]:
    """Latencies of publishes; a line to standard output at each tenth."""
    os.fsync = lambda fd: None
    took = np.empty(publishes)
    with sparklog.open(root) as log:
        log.create_topic("t", partitions)
        begin = time.perf_counter()
        for number in range(publishes):
            with log.appender(AppendOptions()) as appender:
                appender.add(rows(number * records, records, partitions), "t")
                part = appender.finish()
                start = time.perf_counter()
                log.publish([part])
                took[number] = (time.perf_counter() - start) * 1000
            if (number + 1) % max(1, publishes // LOOKS) == 0:
                print(json.dumps({"published": number + 1}), flush=True)
        seconds = time.perf_counter() - begin
    return {
        "publishes": publishes,
        "publishes/s": round(publishes / seconds),
        "publish p50 ms": round(float(np.percentile(took, 50)), 2),
        "publish p99 ms": round(float(np.percentile(took, 99)), 2),
        "publish p99.9 ms": round(float(np.percentile(took, 99.9)), 2),
        "publish max ms": round(float(took.max()), 1),
    }


def look(root: Path) -> dict[str, float]:
    """What somebody finds who opens it."""
    begin = time.perf_counter()
    with sparklog.open(root, create=False) as log:
        first = time.perf_counter() - begin
        memory = psutil.Process().memory_info().rss / 1e6
        states = log.image.topic("t").partitions
        extents = [len(state.extents) for state in states]
        retained = sum(int(state.extents.columns_between(0, count).column("size").sum())
                       for state, count in zip(states, extents, strict=True))  # fmt: skip
        commit = log.image.commit
    cpu = time.process_time()
    again = min(timed(lambda: sparklog.open(root, create=False)) for _ in range(5))
    cpu = (time.process_time() - cpu) / 5
    segments, indexes, metadata = files_of(root)
    return {
        "commit": commit,
        "extents of a partition, most": max(extents),
        "segments": len(segments),
        "index files": len(indexes),
        "metadata files": len(metadata),
        "retained MB": round(retained / 1e6, 1),
        "segments and indexes on disk / retained": round(
            (sum(segments) + sum(indexes)) / max(1, retained), 3
        ),
        "open ms": round(again * 1000, 1),
        "open, CPU ms": round(cpu * 1000, 1),
        "first open ms": round(first * 1000, 1),
        "RSS MB": round(memory, 1),
    }


def files_of(root: Path) -> tuple[list[int], list[int], list[int]]:
    """Sizes of segments, of their indexes, and of the metadata's files; of those that go meanwhile, none."""
    segments: list[int] = []
    indexes: list[int] = []
    metadata: list[int] = []
    for directory, _, names in os.walk(root):  # passes over directories that go
        for name in names:
            path = Path(directory, name)
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            if METADATA in path.relative_to(root).parts:
                metadata.append(size)
            elif path.suffix in {".index", ".timeindex"}:
                indexes.append(size)
            elif path.suffix == ".log":
                segments.append(size)
    return segments, indexes, metadata


def scanned(root: Path) -> dict[str, float]:
    with sparklog.open(root, create=False) as log:
        partitions = len(log.image.topic("t").partitions)
        scan(log, partitions)
        cpu = time.process_time()
        records = scan(log, partitions)
        return {"records": records, "cpu": time.process_time() - cpu}


def look_up(root: Path, segment_bytes: int) -> dict[str, float]:
    """Offsets by time in a merged segment."""
    publishes = -(-segment_bytes // (RECORDS * 105))
    write(root, publishes, 1, per_publish=max(1, publishes // 20))
    with sparklog.open(root, create=False) as log:
        optimize(log.metadata, SystemClock())
        (extent, *_) = log.image.topic("t").partitions[0].extents
        times = np.random.default_rng(0).integers(0, extent.record_count, 500) + START_MS
        took = [timed(partial(log.offset_for_time, "t", 0, int(one))) * 1000 for one in times]
    return {
        "segment MB": round(extent.size / 1e6),
        "by time, first ms": round(took[0], 2),
        "by time, median ms": round(float(np.median(took[1:])), 2),
        "by time, max ms": round(max(took[1:]), 2),
    }


# --- together ------------------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def apart(*words: str) -> dict[str, float]:
    """One of the functions above in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_year", *words]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    found: dict[str, float] = json.loads(lines[-1])
    return found


def is_anything_due(log: SparkLog) -> bool:
    """Would maintenance find something to do by itself?"""
    return next(due_steps(log.refresh(), log.clock.now_ms(), Terms()), None) is not None


def wait_for_rest(root: Path) -> bool:
    """Until maintenance has found everything to do that it does by itself. Has it, in REST_SECONDS?"""
    end = time.monotonic() + REST_SECONDS
    with sparklog.open(root, create=False) as log:
        while (due := is_anything_due(log)) and time.monotonic() < end:
            time.sleep(1)
    return not due


def sparklog_command(root: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "sparklog", "--root", str(root), *words]


def run(parent: Path, options: argparse.Namespace) -> None:
    root = parent / "year"
    shape = ["--publishes", str(options.publishes), "--partitions", str(options.partitions)]
    shape += ["--records", str(options.records)]
    writer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_year", "--write", str(root), *shape],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    keeper = None
    found: dict[str, float] = {}
    for line in writer.stdout:
        found = json.loads(line)
        if keeper is None and not options.no_maintenance:
            words = ["maintain", "--watch", "--interval", options.interval]
            keeper = subprocess.Popen(
                sparklog_command(root, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        if "published" in found:
            report("on the way", apart("--look", str(root)))
    if writer.wait():
        raise SystemExit("the writer failed")
    report("writer", found)
    if keeper is not None:
        usage = psutil.Process(keeper.pid).cpu_times()
        report("maintenance", {"CPU s": round(usage.user + usage.system, 1)})
        report("at the end", apart("--look", str(root)))
        rested = wait_for_rest(root)
        keeper.send_signal(signal.SIGTERM)
        keeper.wait()
        report("at rest" if rested else f"after {REST_SECONDS} s, not at rest", apart("--look", str(root)))
    else:
        report("at the end", apart("--look", str(root)))
    for words in (["optimize"], VACUUM):
        subprocess.run(sparklog_command(root, *words), check=True, stdout=subprocess.DEVNULL)
    report("after optimize and vacuum", apart("--look", str(root)))
    at_once = parent / "at-once"
    write_at_once(at_once, options)
    ratios = []
    for _ in range(options.rounds):
        small, large = apart("--scan", str(root)), apart("--scan", str(at_once))
        assert small["records"] == large["records"] == options.publishes * options.records
        ratios.append(small["cpu"] / large["cpu"])
    report("scan, CPU compared with data written at once", {"median": round(float(np.median(ratios)), 2),
           "least": round(min(ratios), 2), "most": round(max(ratios), 2)})  # fmt: skip


def write_at_once(root: Path, options: argparse.Namespace) -> None:
    total, step = options.publishes * options.records, 1_000_000
    with sparklog.open(root) as log:
        log.create_topic("t", options.partitions)
        with log.appender(AppendOptions()) as appender:
            for first in range(0, total, step):
                appender.add(rows(first, min(step, total - first), options.partitions), "t")
            log.publish([appender.finish()])


def report(what: str, figures: dict[str, float]) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--publishes", type=int, default=500_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--records", type=int, default=80, help="of a publish")
    parser.add_argument("--rounds", type=int, default=3, help="of the scan")
    parser.add_argument("--interval", default="10s", help="between rounds of maintenance")
    parser.add_argument("--no-maintenance", action="store_true")
    parser.add_argument("--segment-bytes", type=int, default=0)
    parser.add_argument("--parent", default=None, help="where the roots are made")
    for name in ("write", "look", "scan"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        print(json.dumps(write_year(options.write, options.publishes, options.partitions, options.records)))
    elif options.look:
        print(json.dumps(look(options.look)))
    elif options.scan:
        print(json.dumps(scanned(options.scan)))
    else:
        with tempfile.TemporaryDirectory(dir=options.parent) as parent:
            if options.segment_bytes:
                report("offset for time", look_up(Path(parent) / "segment", options.segment_bytes))
            else:
                run(Path(parent), options)


if __name__ == "__main__":
    main()
