"""What a partition costs: appends of a few rows to each of many partitions, their commits, their replay.

    python -m benchmarks.bench_partitions [--partitions 1024] [--rows 1] [--compare DIR ...] [--rounds 7]

Each round runs every tree once, in a process of its own, in turns, the order turning too: this tree, and
those given with --compare (worktrees of older commits). CPU is the process's, of all its threads. Figures are
medians over the rounds, with the lowest and the highest.

    --profile      what an append's CPU goes into, function by function, instead of the figures
    --codec lz4    compress
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent.parent
TOPIC = "wide"
WARM_APPENDS = 3
FIGURES = (
    "append_cpu_ms",
    "stage_cpu_ms",
    "publish_cpu_ms",
    "append_ms",
    "commit_bytes",
    "data_bytes",
    "replay_cpu_ms",
)


def table(partitions: int, rows: int, value_bytes: int, *, seed: int = 1) -> pa.Table:
    """So many rows for each partition, in no order of partitions; sizes and times differ."""
    random = np.random.default_rng(seed)
    count = partitions * rows
    sizes = random.integers(value_bytes // 2, value_bytes * 3 // 2, count).tolist()
    times = 1_700_000_000_000 + random.integers(0, 1000, count)
    return pa.table(
        {
            "key": pa.array([b"key-%d" % number for number in range(count)], pa.binary()),
            "value": pa.array([random.bytes(size) for size in sizes], pa.binary()),
            "partition": pa.array(random.permutation(count) % partitions, pa.int32()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )


def uneven(partitions: int) -> pa.Table:
    """Between none and 999 rows for each partition: so that ends differ afterwards, as they do anywhere."""
    random = np.random.default_rng(2)
    partition = np.repeat(np.arange(partitions), random.integers(0, 1000, partitions))
    return pa.table({"value": pa.nulls(len(partition), pa.binary()), "partition": partition})


def cpu_ms(work: Callable[[], object], times: int) -> float:
    """The CPU of one call."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) * 1000 / times


def measure(options: argparse.Namespace) -> dict[str, float]:
    """The figures of the tree that this process imports."""
    import sparklog
    from sparklog.client import AppendOptions, StagedAppend

    rows = table(options.partitions, options.rows, options.value_bytes)
    with tempfile.TemporaryDirectory(dir=options.root, prefix="bench-partitions-") as parent:
        root = Path(parent) / "root"
        log = sparklog.open(str(root), create=True)
        log.create_topic(TOPIC, options.partitions)
        log.append(TOPIC, uneven(options.partitions))

        def stage() -> StagedAppend:
            with log.appender(AppendOptions(compression=options.codec)) as appender:
                appender.add(rows, TOPIC)
                return appender.finish()

        def append() -> None:
            log.append(TOPIC, rows, compression_type=options.codec)

        for _ in range(WARM_APPENDS):
            append()
        before = data_bytes(root)
        begin = time.perf_counter()
        append_cpu = cpu_ms(append, options.appends)
        append_ms = (time.perf_counter() - begin) * 1000 / options.appends
        written = (data_bytes(root) - before) / options.appends
        staged = [stage() for _ in range(options.appends)]
        stage_cpu = cpu_ms(stage, options.appends)
        publish_cpu = cpu_ms(lambda: log.publish([staged.pop()]), options.appends)
        newest = max((root / "__cluster_metadata").glob("*.json"))
        for _ in range(options.commits - 2 * options.appends - WARM_APPENDS - 2):
            append()
        log.close()
        for snapshot in (root / "__cluster_metadata").glob("*.snapshot"):
            shutil.rmtree(snapshot)  # so that opening replays all commits
        opened = cpu_ms(lambda: sparklog.open(str(root), create=False).close(), 3)
        return {
            "append_cpu_ms": round(append_cpu, 1),
            "stage_cpu_ms": round(stage_cpu, 1),
            "publish_cpu_ms": round(publish_cpu, 1),
            "append_ms": round(append_ms, 1),
            "commit_bytes": newest.stat().st_size,
            "data_bytes": round(written),
            "replay_cpu_ms": round(opened, 1),
        }


def data_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "segments").rglob("*.log"))


def profile(options: argparse.Namespace) -> str:
    """Where an append's CPU goes, by the functions' own time."""
    import sparklog

    rows = table(options.partitions, options.rows, options.value_bytes)
    with tempfile.TemporaryDirectory(dir=options.root, prefix="bench-partitions-") as parent:
        log = sparklog.open(str(Path(parent) / "root"), create=True)
        log.create_topic(TOPIC, options.partitions)
        log.append(TOPIC, uneven(options.partitions))
        for _ in range(WARM_APPENDS):
            log.append(TOPIC, rows, compression_type=options.codec)
        profiler = cProfile.Profile(time.process_time)
        profiler.enable()
        for _ in range(options.appends):
            log.append(TOPIC, rows, compression_type=options.codec)
        profiler.disable()
        log.close()
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text).strip_dirs()
    stats.sort_stats("tottime").print_stats(25)
    stats.sort_stats("cumulative").print_stats(25)
    return text.getvalue()


def run(tree: Path, arguments: list[str]) -> str:
    """This script by itself, on another tree."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--one", str(tree), *arguments],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def one(options: argparse.Namespace) -> None:
    import sparklog

    found = Path(sparklog.__file__).resolve().parent.parent
    assert found == Path(options.one), f"{found} was imported instead of {options.one}"
    print(profile(options) if options.profile else json.dumps(measure(options)))


def rounds(options: argparse.Namespace, arguments: list[str]) -> None:
    trees = [HERE, *(Path(name).resolve() for name in options.compare)]
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    for number in range(options.rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            found[tree].append(json.loads(run(tree, arguments)))
    for tree, measured in found.items():
        row: dict[str, object] = {
            "tree": tree.name,
            "partitions": options.partitions,
            "rows": options.rows,
            "codec": options.codec,
        }
        for name in FIGURES:
            values = sorted(one[name] for one in measured)
            middle = values[len(values) // 2]
            row[name] = middle if values[0] == values[-1] else f"{middle} ({values[0]} to {values[-1]})"
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", default=".", help="a directory on the file system to measure")
    parser.add_argument("--partitions", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=1, help="of each partition in an append")
    parser.add_argument("--value-bytes", type=int, default=88)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--appends", type=int, default=10, help="that are measured together")
    parser.add_argument("--commits", type=int, default=100, help="that opening replays")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compare", nargs="*", default=[], metavar="DIR", help="other trees to run in turns")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    options.root = str(Path(options.root).resolve())
    names = ("root", "partitions", "rows", "value_bytes", "codec", "appends", "commits")
    arguments = [
        word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))
    ]
    if options.profile:
        for tree in [HERE, *(Path(name).resolve() for name in options.compare)]:
            print(f"== {tree.name}\n{run(tree, [*arguments, '--profile'])}")
        return
    rounds(options, arguments)


if __name__ == "__main__":
    main()
