"""Publishing: commits/s and latency with 1, 2, 4, 8 competing processes; opening and polling.

Every commit is durable (file and directory fsynced) before it counts. Latency is from the call of
publish() to its return. Beside each run: the fsync of the same machine at the same time, as a baseline.

    python benchmarks/bench_publish.py [--root DIR] [--seconds 5] [--processes 1,2,4,8]
"""

import argparse
import json
import multiprocessing as mp
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from sparklog.clock import SystemClock
from sparklog.metadata import DraftExtent, MetadataLog, new_id, plan_append, plan_create_topic
from sparklog.storage import open_store


def draft(topic_id: str, partition: int, worker: int, number: int) -> DraftExtent:
    return DraftExtent(
        topic_id=topic_id,
        partition=partition,
        segment=f"segments/w{worker}/{number // 1000}.log",
        position=number % 1000 * 1000,
        size=1000,
        record_count=10,
        max_timestamp_ms=0,
    )


def publish_for(root, topic_id, worker, seconds, extents, start, results):
    log = MetadataLog.open(open_store(root), SystemClock())
    start.wait()
    latencies = []
    end = time.perf_counter() + seconds
    number = 0
    while (begin := time.perf_counter()) < end:
        drafts = [draft(topic_id, partition, worker, number) for partition in range(extents)]
        log.publish(lambda image, drafts=drafts: [plan_append(image, drafts)])
        latencies.append(time.perf_counter() - begin)
        number += 1
    results.put((worker, latencies))


def fsync_ms(root: str) -> float:
    path = Path(root) / "fsync-probe"
    took = []
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"x" * 300)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begin)
    path.unlink()
    return float(np.percentile(took, 50)) * 1000


def bench_publish(parent: str, processes: int, seconds: float, extents: int) -> dict[str, float]:
    root = tempfile.mkdtemp(dir=parent)
    log = MetadataLog.open(open_store(root), SystemClock(), create=True)
    topic_id = new_id()
    log.publish(lambda image: [plan_create_topic(image, "t", max(extents, 1), topic_id=topic_id)])
    context = mp.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=publish_for, args=(root, topic_id, n, seconds, extents, start, results))
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    collected = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    latency = np.concatenate([took for _, took in collected]) * 1000
    counts = [len(took) for _, took in collected]
    assert log.refresh().commit == sum(counts)
    return {
        "processes": processes,
        "commits_per_s": round(sum(counts) / seconds),
        "p50_ms": round(float(np.percentile(latency, 50)), 2),
        "p95_ms": round(float(np.percentile(latency, 95)), 2),
        "p99_ms": round(float(np.percentile(latency, 99)), 2),
        "max_ms": round(float(latency.max()), 1),
        "fewest_per_process": min(counts),
        "most_per_process": max(counts),
        "fsync_p50_ms": round(fsync_ms(root), 3),
    }


def bench_open(parent: str, extents: int) -> dict[str, float]:
    """A root with `extents` extents: snapshot, opening with 256 commits to replay, polling."""
    root = tempfile.mkdtemp(dir=parent)
    log = MetadataLog.open(open_store(root), SystemClock(), create=True)
    topic_id, partitions, number = new_id(), 100, 0
    log.publish(lambda image: [plan_create_topic(image, "t", partitions, topic_id=topic_id)])
    while number < extents:
        count = min(10_000, extents - number)
        drafts = [draft(topic_id, p % partitions, 0, number + p) for p in range(count)]
        log.publish(lambda image, drafts=drafts: [plan_append(image, drafts)])
        number += len(drafts)
    begin = time.perf_counter()
    log.write_snapshot()
    write = time.perf_counter() - begin
    begin = time.perf_counter()
    MetadataLog.open(open_store(root), SystemClock())
    plain = time.perf_counter() - begin
    publishes = []
    for _ in range(256):
        drafts = [draft(topic_id, 0, 0, number)]
        begin = time.perf_counter()
        log.publish(lambda image, drafts=drafts: [plan_append(image, drafts)])
        publishes.append(time.perf_counter() - begin)
        number += 1
    begin = time.perf_counter()
    opened = MetadataLog.open(open_store(root), SystemClock())
    replay = time.perf_counter() - begin
    assert opened.image.commit == log.image.commit
    begin = time.perf_counter()
    for _ in range(10_000):
        opened.refresh()
    poll = (time.perf_counter() - begin) / 10_000
    return {
        "extents": extents,
        "publish_s": round(float(np.median(publishes)), 5),
        "write_snapshot_ms": round(write * 1000, 1),
        "open_from_snapshot_ms": round(plain * 1000, 1),
        "open_and_replay_256_ms": round(replay * 1000, 1),
        "idle_refresh_us": round(poll * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=".", help="a directory on the file system to measure")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--extents", type=int, default=4, help="extents per commit")
    parser.add_argument("--open", default="100000,1000000", help="numbers of extents to open a root with")
    options = parser.parse_args()
    # Roots are removed at the end: ext4 passes over inodes that were freed lately, and to create a file takes
    # ten times as long after some thousands were removed (before/after comparisons measured that alone).
    with tempfile.TemporaryDirectory(dir=options.root, prefix="bench-publish-") as parent:
        for processes in filter(None, options.processes.split(",")):
            result = bench_publish(parent, int(processes), options.seconds, options.extents)
            print(json.dumps(result), flush=True)
        for extents in filter(None, options.open.split(",")):
            print(json.dumps(bench_open(parent, int(extents))), flush=True)


if __name__ == "__main__":
    main()
