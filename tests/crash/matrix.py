"""The crash matrix: kill a writer at a failpoint, let it live again, go on, and check everything at the end.

A round: a victim with one failpoint armed works until that kills it; the next life of the same writer,
without a failpoint, must get on within 30 seconds. A bystander writes and reads all the time.
Checked in the end, from the stored bytes and what each writer was told:
    lost         an acknowledged operation is not there, or not where it was acknowledged
    duplicated   a value is there twice; a speculative attempt is there
    reordered    a writer's values are not in its order; offsets are not dense
    stuck        a life without progress within 30 seconds
    replay       some snapshot with the commits after it gives another image than the newest one has
    compacted    a key's last record is gone, or a deleted key is back (tables.py)
and by the history checker, from what every life wrote down.
Not here: what writers do (matrix_worker.py), which rows need more than a kill (test_matrix.py).
"""

import collections
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import sparklog
from sparklog.client import SparkLog
from sparklog.failpoints import FAILPOINTS
from sparklog.metadata import Image
from sparklog.metadata.documents.properties import DIRECTORY, manifest_of
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.loading import follow
from tests.crash.matrix_worker import PARTITIONS, ROWS, read_acked, values_of
from tests.crash.tables import TABLES, table_problems
from tests.history.checker import check
from tests.history.events import read_history
from tests.history.recorder import HistoryWriter

WORKER = Path(__file__).with_name("matrix_worker.py")
STUCK_SECONDS = 60
ROLES = ["embedded", "sink", "broker", "bystander"]
_KILLED = -signal.SIGKILL
_GROUP_PARTITIONS = {"embedded": range(PARTITIONS), "broker": range(1)}

# Which writers pass which failpoints; the n-th pass is drawn up to these bounds.
_LOCAL_ONLY = ("file.", "put.", "directory.", "sweep.")
_REMOTE_ONLY = ("s3.", "request.")
_NOT_REMOTE = ("cleaning.marked", "cleaning.aborted", "cleaning.removed")  # commits are kept for hours there
_MOST_PASSES = {
    "file.write.middle": 60,
    "directory.sync": 8,
    "put.": 12,
    "commit.": 8,
    "broker.registered": 1,
}
_BROKER_ONLY = ("broker.",)
_CLIENT_ONLY = ("task.", "publish.")
_EMBEDDED_ONLY = ("sweep.", "merge.", "compact.", "vacuum.")
_NOT_HERE = ("transaction.",)  # test_transaction_kill.py
_RARE = ("snapshot.", "cleaning.")  # every eighth commit, and not while another one writes them


class StuckError(AssertionError):
    """No progress in time."""


class Children:
    """The parent process of all writers; see matrix_worker.py."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.matrix_worker"],
            cwd=WORKER.parents[2],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._running: set[int] = set()

    def create(self, root: str, topics: list[str]) -> None:
        assert self._ask(120, create=root, topics=topics) == 0

    def start(self, **command: Any) -> int:
        pid = self._ask(STUCK_SECONDS, **command)
        self._running.add(pid)
        return pid

    def wait(self, pid: int, progress: Callable[[], object] | None = None) -> int:
        """The exit code. Without progress for a minute it is aborted, and shows where it was."""
        self._send(wait=pid)
        seen, stuck = None, False
        while (code := self._answer(STUCK_SECONDS)) is None:
            now = None if progress is None else progress()
            if now == seen:
                stuck = True
                os.kill(pid, signal.SIGABRT)
            seen = now
        self._running.discard(pid)
        if stuck:
            raise StuckError(f"no progress within {STUCK_SECONDS} s")
        return code

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def end_all(self) -> None:
        """Kill whoever is left."""
        for pid in list(self._running):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    def close(self) -> None:
        self.end_all()
        self._process.kill()
        with self._process:
            self._process.wait(30)

    def _ask(self, seconds: float, **words: Any) -> int:
        self._send(**words)
        answer = self._answer(seconds)
        if answer is None:
            raise StuckError(f"no answer within {seconds} s: {words}")
        return answer

    def _send(self, **words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, seconds: float) -> int | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return int(self._process.stdout.readline()) if ready else None


@dataclass
class Tally:
    """What a run did."""

    rounds: int = 0
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    not_reached: collections.Counter[str] = field(default_factory=collections.Counter)
    operations: int = 0
    slowest_recovery_s: float = 0.0
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = collections.Counter[int]()
        for name, count in self.kills.items():
            for row in FAILPOINTS.get(name, ((0,), ""))[0]:
                rows[row] += count
        return (
            f"{self.rounds} rounds, {sum(self.kills.values())} kills, {self.operations} operations, "
            f"slowest recovery {self.slowest_recovery_s:.2f} s, {len(self.anomalies)} anomalies\n"
            f"  kills by failpoint: {dict(sorted(self.kills.items()))}\n"
            f"  kills by row (0: at a random moment): {dict(sorted(rows.items()))}\n"
            f"  not reached: {dict(sorted(self.not_reached.items()))}"
        )


def cells(*, remote: bool) -> list[tuple[str, str]]:
    """(role, failpoint) for all pairs that can meet; "" is a random moment."""
    refused = (*_LOCAL_ONLY, *_NOT_REMOTE, *_NOT_HERE) if remote else (*_REMOTE_ONLY, *_NOT_HERE)
    found = []
    for role in ("embedded", "sink", "broker"):
        others = _CLIENT_ONLY if role == "broker" else _BROKER_ONLY
        found += [
            (role, name)
            for name in FAILPOINTS
            if not name.startswith((*refused, *others))
            and not (name.startswith(_EMBEDDED_ONLY) and role != "embedded")
        ]
        found.append((role, ""))
    return found


class Matrix:
    """A root, its writers, and the rounds."""

    def __init__(self, children: Children, root: str, directory: Path, seed: int, *, remote: bool) -> None:
        self.children = children
        self.root, self.directory, self.remote = root, directory, remote
        self.tally = Tally()
        self._dice = random.Random(seed)
        self._lives: collections.Counter[str] = collections.Counter()
        self._bystander = 0

    def __enter__(self) -> Self:
        self.children.create(self.root, ROLES)
        return self

    def __exit__(self, *_: object) -> None:
        self.children.end_all()

    def run(self, kills: int) -> None:
        """Rounds over all cells, in random order, until there were so many kills."""
        self._bystander = self.start("bystander", pause_ms=100 if self.remote else 20)
        wanted: list[tuple[str, str]] = []
        while sum(self.tally.kills.values()) < kills:
            if not wanted:
                wanted = cells(remote=self.remote)
                self._dice.shuffle(wanted)
            self.round(*wanted.pop())

    def round(self, role: str, point: str) -> None:
        """One kill, and the life after it."""
        self.tally.rounds += 1
        passes = self._dice.randint(1, self._most_passes(point))
        operations = (4 if self.remote else 8) if point else 1_000
        if point.startswith(_RARE):
            operations = 24 if role == "sink" else 12  # the others make three commits in each
        victim = self.start(role, fail=f"{point}:{passes}" if point else "", operations=operations)
        if not point:
            time.sleep(self._dice.uniform(0, 0.3))
            self.children.kill(victim)
        code = self._wait(role, victim)
        if code == _KILLED:
            self.tally.kills[point or "random moment"] += 1
        elif code == 0:
            self.tally.not_reached[point or "random moment"] += 1
        else:
            self._anomaly(f"{role} at {point}:{passes} ended with {code}")
        before = len(self.acked(role))
        began = time.monotonic()
        code = self._wait(role, self.start(role, operations=1))
        self.tally.slowest_recovery_s = max(self.tally.slowest_recovery_s, time.monotonic() - began)
        if code != 0 or len(self.acked(role)) != before + 1:
            self._anomaly(f"{role} after {point}:{passes} ended with {code}")

    def _wait(self, role: str, pid: int) -> int:
        try:
            return self.children.wait(pid, lambda: len(self.acked(role)))
        except StuckError as error:
            self._anomaly(f"stuck: {role}: {error}")
            return 0

    def finish(self) -> Tally:
        """The bystander must still get on; then everything is checked."""
        before = len(self.acked("bystander"))
        end = time.monotonic() + STUCK_SECONDS
        while len(self.acked("bystander")) < before + 3:
            if time.monotonic() > end:
                self._anomaly("stuck: the bystander does not get on")
                break
            time.sleep(0.02)
        self.children.kill(self._bystander)
        if (code := self.children.wait(self._bystander)) != _KILLED:
            self._anomaly(f"the bystander ended with {code}")
        with sparklog.open(self.root, create=False) as log:
            for role in ROLES:
                self.tally.operations += len(self.acked(role))
                for problem in problems_of(log, role, self.acked(role)):
                    self._anomaly(problem)
            for problem in replay_problems(log):
                self._anomaly(problem)
            self._check_history(log)
        return self.tally

    def _check_history(self, log: SparkLog) -> None:
        """What all lives have written down, and a last look at everything, before the history checker."""
        with HistoryWriter(self.directory / "final.jsonl", "final") as history:
            for role in ROLES:
                for p in range(PARTITIONS):
                    polling = history.poll(final=True)
                    tables = list(log.read_batches(role, p))
                    values = [value.decode() for table in tables for value in table["value"].to_pylist()]
                    offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
                    polling.ok({f"{role}-{p}": (values, offsets)})
        verdict = check(read_history(sorted(self.directory.rglob("*.jsonl"))))
        print(verdict)
        if verdict.counts:
            self._anomaly(f"history: {verdict.counts}")

    def start(self, role: str, **more: Any) -> int:
        """The next life of a writer; its process id."""
        self._lives[role] += 1
        directory = self.directory / role
        directory.mkdir(exist_ok=True)
        return self.children.start(
            role=role, root=self.root, directory=str(directory), life=self._lives[role], **more
        )

    def _most_passes(self, point: str) -> int:
        for prefix, most in _MOST_PASSES.items():
            if point.startswith(prefix):
                return most if not self.remote else min(most, 4)
        return 3

    def acked(self, role: str) -> list[dict[str, Any]]:
        """What a writer was told, in all its lives."""
        return read_acked(self.directory / role / "acked")

    def _anomaly(self, text: str) -> None:
        self.tally.anomalies.append(text)
        print("ANOMALY:", text, flush=True)


# --- checks ------------------------------------------------------------------------------------------


def problems_of(
    log: SparkLog, role: str, acked: list[dict[str, Any]], attempted: int | None = None
) -> list[str]:
    """What is wrong with a writer's topic, its table, and its group's offsets, after it was told `acked`;
    `attempted` operations may be there.
    """
    problems = []
    most = len(acked) + 1 if attempted is None else attempted
    for p in range(PARTITIONS):
        tables = list(log.read_batches(role, p))
        found = [value.decode() for table in tables for value in table["value"].to_pylist()]
        offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
        expected = [value for number in range(len(found) // ROWS + 1) for value in values_of(role, p, number)]
        if offsets != list(range(len(found))):
            problems.append(f"{role}-{p}: offsets are not dense")
        if len(set(found)) != len(found):
            problems.append(f"{role}-{p}: duplicated: {len(found) - len(set(found))} values")
        elif found != expected[: len(found)]:
            problems.append(f"{role}-{p}: reordered, or a gap")
        if not len(acked) * ROWS <= len(found) <= most * ROWS:
            problems.append(f"{role}-{p}: lost: {len(found)} values of {len(acked)} acknowledged operations")
        for one in acked:
            base = one["ranges"].get(str(p))
            if base is not None and found[base : base + ROWS] != values_of(role, p, one["number"]):
                problems.append(f"{role}-{p}: {one} is not where it was acknowledged")
    for p in _GROUP_PARTITIONS.get(role, ()):
        offset = log.committed_offsets(f"g-{role}").get((role, p), -1)
        # An append is acknowledged before its offset is: the last one may be missing.
        lowest = len(acked) - (2 if role == "embedded" else 1)
        if not lowest <= offset <= most:
            problems.append(f"{role}-{p}: committed offset {offset} after {len(acked)} operations")
    if role in TABLES:
        problems += table_problems(log, role, len(acked), most)
    return problems


def replay_problems(log: SparkLog) -> list[str]:
    """Every snapshot, with the commits that follow it, must give the newest image."""
    newest = log.refresh()
    names = [file.name for file in log.store.list(DIRECTORY, recursive=True)]
    problems = []
    for number in sorted({commit for name in names if (commit := manifest_of(name)) is not None}):
        image: Image = read_snapshot(log.store, number, cluster_id=log.cluster_id)
        image = follow(log.store, image)[0]
        # An old snapshot may be left, or be back after a power cut, without the commits that followed it.
        if image.commit == newest.commit and image != newest:
            problems.append(f"replay: snapshot {number} and what follows it give another image")
    return problems
