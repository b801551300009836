"""A process that publishes until its time is up or it is killed; run by test_metadata_processes.py.

    publish_worker.py ROOT WORKER SECONDS ACKS [POINT NUMBER]

Writes one line to ACKS after every acknowledged publish: segment, partition, commit, base offset, latency
in microseconds. With POINT, kills itself at that step of the NUMBERth put of a commit.
"""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from sparklog.clock import SystemClock
from sparklog.metadata import (
    Action,
    AppendExtents,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    plan_append,
)
from sparklog.metadata.documents.properties import commit_of
from sparklog.storage import LocalStore


class DyingStore(LocalStore):
    """Kills its process at one step of one put."""

    point = ""
    countdown = 0

    def at_step(self, point: str, name: str) -> None:
        if point == self.point and commit_of(name) is not None:
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def plan(image: Image, draft: DraftExtent) -> list[Action]:
    return [plan_append(image, [draft])]


def main(root: str, worker: str, seconds: str, acks: str, point: str = "", number: str = "0") -> None:
    store = DyingStore(Path(root))
    store.point, store.countdown = point, int(number)
    # Many snapshots, and no grace for old commits: cleaning goes on all the time.
    settings = MetadataSettings(snapshot_bytes=50 * 4096, clean_grace_ms=0, clean_interval_ms=0)
    log = MetadataLog.open(store, SystemClock(), settings=settings)
    topic = log.image.topic("orders")
    count = 0
    end = time.monotonic() + float(seconds)
    with Path(acks).open("a", encoding="ascii") as file:
        while time.monotonic() < end:
            draft = DraftExtent(
                topic_id=topic.topic_id,
                partition=count % len(topic.partitions),
                segment=f"segments/{worker}-{os.getpid()}/{count}.log",
                position=0,
                size=100,
                record_count=count % 7 + 1,
                max_timestamp_ms=0,
            )
            begin = time.monotonic()
            result = log.publish(partial(plan, draft=draft))
            took_us = int((time.monotonic() - begin) * 1e6)
            action = result.actions[0]
            assert isinstance(action, AppendExtents)
            extent = action.extents[0]
            file.write(
                f"{extent.segment} {extent.partition} {result.commit} {extent.base_offset} {took_us}\n"
            )
            file.flush()
            count += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
