"""SIGKILL between the steps of transactions: what is copied is there once, in all topics, with its offsets.

Each point is one at which the process dies, and another one goes on: before anything is staged, between
appends and offsets, before and after the commit, whatever the storage does beneath.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog import failpoints
from sparklog.client import SparkLog
from tests.seaweed import SeaweedServer

WORKER = Path(__file__).with_name("transaction_worker.py")
RECORDS = 17  # more each time: four transactions, and a part of one
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
PARTITIONS = 3
LOCAL = ("put.guard_passed", "put.linked", "put.directory_synced", "directory.sync", "file.sync")
REMOTE = ("s3.put.before", "s3.put.answered")
ANYWHERE = (
    "transaction.begun",
    "transaction.staged",
    "transaction.committed",
    "task.staged",
    "segment.written",
    "commit.planned",
    "commit.created",
)


def run_worker(root: str, environment: dict[str, str], *, fail: str = "", flushes: bool) -> tuple[int, int]:
    """Its exit code, and the last offset that it was told is committed."""
    done = subprocess.run(
        [sys.executable, str(WORKER), root, str(int(flushes))],
        env={**os.environ, **environment, failpoints.VARIABLE: fail},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, int((done.stdout.split() or ["0"])[-1])


def numbers(log: SparkLog, topic: str) -> list[int]:
    if topic not in log.topics():
        return []
    found: list[int] = []
    for partition in range(log.partition_count(topic)):
        table = log.read(topic, partition, 0)
        assert table["offset"].to_pylist() == list(range(table.num_rows))  # no gaps
        found += [int(value) for value in table["value"].to_pylist()]
    return sorted(found)


def check_whole(log: SparkLog) -> int:
    """All topics and the offset tell of the same records; returns how many."""
    log.refresh()
    copied = log.committed_offsets("copy").get(("in", 0), 0)
    expected = list(range(copied))
    assert numbers(log, "all") == expected
    assert numbers(log, "even") == expected[::2]
    assert numbers(log, "odd") == expected[1::2]
    return copied


def kill_at_each(
    root: str, environment: dict[str, str], points: tuple[str, ...], dice: random.Random
) -> None:
    with sparklog.open(root) as log:
        log.create_topic("in", 1)
        for topic in ("even", "odd"):
            log.create_topic(topic, PARTITIONS)
        written, killed, acknowledged = 0, 0, 0
        for point in dice.sample(points, len(points)):
            log.append("in", pa.table({"value": [str(written + number) for number in range(RECORDS)]}))
            written += RECORDS
            flushes = dice.random() < 0.5
            nth = dice.randint(1, 3)
            code, told = run_worker(root, environment, fail=f"{point}:{nth}", flushes=flushes)
            killed += code != 0
            acknowledged = max(acknowledged, told)
            assert check_whole(log) >= acknowledged, point
        assert killed >= len(points) // 2
        assert run_worker(root, environment, flushes=False) == (0, written)
        assert check_whole(log) == written
        # Committed; or empty, if the last one found all copied by one that was killed after its commit.
        assert not log.image.transactions["copy"].is_ongoing
        assert not log.image.transactions.staged_extents


def test_killed_anywhere_on_a_directory(tmp_path: Path, report: Callable[[str], None]) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    kill_at_each(str(tmp_path / "log"), {}, (*ANYWHERE, *LOCAL), random.Random(SEED))


def test_killed_anywhere_on_an_object_store(s3_server: SeaweedServer, report: Callable[[str], None]) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    kill_at_each(s3_server.new_root(), s3_server.environment, (*ANYWHERE, *REMOTE), random.Random(SEED))
