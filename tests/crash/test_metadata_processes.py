"""Real processes that publish at once, and are killed at random and at every step of a put.

After all of it: every acknowledged publish is in the log once, at the offsets that were acknowledged;
offsets are dense; nothing is there twice; and every survivor made progress. Cleaning runs all the time.

SPARKLOG_SOAK_SECONDS makes it last longer.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparklog.clock import SystemClock
from sparklog.metadata import Extent, MetadataLog, new_id, plan_create_topic
from sparklog.metadata.documents.properties import DIRECTORY, commit_of
from sparklog.storage import open_store
from tests.support.broker_process import until

WORKER = Path(__file__).with_name("publish_worker.py")
PARTITIONS = 3
PUBLISHES = 30
SECONDS = float(os.environ.get("SPARKLOG_SOAK_SECONDS", "4"))


@dataclass(frozen=True)
class Ack:
    segment: str
    partition: int
    commit: int
    base_offset: int
    took_us: int


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    log = MetadataLog.open(open_store(path, create=True), SystemClock(), create=True)
    log.publish(lambda image: [plan_create_topic(image, "orders", PARTITIONS, topic_id=new_id())])
    yield path
    check(path, acks_in(tmp_path))


def start(root: Path, name: str, seconds: float, *more: str) -> "subprocess.Popen[bytes]":
    acks = root.parent / f"{name}.acks"
    return subprocess.Popen([sys.executable, str(WORKER), str(root), name, str(seconds), str(acks), *more])


def acks_in(directory: Path) -> dict[str, list[Ack]]:
    found: dict[str, list[Ack]] = {}
    for path in sorted(directory.glob("*.acks")):
        lines = path.read_text("ascii").split("\n")[:-1]  # a killed writer may leave half a line
        found[path.stem] = [Ack(line.split()[0], *map(int, line.split()[1:])) for line in lines]
    return found


def check(root: Path, acks: dict[str, list[Ack]]) -> None:
    store = open_store(root)
    image = MetadataLog.open(store, SystemClock()).image
    extents: dict[str, Extent] = {}
    for state in image.topic("orders").partitions:
        end = 0
        for extent in state.extents:
            assert extent.base_offset == end, "offsets are dense"
            assert extent.segment not in extents, "nothing is there twice"
            extents[extent.segment] = extent
            end = extent.end_offset
        assert state.log_end_offset == end
    everything = [ack for worker in acks.values() for ack in worker]
    for ack in everything:
        extent = extents[ack.segment]
        assert (extent.partition, extent.base_offset) == (ack.partition, ack.base_offset)
    assert len({ack.commit for ack in everything}) == len(everything), "no commit number was used twice"
    # One commit per extent, and one for the topic: there are no others.
    assert image.commit == len(extents)
    numbers = [number for file in store.list(DIRECTORY) if (number := commit_of(file.name)) is not None]
    assert numbers[0] == 0
    assert numbers[1:] == list(range(numbers[1], image.commit + 1)), "commits are dense"
    # Give what the killed left behind no chance to matter: it is swept, and changes nothing.
    store.sweep_temporary(older_than_ms=0)
    assert {path.name for path in (root / ".tmp").iterdir()} <= {"reserve"}
    assert MetadataLog.open(store, SystemClock()).image == image


def test_eight_processes_publish_at_once(root: Path, tmp_path: Path) -> None:
    """Nobody starves: each publishes often while all go on, and none waits for long. Shares are not compared:
    they tell which process was started first, and what else the machine does.
    """
    workers = [start(root, f"w{number}", SECONDS + 1000) for number in range(8)]
    end = time.monotonic() + SECONDS

    def all_have_published() -> bool:
        assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
        counts = [len(found) for found in acks_in(tmp_path).values()]
        return len(counts) == len(workers) and min(counts) >= PUBLISHES and time.monotonic() >= end

    try:
        until(all_have_published, SECONDS + 60, every_seconds=0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    acks = acks_in(tmp_path)
    slowest_ms = {name: max(ack.took_us for ack in found) / 1000 for name, found in acks.items()}
    print(f"publishes { {name: len(found) for name, found in acks.items()} }, slowest (ms) {slowest_ms}")
    assert max(slowest_ms.values()) < 15_000


def test_killed_at_random_moments(root: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("SPARKLOG_SEED", str(random.randrange(1 << 32))))
    print(f"SPARKLOG_SEED={seed}")
    rng = random.Random(seed)
    end = time.monotonic() + SECONDS
    workers = {f"w{number}": start(root, f"w{number}", 1000) for number in range(3)}
    kills = 0
    try:
        while kills < 2 or time.monotonic() < end:
            name = rng.choice(sorted(workers))
            wait_for_another_ack(tmp_path, name, workers[name])
            # Somewhere within its next publishes.
            spin_until = time.monotonic() + rng.uniform(0, 0.02)
            while time.monotonic() < spin_until:
                pass
            workers[name].kill()
            workers[name].wait()
            kills += 1
            workers[name] = start(root, name, 1000)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    print(f"{kills} kills")


def wait_for_another_ack(directory: Path, name: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    before = len(acks_in(directory).get(name, []))
    while len(acks_in(directory).get(name, [])) == before:
        assert process.poll() is None, "the worker died by itself"
        assert time.monotonic() < deadline, "no progress in a minute"
        os.sched_yield()


@pytest.mark.parametrize("point", ["temporary_synced", "guard_passed", "linked", "directory_synced"])
def test_killed_at_each_step_of_a_put(root: Path, tmp_path: Path, point: str) -> None:
    killed = start(root, "killed", 1000, point, "7")
    assert killed.wait(timeout=60) == -9
    acks = acks_in(tmp_path)["killed"]
    assert len(acks) == 6
    image = MetadataLog.open(open_store(root), SystemClock()).image
    made = sum(len(state.extents) for state in image.topic("orders").partitions)
    assert made == (7 if point in {"linked", "directory_synced"} else 6)  # absent, or whole
    assert len({path.name for path in (root / ".tmp").iterdir()} - {"reserve"}) == 1
    survivor = start(root, "survivor", 0.2)
    assert survivor.wait(timeout=60) == 0
