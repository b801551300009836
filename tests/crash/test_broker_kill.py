"""SIGKILL of the broker under load, again and again: idempotent producers, a consumer group, and writers that
need no broker, all on one topic.

Every acknowledged record is there once, where it was acknowledged; each producer's records are in its order;
the group resumes, sees every record, and its offsets never go back.
SPARKLOG_CHAOS_ROUNDS sets the number of kills (make chaos: 4), SPARKLOG_SEED repeats a run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sparklog
from sparklog.client import SparkLog
from tests.compat.embedded import stored_records
from tests.crash.broker_workers import PARTITIONS, PATIENCE_S
from tests.support.broker_process import BrokerProcess, serving, until

ROUNDS = int(os.environ.get("SPARKLOG_CHAOS_ROUNDS", "2"))
SEED = int(os.environ.get("SPARKLOG_SEED", str(random.SystemRandom().randrange(1 << 31))))
TOPIC, GROUP = "t", "g"
SCRIPT = Path(__file__).with_name("broker_workers.py")


class Worker:
    """One process of broker_workers.py, and the files that it writes: one for each life."""

    def __init__(self, role: str, target: str, name: str, path: Path) -> None:
        self.role, self.target, self.name, self._path = role, target, name, path
        self._files: list[Path] = []
        self.start()

    def start(self) -> None:
        path = self._path.with_suffix(f".{len(self._files)}")
        path.touch()
        self._files.append(path)
        words = [sys.executable, str(SCRIPT), self.role, self.target, TOPIC, self.name, str(path)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def lines(self) -> list[list[str]]:
        """What was written: whole lines only, since the process may have been killed."""
        texts = [path.read_text("ascii").rpartition("\n")[0] for path in self._files]
        return [line.split() for text in texts for line in text.splitlines()]

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._files)

    def end(self) -> None:
        """SIGTERM, and wait until all that it has begun is done."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, f"{self.name}: {errors}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@contextmanager
def working(directory: Path, *workers: tuple[str, str, str]) -> Iterator[list[Worker]]:
    """Workers that are gone afterwards."""
    started = [Worker(*words, directory / f"worker-{n}") for n, words in enumerate(workers)]
    try:
        yield started
    finally:
        for one in started:
            if one.process.poll() is None:
                one.kill()


def kill_in_the_middle(server: BrokerProcess, workers: list[Worker], dice: random.Random) -> float:
    """Once all have got on, and a random moment later; returns after all have got on again: the seconds."""
    sizes = {one: one.size() for one in workers}
    until(lambda: all(one.size() > sizes[one] for one in workers), 60, "all workers get on")
    try:
        server.process.wait(dice.uniform(0.05, 0.6))
    except subprocess.TimeoutExpired:
        server.kill()
    else:
        pytest.fail(f"the broker ended by itself\n{server.errors()}")
    sizes = {one: one.size() for one in workers}
    started = time.monotonic()
    server.start()
    until(lambda: all(one.size() > sizes[one] for one in workers), 60, "all workers get on after a kill")
    return time.monotonic() - started


def check_log(log: SparkLog, producers: list[Worker], writers: list[Worker]) -> dict[tuple[int, int], str]:
    """Everything there is once and in order; (partition, offset) -> value."""
    found: dict[tuple[int, int], str] = {}
    sequences: dict[tuple[str, int], list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for record in stored_records(log, TOPIC, partition):
            value = (record.value or b"").decode()
            found[partition, record.offset] = value
            name, named_partition, sequence = value.split("/")
            assert int(named_partition) == partition
            sequences[name, partition].append(int(sequence))
    for key, there in sequences.items():
        assert there == list(range(len(there))), key
    for one in producers:
        acknowledged = [(int(p), int(offset), value) for p, offset, value in one.lines()]
        assert acknowledged
        assert all(found[p, offset] == value for p, offset, value in acknowledged)
        # It has ended, so that all it ever produced is acknowledged: nothing is there beside that.
        assert len(acknowledged) == sum(len(sequences[one.name, p]) for p in range(PARTITIONS))
    for one in writers:
        versions = [int(version) for (version,) in one.lines()]
        assert versions == sorted(versions)
        assert log.image.topic(TOPIC).writer_txns[one.name].version in {versions[-1], versions[-1] + 1}
    return found


def check_group(log: SparkLog, consumers: list[Worker], found: dict[tuple[int, int], str]) -> None:
    """The members saw everything, and nothing else."""
    seen = {(int(p), int(offset)): value for one in consumers for p, offset, value in one.lines() if value}
    assert seen == found


@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize("writer_count", [pytest.param(0, marks=pytest.mark.exhaustive), 4])
def test_kills_under_load(tmp_path: Path, writer_count: int, report: Callable[[str], None]) -> None:
    report(f"SPARKLOG_SEED={SEED}")
    dice = random.Random(SEED)
    settings = {
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
    }
    root = tmp_path / "log"
    with serving(root, settings) as server, sparklog.open(str(root), create=False) as log:
        log.create_topic(TOPIC, PARTITIONS)
        words = [("produce", server.bootstrap, f"p{n}") for n in range(2)]
        words += [("consume", server.bootstrap, GROUP)] * 2
        words += [("append", str(root), f"w{n}") for n in range(writer_count)]
        with working(tmp_path, *words) as workers:
            producers, consumers, writers = workers[:2], workers[2:4], workers[4:]
            committed: dict[tuple[str, int], int] = {}
            for number in range(ROUNDS):
                recovery_s = kill_in_the_middle(server, producers + consumers[:1] + writers, dice)
                report(f"round {number}: all got on {recovery_s:.1f} s after the start of the broker")
                for one in [*dice.sample(writers, writer_count // 4), *consumers[1:][: number % 2]]:
                    one.kill()
                    one.start()
                now = log.committed_offsets(GROUP)
                assert all(now[key] >= offset for key, offset in committed.items()), (committed, now)
                committed = now
            for one in producers + writers:
                one.end()
            ends = {(TOPIC, p): log.log_end_offset(TOPIC, p) for p in range(PARTITIONS)}
            until(lambda: log.committed_offsets(GROUP) == ends, 60, "the group has read everything")
            for one in consumers:
                one.end()
            check_group(log, consumers, check_log(log, producers, writers))
        assert server.stop() == 0, server.errors()
