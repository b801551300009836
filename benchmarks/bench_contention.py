"""Several brokers that publish to one root on an object store: each for itself, or for each other.

A store in memory answers as slowly as S3 does within its region, so that no processor is the limit; the
loser of a conditional PUT waits as long as it is told: as S3, which answers at once, or as stores that
serialise the writes of a name (SeaweedFS: a second or two). Brokers are threads; each leads a partition, and
publishes a group whenever the one before is done. The two ways take turns.

    python -m benchmarks.bench_contention [--seconds 5] [--rounds 3] [--brokers 1,2,4] [--writers 0,2]
                                          [--loser-ms 0,1500] [--rest-ms 0]
"""

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparklog.client import StagedAppend
from sparklog.client.publish import publish, share_accepted
from sparklog.clock import SystemClock
from sparklog.errors import AlreadyExistsError
from sparklog.metadata import (
    AcceptedDraft,
    Action,
    BrokerListener,
    DraftExtent,
    Image,
    MetadataLog,
    PartitionLeadership,
    new_id,
    plan_accepted,
    plan_assign_replicas,
    plan_create_topic,
    plan_elect_controller,
    plan_elect_leaders,
    plan_join_broker,
)
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits

MODEL_MS = {"put_if_absent": 30, "put_hint": 30, "list": 30, "open_read": 15, "exists": 15, "delete": 15}
TOPIC = "T" * 22


class ModelStore(MemoryStore):
    """As slow as S3; the loser of a race also waits for `loser_ms`."""

    def __init__(self, loser_ms: int) -> None:
        super().__init__("model", traits=StoreTraits(is_remote=True, appends_after_sync=False))
        self.loser_ms = loser_ms
        self.requests: Counter[str] = Counter()

    def put_if_absent(self, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        try:
            super().put_if_absent(name, data, guard=guard)
        except AlreadyExistsError:
            self.requests["lost races"] += 1
            time.sleep(self.loser_ms / 1000)
            raise

    def answer_slowly(self) -> None:
        """From now on."""

        def hook(operation: str, name: str) -> None:
            if operation in MODEL_MS:
                self.requests["requests"] += 1
                if operation != "open_read" or REQUESTS not in name:  # those are read in parallel
                    time.sleep(MODEL_MS[operation] / 1000)

        self.hook = hook


def found_root(store: ModelStore, brokers: int) -> list[int]:
    """As many brokers, each of which leads a partition, and a partition for writers; their broker epochs."""
    log = MetadataLog.open(store, SystemClock(), create=True)
    for node in range(brokers):
        log.publish(lambda image, node=node: [joining(image, node)])
    epochs = [log.image.brokers[node].broker_epoch for node in range(brokers)]
    log.publish(lambda image: some(plan_elect_controller(image, 0, epochs[0])))
    log.publish(lambda image: [plan_create_topic(image, "t", brokers + 1, topic_id=TOPIC)])
    places = [(TOPIC, partition) for partition in range(brokers)]
    replicas = PartitionLeadership(tuple(range(brokers)))
    log.publish(
        lambda image: some(plan_assign_replicas(image, dict.fromkeys(places, replicas), controller_epoch=1))
    )
    leaders = {place: node for node, place in enumerate(places)}
    log.publish(lambda image: some(plan_elect_leaders(image, leaders, controller_epoch=1)))
    return epochs


def joining(image: Image, node: int) -> Action:
    listeners = (BrokerListener(host="localhost", port=9092),)
    return plan_join_broker(image, node, incarnation_id=new_id(), listeners=listeners)


def some(action: Action | None) -> list[Action]:
    return [] if action is None else [action]


def draft(partition: int) -> DraftExtent:
    return DraftExtent(
        topic_id=TOPIC,
        partition=partition,
        segment=f"segments/{new_id()}/0.log",
        position=0,
        size=100,
        record_count=1,
        max_timestamp_ms=0,
    )


def publish_group(log: MetadataLog, node: int, epoch: int, *, combine: bool) -> None:
    """As a broker's publisher does, of one partition that it leads."""
    one = draft(node)
    parts = [AcceptedDraft(draft=one, leader_epoch=1, sent_timestamp_ms=0)]

    def plan(image: Image) -> Sequence[Action]:
        return plan_accepted(image, parts, node_id=node, broker_epoch=epoch)

    shared = share_accepted(log.image, lambda: parts, node_id=node, broker_epoch=epoch) if combine else None
    assert log.publish(plan, shared=shared).actions


def bench(
    brokers: int, writers: int, seconds: float, loser_ms: int, rest_ms: int, *, combine: bool
) -> dict[str, Any]:
    """Each rests for up to twice as long between two groups; `combine`: of the brokers, writers always do."""
    store = ModelStore(loser_ms)
    epochs = found_root(store, brokers)
    logs = [MetadataLog.open(store, SystemClock()) for _ in range(brokers + writers)]
    latencies: list[list[float]] = [[] for _ in logs]
    end = time.perf_counter() + seconds
    dice = random.Random(1)

    def work(number: int) -> None:
        while time.perf_counter() < end:
            time.sleep((MODEL_MS["put_if_absent"] + dice.uniform(0, 2 * rest_ms)) / 1000)  # the data
            begin = time.perf_counter()
            if number < brokers:
                publish_group(logs[number], number, epochs[number], combine=combine)
            else:
                publish(logs[number], [StagedAppend(drafts=(draft(brokers),))])
            latencies[number].append(time.perf_counter() - begin)

    before = logs[0].image.commit
    store.answer_slowly()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(logs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.hook = None
    image = logs[0].refresh(force=True)
    counts = [len(took) for took in latencies]
    assert sum(state.log_end_offset for state in image.topic("t").partitions) == sum(counts)
    took_ms = np.concatenate(latencies[:brokers]) * 1000
    return {
        "brokers": brokers,
        "writers": writers,
        "loser_ms": loser_ms,
        "rest_ms": rest_ms,
        "brokers_combine": combine,
        "groups_per_s": round(sum(counts[:brokers]) / seconds, 1),
        "p50_ms": round(float(np.percentile(took_ms, 50))),
        "p99_ms": round(float(np.percentile(took_ms, 99))),
        "max_ms": round(float(took_ms.max())),
        "fewest": min(counts[:brokers]),
        "most": max(counts[:brokers]),
        "writes_per_s": round(sum(counts[brokers:]) / seconds, 1),
        "commits": image.commit - before,
        "lost_races": store.requests["lost races"],
        "requests_per_publish": round(store.requests["requests"] / sum(counts), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", default="1,2,4")
    parser.add_argument("--writers", default="0,2")
    parser.add_argument("--loser-ms", default="0,1500")
    parser.add_argument("--rest-ms", type=int, default=0)
    options = parser.parse_args()
    for loser_ms in map(int, options.loser_ms.split(",")):
        for brokers in map(int, options.brokers.split(",")):
            for writers in map(int, options.writers.split(",")):
                for number in range(options.rounds):
                    for combine in (True, False) if number % 2 else (False, True):
                        result = bench(
                            brokers, writers, options.seconds, loser_ms, options.rest_ms, combine=combine
                        )
                        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
