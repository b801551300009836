"""What several brokers cost: 1, 2 and 4 over one root.

    python -m benchmarks.bench_cluster [--rounds 5] [--seconds 4] [--stores directory,s3] [--root DIR]

Each leads a partition, to which a producer of its own sends one record at a time and waits: acknowledged
requests a second of all, and how long each took. Everything is durable.
"""

import argparse
import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np

from tests.brokers.cluster import brokers
from tests.brokers.working import TOPIC
from tests.seaweed import SeaweedServer

STORES = ("directory", "s3")


def bench_count(store: str, count: int, seconds: float, parent: str) -> None:
    """As many brokers; the producer of each sends to a partition that it leads."""
    with placed(store, parent) as (root, directory, server):
        nodes = tuple(range(1, count + 1))
        settings = {"default.replication.factor": str(count), "offsets.topic.replication.factor": str(count)}
        with brokers(root, directory, nodes=nodes, server=server, settings=settings) as servers:
            leaders = servers.leaders()
            places = [leaders.index(node) for node in nodes]
            took = produced(servers.bootstrap, places, seconds)
    all_ms = np.concatenate(took) * 1000
    p50, p99 = np.percentile(all_ms, [50, 99])
    row: dict[str, Any] = {
        "store": store,
        "brokers": count,
        "acknowledged_per_s": round(len(all_ms) / seconds, 1),
        "fewest_per_s": round(min(map(len, took)) / seconds, 1),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
        "load": load(),
    }
    print(json.dumps(row), flush=True)


@contextlib.contextmanager
def placed(store: str, parent: str) -> Iterator[tuple[str, Path, SeaweedServer | None]]:
    """A root that does not exist yet, and a directory for what else is written."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        directory = Path(name)
        if store == "directory":
            yield str(directory / "log"), directory, None
            return
        server = SeaweedServer(directory / "seaweed")
        try:
            server.start()
            os.environ.update(server.environment)
            yield server.new_root(), directory, server
        finally:
            server.stop()


def produced(bootstrap: str, places: Sequence[int], seconds: float) -> list[list[float]]:
    """A thread for each; seconds until each record was acknowledged."""
    took: list[list[float]] = [[] for _ in places]
    barrier = threading.Barrier(len(places))

    def work(number: int) -> None:
        words = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        producer = confluent_kafka.Producer(words)

        def send() -> float:
            begin = time.perf_counter()
            producer.produce(TOPIC, b"%099d" % number, partition=places[number])
            assert producer.flush(60) == 0
            return time.perf_counter() - begin

        for _ in range(20):
            send()
        barrier.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            took[number].append(send())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def load() -> float:
    """Of the machine, in the last minute."""
    return round(os.getloadavg()[0], 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--root", default=tempfile.gettempdir(), help="on the file system to measure")
    options = parser.parse_args()
    for number in range(options.rounds):
        for store in options.stores.split(","):
            for count in (1, 2, 4) if number % 2 else (4, 2, 1):
                bench_count(store, count, options.seconds, options.root)


if __name__ == "__main__":
    main()
