"""A streaming write killed with SIGKILL at random moments writes every row exactly once, in order.

A bystander reads the topic all the while, and the history checker judges what it has seen.

SPARKLOG_CHAOS_ROUNDS sets the number of kills (make chaos: 4), SPARKLOG_SEED repeats a run.
Even rounds kill a Python worker: the driver lives, and starts the query again if it fails by that. Odd ones
kill the driver with everything below it.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.history.checker import check
from tests.history.events import read_history
from tests.history.recorder import HistoryWriter
from tests.history.verdict import Name

JOB = Path(__file__).with_name("streaming_job.py")
ROUNDS = int(os.environ.get("SPARKLOG_CHAOS_ROUNDS", "2"))
KEYS = 50
ROWS = 30_000 + 20_000 * ROUNDS
MAX_OFFSETS = 1_000

# Only what hangs is meant: on a machine that others use a job may take minutes to start.
HUNG_SECONDS = 600

pytestmark = [pytest.mark.spark, pytest.mark.timeout(HUNG_SECONDS * (ROUNDS + 2))]

Job = subprocess.Popen[bytes]


def fill(log: SparkLog) -> None:
    log.create_topic("in", partitions=4)
    for start in range(0, ROWS, 20_000):
        ids = range(start, min(start + 20_000, ROWS))
        table = {"key": [b"key-%d" % (i % KEYS) for i in ids], "value": [b"%d" % i for i in ids]}
        log.append("in", pa.table(table))


def written(log: SparkLog) -> int:
    topic = log.refresh().topics.get("out")
    return sum(p.log_end_offset for p in topic.partitions) if topic else 0


def grown(log: SparkLog, before: int) -> bool:
    return written(log) > before


def start(root: str, checkpoint: str, said: Path, *flags: str) -> Job:
    """The job in a process of its own; what it prints goes to the file `said`."""
    with said.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(JOB), root, checkpoint, *flags],
            start_new_session=True, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def kill_group(process: Job) -> None:
    """The driver, its JVM and all Python workers, however they were started."""
    below = children(process)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(30)
    psutil.wait_procs(below, timeout=30)


def children(process: Job) -> list[psutil.Process]:
    try:
        below: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return below


def kill_a_worker(process: Job, rng: random.Random) -> None:
    """One of Spark's Python processes; the query may fail by it."""
    workers = [p for p in children(process) if is_worker(cmdline(p))]
    if workers:
        rng.choice(workers).kill()


def is_worker(words: list[str]) -> bool:
    return "pyspark" in " ".join(words) and "java" not in words[0]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return [""]
    return words or [""]


class Bystander:
    """Reads topic out while it is written, in a thread, and records what it sees."""

    def __init__(self, root: str, histories: Path) -> None:
        self._log = sparklog.open(root, create=False)
        self._ends: dict[int, int] = {}
        self._history = HistoryWriter(histories / "bystander.jsonl", "bystander")
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bystander")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.05):
                read_on(self._log, self._history, self._ends)
        except BaseException as error:
            self._failure = error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._history.close()
        if self._failure is not None:
            raise self._failure


def read_on(log: SparkLog, history: HistoryWriter, ends: dict[int, int], *, final: bool = False) -> None:
    """Poll every partition of topic out from where the last poll ended."""
    topic = log.refresh().topics.get("out")
    for partition in range(len(topic.partitions) if topic else 0):
        polling = history.poll(final=final)
        values: list[str] = []
        offsets: list[int] = []
        for rows in log.read_batches("out", partition, ends.get(partition, 0)):
            keys = map(bytes.decode, rows.column("key").to_pylist())
            numbers = map(bytes.decode, rows.column("value").to_pylist())
            values += [f"out/{key}/{number}" for key, number in zip(keys, numbers, strict=True)]
            offsets += rows.column("offset").to_pylist()
        if offsets or final:
            polling.ok({f"out-{partition}": (values, offsets)})
            ends[partition] = offsets[-1] + 1 if offsets else 0


class Senders:
    """What the query is to write, as the sends of one process per key: a key keeps its order."""

    def __init__(self, histories: Path) -> None:
        self._histories = [HistoryWriter(histories / f"key-{n}.jsonl", f"key-{n}") for n in range(KEYS)]
        self._sending = [
            history.send({"out": [f"out/{history.name}/{row}" for row in range(number, ROWS, KEYS)]})
            for number, history in enumerate(self._histories)
        ]

    def done(self) -> None:
        """The query has ended: all of it is acknowledged."""
        for sending, history in zip(self._sending, self._histories, strict=True):
            sending.ok()
            history.close()


def wait_for(condition: Callable[[], bool], process: Job, seconds: float = HUNG_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            return False
        signal.sigtimedwait([], 0.02)
    return True


def test_killed_at_random_moments_every_row_arrives_once_and_in_order(
    root: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("SPARKLOG_SEED", random.SystemRandom().randrange(2**32)))
    report(f"SPARKLOG_SEED={seed}")
    rng = random.Random(seed)
    log = sparklog.open(root, create=True)
    fill(log)
    checkpoint = str(tmp_path / "checkpoint")
    histories = tmp_path / "histories"
    histories.mkdir()
    said = tmp_path / "said by the job"
    senders = Senders(histories)
    bystander = Bystander(root, histories)
    interrupted = 0
    try:
        for lives in range(0, ROUNDS, 2):
            process = start(root, checkpoint, said, str(MAX_OFFSETS))
            try:
                for number in range(lives, min(lives + 2, ROUNDS)):
                    before = written(log)
                    going = wait_for(partial(grown, log, before), process)
                    assert going, f"the query makes no progress: {said.read_text()[-3000:]}"
                    signal.sigtimedwait([], rng.uniform(0, 1.5))
                    if number % 2:
                        kill_group(process)
                    else:
                        kill_a_worker(process, rng)
                    interrupted += before < written(log) < ROWS
                    report(f"round {number}: killed at {written(log)} of {ROWS} rows")
            finally:
                kill_group(process)
        assert interrupted == ROUNDS, "a kill came too late to interrupt anything"
        process = start(root, checkpoint, said, "20000", "--once")
        try:
            assert process.wait(HUNG_SECONDS) == 0, said.read_text()[-3000:]
        finally:
            kill_group(process)
        senders.done()
    finally:
        bystander.stop()
    verify(log)
    with HistoryWriter(histories / "last.jsonl", "last") as history:
        read_on(log, history, {}, final=True)
    verdict = check(read_history(sorted(histories.glob("*.jsonl"))))
    # A key's rows are one send that lasts as long as the query: those of different keys overlap in circles.
    assert verdict.names <= {Name.G0}, verdict
    assert verdict.acknowledged == ROWS
    assert verdict.read == ROWS
    report(f"{ROUNDS} kills, {ROWS} rows: none lost, none doubled; {verdict}")


def verify(log: SparkLog) -> None:
    log.refresh()
    everything = []
    for partition in range(len(log.image.topics["out"].partitions)):
        table = log.read("out", partition, 0)
        offsets = table["offset"].to_pylist()
        assert offsets == list(range(len(offsets))), "offsets are not dense"
        last: dict[bytes, int] = {}
        for key, value in zip(table["key"].to_pylist(), map(int, table["value"].to_pylist()), strict=True):
            assert value > last.get(key, -1), f"{key} goes back from {last[key]} to {value}"
            last[key] = value
            everything.append(value)
    once = set(everything)
    assert len(everything) == len(once), f"{len(everything) - len(once)} rows came twice"
    assert sorted(everything) == list(range(ROWS)), f"{ROWS - len(once)} rows are missing"
