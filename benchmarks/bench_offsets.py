"""What a million commits of consumer groups leave behind, where a broker looks after its root by itself.

A broker in a process of its own, with its default maintenance and without the network: its coordinator is
asked to commit, `--in-flight` at a time as with commitAsync, `--offsets` partitions each, by `--groups`
groups in turn. Its fsync is off: the disk is not measured. At ten points, and in the end, what is there:
extents and bytes of `__consumer_offsets`, and files. In the end, when nothing is due any more, also how long
the next broker takes until it answers for all groups (a process of its own, warm; without maintenance, so
that it changes nothing). Then once more, when a last round has compacted everything, and a vacuum has kept
nothing for slow writers. Live: what one record for each group and partition takes.

    python -m benchmarks.bench_offsets [--commits 1000000] [--groups 1] [--offsets 8] [--in-flight 64]
                                       [--parent DIR] [--no-maintenance]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import sparklog
from benchmarks.bench_year import METADATA, REST_SECONDS, VACUUM, files_of, is_anything_due
from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.maintenance import compact, optimize
from sparklog_server.broker import Broker
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.settings.config import ServerConfig

LOOKS = 10
OFFSETS = "__consumer_offsets"
_SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0"}


# --- a process each ------------------------------------------------------------------------------------


async def commit_all(root: Path, options: argparse.Namespace) -> None:
    """Commit; a line to standard output at each tenth."""
    os.fsync = lambda fd: None
    settings = _SETTINGS | ({"log.cleaner.enable": "false"} if options.no_maintenance else {})
    with sparklog.open(root) as log:
        log.create_topic("t", options.offsets)
        broker = Broker(ServerConfig.parse(settings), log, log.clock)
        await broker.start()
        await _answered(broker, options.groups)
        tenth = max(1, options.commits // LOOKS)
        done, numbers = 0, iter(range(options.commits))
        begin = time.perf_counter()

        async def work() -> None:
            nonlocal done
            for number in numbers:
                wanted = [
                    OffsetToCommit(topic="t", partition=partition, offset=number)
                    for partition in range(options.offsets)
                ]
                error = await broker.groups.commit(f"group-{number % options.groups}", wanted)
                assert error.value == 0, error
                done += 1
                if done % tenth == 0:
                    rate = round(done / (time.perf_counter() - begin))
                    print(json.dumps({"commits": done, "commits/s": rate}), flush=True)

        await asyncio.gather(*(work() for _ in range(options.in_flight)))
        if not options.no_maintenance:
            await _at_rest(log)
        await broker.stop(1000)


async def _at_rest(log: SparkLog) -> None:
    """Wait until the broker's maintenance has found everything to do that it does by itself."""
    end = time.monotonic() + REST_SECONDS
    while time.monotonic() < end:
        if not is_anything_due(log):
            return
        await asyncio.sleep(1)


async def _answered(broker: Broker, groups: int) -> None:
    """Wait until all groups are answered for."""
    for number in range(groups):
        while True:
            error, _ = broker.groups.fetch(f"group-{number}")
            if error.value == 0:
                break
            await asyncio.sleep(0.001)


async def load(root: Path, groups: int) -> dict[str, float]:
    """How long a broker takes."""
    settings = ServerConfig.parse(_SETTINGS | {"log.cleaner.enable": "false"})
    before = time.perf_counter()
    with sparklog.open(root, create=False) as log:
        opened, cpu = time.perf_counter(), time.process_time()
        broker = Broker(settings, log, log.clock)
        await broker.start()
        started = time.perf_counter()
        await _answered(broker, groups)
        loaded, cpu = time.perf_counter(), time.process_time() - cpu
        await broker.stop(1000)
    return {
        "open ms": round((opened - before) * 1000),
        "start ms": round((started - opened) * 1000),
        "load ms": round((loaded - started) * 1000),
        "start and load, CPU ms": round(cpu * 1000),
        "RSS MB": round(psutil.Process().memory_info().rss / 1e6),
    }


# --- looking --------------------------------------------------------------------------------------------


def look(root: Path) -> dict[str, float]:
    """What is there."""
    with sparklog.open(root, create=False) as log:
        extents, retained, live = _extents(log)
    segments, indexes, metadata = files_of(root)
    found: dict[str, float] = {
        "extents": extents,
        "extents KB": round(retained / 1e3, 1),
        "live KB": round(live / 1e3, 1),
        "segments": len(segments),
        "segments and indexes KB": round((sum(segments) + sum(indexes)) / 1e3, 1),
        f"{METADATA} files": len(metadata),
        f"{METADATA} KB": round(sum(metadata) / 1e3, 1),
    }
    return found


def loaded(root: Path, groups: int) -> dict[str, float]:
    """The quickest of a few brokers, one after the other."""
    words = [sys.executable, "-m", "benchmarks.bench_offsets", "--load", str(root), "--groups", str(groups)]
    rounds: list[dict[str, float]] = [
        json.loads(subprocess.run(words, check=True, capture_output=True).stdout) for _ in range(4)
    ]
    return min(rounds, key=lambda one: one["start ms"] + one["load ms"])


def _extents(log: SparkLog) -> tuple[int, int, int]:
    """How many, their bytes, and what the last record of each key would take (61 bytes of a batch apart)."""
    count = size = live = 0
    for state in log.image.topics[OFFSETS].partitions:
        columns = state.extents.columns_between(0, len(state.extents))
        count, size = count + len(columns), size + int(columns.column("size").sum())
        last: dict[bytes, int] = {}
        for batch in log.read_batches(OFFSETS, state.partition):
            for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                last[key] = len(key) + len(value or b"") + 8
        live += sum(last.values())
    return count, size, live


def run(root: Path, options: argparse.Namespace) -> None:
    words = [sys.executable, "-m", "benchmarks.bench_offsets", "--commit", str(root)]
    for name in ("commits", "groups", "offsets", "in_flight"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    words += ["--no-maintenance"] if options.no_maintenance else []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(json.dumps(json.loads(line) | look(root)), flush=True)
    assert process.returncode == 0
    left = {"then": "as it was left"} | look(root) | loaded(root, options.groups)
    print(json.dumps(left), flush=True)
    with sparklog.open(root, create=False) as log:
        begin = time.perf_counter()
        optimize(log.metadata, SystemClock())
        compact(log.metadata, SystemClock())
        took = time.perf_counter() - begin
        log.metadata.write_snapshot()
        log.metadata.clean(grace_ms=0)
    subprocess.run(
        [sys.executable, "-m", "sparklog", "--root", str(root), *VACUUM],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    then = f"compacted ({took:.2f} s), vacuumed"
    print(json.dumps({"then": then} | look(root) | loaded(root, options.groups)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--offsets", type=int, default=8, help="of each commit")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--parent", default=None, help="where the root is made")
    parser.add_argument("--no-maintenance", action="store_true")
    parser.add_argument("--commit", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.commit:
        asyncio.run(commit_all(Path(options.commit), options))
    elif options.load:
        print(json.dumps(asyncio.run(load(Path(options.load), options.groups))))
    else:
        with tempfile.TemporaryDirectory(dir=options.parent) as parent:
            run(Path(parent, "root"), options)


if __name__ == "__main__":
    main()
