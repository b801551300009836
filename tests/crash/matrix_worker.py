"""Processes of the crash matrix: what they do until a failpoint kills them; started by matrix.py.

    matrix_worker.py      reads commands (a line of JSON each), forks a child for each, tells how it ended

The parent has imported everything and uses none of it, so that a child costs milliseconds. Children are
writers of one root: `embedded` (append, commit offsets, sweep, merge, compact, vacuum), `sink` (two tasks
and a driver, as in Spark), `broker` (a whole broker, whose publisher and coordinator are used without a
socket), `bystander` (writes and reads beside them, and is not killed). Each has a directory for what it must
not forget:
    acked       a line per acknowledged operation: its number, and the offsets that it got
    <life>.jsonl   the history of one life (tests/history)
An operation without an acknowledgement is done again by the next life: same version, same sequence number.
"""

import asyncio
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparklog
from sparklog import failpoints
from sparklog.client import PartitionedAppender, SparkLog
from sparklog.client.appender import StagedAppend
from sparklog.client.publish import AppendResult
from sparklog.clock import SystemClock
from sparklog.errors import FatalStorageError, FencedError, RetriableError
from sparklog.log.writer import LogWriter
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize, vacuum
from sparklog.metadata import MetadataLog, MetadataSettings
from sparklog.storage import open_store
from sparklog_server.api.registry import declared_apis
from sparklog_server.broker import Broker
from sparklog_server.publish.parts import AppendPart
from sparklog_server.settings.config import ServerConfig
from tests.crash.asking import commit_offset, fetch_offset, produced
from tests.crash.tables import CONFIGS, TABLES, records_of, table_of, table_rows
from tests.crash.tables import ROWS as TABLE_ROWS
from tests.history.recorder import HistoryWriter
from tests.server.publish.batches import batch, part

PARTITIONS = 2
ISOLATED = {"sparklog.segment.isolation": "true"}
ROWS = 3  # of each operation in each partition
SWEEP_OLDER_MS = 2_000  # nothing of ours takes longer; what is younger may be somebody's
FATAL, FENCED = 3, 4  # exit codes: a failed fsync; another broker has taken over
PRODUCER_ID = 41
_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "offsets.topic.num.partitions": "1",
    # On an object store one that was killed is known to be dead after so long.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}
Ranges = dict[int, int]  # partition -> base offset


@dataclass(frozen=True)
class Command:
    """One life of a child."""

    role: str
    root: str
    directory: str
    life: int
    fail: str = ""
    operations: int = 1 << 30
    pause_ms: int = 0


class Life:
    """What a child has: the log, its history, its memory of what was acknowledged."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.role = command.role
        directory = Path(command.directory)
        self.log = open_log(command.root)
        self.history = HistoryWriter(directory / f"{command.life}.jsonl", f"{self.role}-{command.life}")
        path = directory / "acked"
        self._before = read_acked(path)
        self.first = len(self._before)
        self._acked = path.open("a", encoding="ascii")

    def operate(self, number: int, append: Callable[[], Ranges]) -> Ranges:
        """Run one append and write down what came of it."""
        values = {f"{self.role}-{p}": values_of(self.role, p, number) for p in range(PARTITIONS)}
        sending = self.history.send(values)
        ranges = append()
        if ranges:
            sending.ok(
                {
                    f"{self.role}-{p}": (values[f"{self.role}-{p}"], list(range(base, base + ROWS)))
                    for p, base in ranges.items()
                }
            )
        else:
            sending.ok()  # it was there already: appended by an earlier life
        self.acknowledged(number, ranges)
        return ranges

    def acknowledged(self, number: int, ranges: Ranges) -> None:
        """Remember it beyond this life."""
        self._acked.write(json.dumps({"number": number, "ranges": ranges}) + "\n")
        self._acked.flush()

    def poll(self) -> None:
        """Read what is new since the last life's last acknowledgement."""
        self.history.seek()
        polling = self.history.poll()
        parts = {}
        for p in range(PARTITIONS):
            known = [acked["ranges"][str(p)] for acked in self._before if str(p) in acked["ranges"]]
            start = known[-1] if known else 0
            table = pa.Table.from_batches(list(self.log.read_batches(self.role, p, start)))
            parts[f"{self.role}-{p}"] = (
                [value.decode() for value in table["value"].to_pylist()],
                table["offset"].to_pylist(),
            )
        polling.ok(parts)


def values_of(role: str, partition: int, number: int) -> list[str]:
    """The values of one operation in one partition."""
    return [f"{role}/{partition}/{number * ROWS + row}" for row in range(ROWS)]


def read_acked(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: the process may have been killed."""
    text = path.read_text("ascii").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def open_log(root: str) -> SparkLog:
    """Snapshots all the time, and no grace for old commits."""
    clock = SystemClock()
    settings = MetadataSettings(snapshot_bytes=8 * 4096, clean_grace_ms=0, clean_interval_ms=0)
    store = open_store(root)
    return SparkLog(store, MetadataLog.open(store, clock, settings=settings), clock)


def rows_of(role: str, number: int) -> pa.Table:
    values = [value for p in range(PARTITIONS) for value in values_of(role, p, number)]
    return pa.table({"value": values, "partition": [p for p in range(PARTITIONS) for _ in range(ROWS)]})


def ranges_of(result: AppendResult, topic: str) -> Ranges:
    return {p: appended.base_offset for (name, p), appended in result.ranges.items() if name == topic}


# --- roles -------------------------------------------------------------------------------------------


def embedded(life: Life) -> None:
    """Append, commit offsets, sweep, merge, compact, vacuum; exactly once by its versions."""
    log, role = life.log, life.role
    for number in range(life.first, life.first + life.command.operations):

        def append(number: int = number) -> Ranges:
            log.append(table_of(role), table_rows(role, number), txn=(role, number))
            return ranges_of(log.append(role, rows_of(role, number), txn=(role, number)), role)

        life.operate(number, append)
        for p in range(PARTITIONS):
            committing = life.history.commit("g-embedded", f"{role}-{p}", number)
            log.commit_offsets("g-embedded", {(role, p): number})
            committing.ok()
        log.store.sweep_temporary(older_than_ms=SWEEP_OLDER_MS, unfinished_older_than_ms=SWEEP_OLDER_MS)
        if number % 2:  # everybody's topics, in segments of their own or in shared ones
            optimize(
                log.metadata, log.clock, limits=MergeLimits(fan_in=6, shared_bytes=number % 4 // 2 << 20)
            )
        else:  # tables, and __consumer_offsets of everybody's groups; with a small map in many rounds
            buffer_bytes = 400 if number % 4 else 1 << 20
            compact(log.metadata, log.clock, limits=CompactionLimits(dedupe_buffer_bytes=buffer_bytes))
            vacuum(log.metadata, log.clock, retain_ms=SWEEP_OLDER_MS, force=True)
    life.poll()


def sink(life: Life) -> None:
    """Two tasks stage, each through a segment of its own; the driver commits; a second attempt comes late."""
    log, role = life.log, life.role

    def seen() -> tuple[int, int]:
        return log.image.commit, log.image.sweep_horizon

    writers = [LogWriter(log.store, log.clock, seen=seen) for _ in range(PARTITIONS)]

    def stage(number: int, task: int) -> StagedAppend:
        log.refresh()
        appender = PartitionedAppender(log.image, writers[task], log.clock)
        values = values_of(role, task, number)
        appender.add(pa.table({"value": values, "partition": [task] * ROWS}), role)
        return appender.finish()

    for number in range(life.first, life.first + life.command.operations):

        def append(number: int = number) -> Ranges:
            while True:
                staged = [stage(number, task) for task in range(PARTITIONS)]
                try:
                    return ranges_of(log.publish(staged, txn=(role, number)), role)
                except RetriableError as error:  # an old segment was merged away: the batch is done again
                    if error.code != "STAGING_EXPIRED":
                        raise

        life.operate(number, append)
        stage(number, 0)  # a speculative duplicate: nobody publishes it
    life.poll()


def broker(life: Life) -> None:
    """An idempotent producer and a group, at a broker in this process."""
    asyncio.run(_serve(life))


async def _serve(life: Life) -> None:
    log, role = life.log, life.role
    running = Broker(ServerConfig.parse(_SETTINGS), log, log.clock)
    await running.start()
    loop = asyncio.get_running_loop()
    fetched, expected = await fetch_offset(running), life.first - 1
    assert fetched >= expected, f"the group's offset went back to {fetched}, expected at least {expected}"
    for number in range(life.first, life.first + life.command.operations):
        ranges: Ranges = {}
        topic_id = log.image.topics[role].topic_id
        values = {f"{role}-{p}": values_of(role, p, number) for p in range(PARTITIONS)}
        sending = life.history.send(values)
        parts = [_part(topic_id, role, p, number) for p in range(PARTITIONS)]
        bases = await produced(running, [*parts, _table_part(log, role, number)])
        assert bases.pop() == number * TABLE_ROWS
        ranges.update(enumerate(bases))
        sending.ok(
            {
                f"{role}-{p}": (values[f"{role}-{p}"], list(range(base, base + ROWS)))
                for p, base in ranges.items()
            }
        )
        committing = life.history.commit("g-broker", f"{role}-0", number)
        error = await commit_offset(running, role, number)
        if running.lifecycle.failure is not None:
            raise running.lifecycle.failure
        assert error.value == 0, error
        committing.ok()
        life.acknowledged(number, ranges)
    await loop.run_in_executor(None, life.poll)
    await running.stop(1000)


def _part(topic_id: str, topic: str, partition: int, number: int) -> AppendPart:
    data = batch(
        [value.encode() for value in values_of(topic, partition, number)],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=number * ROWS,
    )
    return part(data, topic_id=topic_id, topic=topic, partition=partition)


def _table_part(log: SparkLog, role: str, number: int) -> AppendPart:
    topic = table_of(role)
    keys, values = zip(*records_of(role, number), strict=True)
    data = batch(
        values, keys=keys, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=number * TABLE_ROWS
    )
    return part(data, topic_id=log.image.topics[topic].topic_id, topic=topic, count=TABLE_ROWS)


def bystander(life: Life) -> None:
    """Write and read beside the others, as an observer that must never see the log go back."""
    log, role = life.log, life.role
    ends: dict[tuple[str, int], int] = {}
    for number in range(life.first, life.first + life.command.operations):

        def append(number: int = number) -> Ranges:
            return ranges_of(log.append(role, rows_of(role, number), txn=(role, number)), role)

        life.operate(number, append)
        for topic in log.topics():
            for p in range(log.partition_count(topic)):
                end = log.log_end_offset(topic, p)
                assert end >= ends.get((topic, p), 0), f"{topic}-{p} went back from {ends[topic, p]} to {end}"
                ends[topic, p] = end
        log.clock.sleep_ms(life.command.pause_ms)


ROLES: dict[str, Callable[[Life], None]] = {
    "embedded": embedded,
    "sink": sink,
    "broker": broker,
    "bystander": bystander,
}


# --- the parent --------------------------------------------------------------------------------------


def live(command: Command) -> int:
    """A child's whole life; its exit code."""
    faulthandler.enable()  # SIGABRT shows where a stuck one is
    try:
        failpoints.arm(command.fail)
        ROLES[command.role](Life(command))
    except FatalStorageError:
        return FATAL
    except FencedError:
        return FENCED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Commands: a Command as JSON forks a child and answers its pid; {"wait": pid} answers its exit code."""
    declared_apis()
    pa.table({"value": [""]})  # imports pandas, half a second's work
    for line in sys.stdin:
        words = json.loads(line)
        if "wait" in words:
            _, status = os.waitpid(words["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif "create" in words:
            _create(words["create"], words["topics"])
            answer = 0
        else:
            sys.stdout.flush()
            answer = os.fork()
            if answer == 0:
                os.close(0)
                os.dup2(2, 1)  # answers are the parent's alone
                os._exit(live(Command(**words)))
        print(answer, flush=True)


def _create(root: str, topics: Sequence[str]) -> None:
    """The root and its topics; the store is probed here, once for all children."""
    with sparklog.open(root, create=True) as log:
        log.alter_root({"offsets.topic.num.partitions": "1"})
        for topic in topics:
            configs = {} if topic == "embedded" else ISOLATED  # its maintenance merges all of them
            log.create_topic(topic, PARTITIONS, configs)
            if topic in TABLES:
                log.create_topic(table_of(topic), 1, CONFIGS | configs)


if __name__ == "__main__":
    main()
