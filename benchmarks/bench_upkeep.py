"""Upkeep of the metadata log: what publishers wait for, what is written, and what an opener reads.

    python -m benchmarks.bench_upkeep [--root DIR] [--publishes 50000] [--large 2100]

Two roots, published to by one process as fast as it can, durably: `--publishes` small commits (8 partitions,
an extent each), and `--large` commits of 256 extents. Latency is from the call of publish() to its return.
`open_ms` has everything imported, and the page cache warm; the best of five.
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import sparklog
from sparklog.metadata import DraftExtent, plan_append


def drafts_of(topic_id: str, partitions: int, extents: int, number: int) -> list[DraftExtent]:
    return [
        DraftExtent(
            topic_id=topic_id,
            partition=at % partitions,
            segment=f"segments/{'W' * 22}/{number:08d}.log",
            position=at * 100_000,
            size=100_000,
            record_count=1000,
            max_timestamp_ms=1_700_000_000_000 + number,
        )
        for at in range(extents)
    ]


def publish_all(root: str, publishes: int, partitions: int, extents: int) -> np.ndarray:
    """Latencies in ms."""
    took = np.empty(publishes)
    with sparklog.open(root) as log:
        log.create_topic("t", partitions)
        topic_id = log.image.topic("t").topic_id
        for number in range(publishes):
            drafts = drafts_of(topic_id, partitions, extents, number)
            begin = time.perf_counter()
            log.metadata.publish(partial(append, drafts))
            took[number] = (time.perf_counter() - begin) * 1000
    return took


def append(drafts, image):
    return [plan_append(image, drafts)]


def what_is_there(root: str) -> dict[str, float]:
    metadata = Path(root) / "__cluster_metadata"
    manifests = sorted(metadata.glob("*.snapshot/manifest.json"))
    last = int(manifests[-1].parent.name.split(".")[0]) if manifests else -1
    commits = {int(path.stem): path.stat().st_size for path in metadata.glob("*.json")}
    after = [size for commit, size in commits.items() if commit > last]
    return {
        "commits_kept": len(commits),
        "commits_mb": round(sum(commits.values()) / 1e6, 1),
        "snapshots_kept": len(manifests),
        "newest_snapshot": last,
        "commits_to_replay": len(after),
        "replay_mb": round(sum(after) / 1e6, 2),
    }


def open_ms(root: str) -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        sparklog.open(root, create=False)
        best = min(best, time.perf_counter() - begin)
    return best * 1000


def measure(root: str, publishes: int, partitions: int, extents: int) -> dict[str, float]:
    begin = time.perf_counter()
    took = publish_all(root, publishes, partitions, extents)
    seconds = time.perf_counter() - begin
    return {
        "publishes": publishes,
        "extents_each": extents,
        "seconds": round(seconds, 1),
        "p50_ms": round(float(np.percentile(took, 50)), 2),
        "p99_ms": round(float(np.percentile(took, 99)), 2),
        "p999_ms": round(float(np.percentile(took, 99.9)), 1),
        "max_ms": round(float(took.max()), 1),
        **what_is_there(root),
        "open_ms": round(open_ms(root), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=".", help="a directory on the file system to measure")
    parser.add_argument("--publishes", type=int, default=50_000)
    parser.add_argument("--large", type=int, default=2_100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.root, prefix="bench-upkeep-") as parent:
        for name, publishes, partitions, extents in (
            ("small", options.publishes, 8, 8),
            ("large", options.large, 16, 256),
        ):
            if publishes:
                result = measure(f"{parent}/{name}", publishes, partitions, extents)
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
