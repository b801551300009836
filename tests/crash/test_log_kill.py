"""SIGKILL while appending: what was acknowledged is there once, and opening needs no repair."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import StorageError
from sparklog.storage import MemoryStore
from tests.support.roots import opened

PARTITIONS = 3
ROWS_EACH = 40

CHILD = f"""
import sys, sparklog, pyarrow as pa
root, name, sequence = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = sparklog.open(root, create=False)
while True:
    rows = range({ROWS_EACH})
    table = pa.table({{
        "key": [f"{{sequence}}/{{row}}" for row in rows],
        "value": [f"{{name}}/{{sequence}}/{{row}}" + "." * 200 for row in rows],
    }})
    log.append("t", table, txn=(name, sequence))
    print(sequence, flush=True)
    sequence += 1
"""


def run_until_killed(root: str, name: str, first: int, dice: random.Random) -> int:
    """Append from version `first` on, be killed at a random moment; returns the last acknowledged version."""
    words = [sys.executable, "-c", CHILD, root, name, str(first)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(dice.randrange(1, 15))]
        try:
            child.wait(timeout=dice.uniform(0, 0.01))
        except subprocess.TimeoutExpired:
            child.kill()
        lines += child.stdout.readlines()
    return int(lines[-1])


def everything(log: SparkLog, topic: str = "t") -> list[str]:
    """The values' names, after checking that offsets are dense."""
    found: list[str] = []
    for partition in range(log.partition_count(topic)):
        table = pa.Table.from_batches(list(log.read_batches(topic, partition)))
        assert table["offset"].to_pylist() == list(range(log.log_end_offset(topic, partition)))
        found += [value.decode().rstrip(".") for value in table["value"].to_pylist()]
    return found


class Impatient(SystemClock):
    """Of who opens what a killed process has left: there is nothing to wait for."""

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError(f"waits {duration_ms} ms")


@pytest.mark.parametrize("seed", [20_241, 20_242])
def test_killed_appenders_lose_and_repeat_nothing(root: str, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    sparklog.open(root).create_topic("t", PARTITIONS)
    acknowledged = -1
    for _ in range(4):
        acknowledged = run_until_killed(root, "app", acknowledged + 1, dice)
        log = sparklog.open(root, create=False, clock=Impatient())
        found = everything(log)
        versions = range(log.image.topic("t").writer_txns["app"].version + 1)
        assert versions.stop in {
            acknowledged + 1,
            acknowledged + 2,
        }  # one may be committed, and not yet printed
        expected = [f"app/{version}/{row}" for version in versions for row in range(ROWS_EACH)]
        assert sorted(found) == sorted(expected)


class PowerCutError(Exception):
    """The process is gone."""


def appends(log: SparkLog) -> Iterator[int]:
    """A few appends of several kinds, each acknowledged by its number."""
    for number in range(4):
        table = pa.table(
            {"key": [f"{row}" for row in range(5)], "value": [f"{number}/{row}" for row in range(5)]}
        )
        log.append("t", table, txn=("app", number))
        log.commit_offsets("g", {("t", 0): number})
        if number == 2:
            log.close()
        yield number


def test_a_power_cut_before_or_after_any_operation_loses_nothing_acknowledged() -> None:
    calls = 0
    store = MemoryStore("count")

    def count(operation: str, name: str) -> None:
        nonlocal calls
        calls += 1

    log = opened(store, ManualClock())
    store.hook = count
    assert list(appends(log)) == [0, 1, 2, 3]
    assert calls > 50
    for fatal in range(calls):
        store = MemoryStore(f"cut-{fatal}")
        log = opened(store, ManualClock())
        left = fatal

        def hook(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCutError

        store.hook = hook
        acknowledged = -1
        try:
            for number in appends(log):
                acknowledged = number
        except PowerCutError:
            pass
        else:
            pytest.fail("the power was not cut")
        store.hook = None
        store.crash()
        again = opened(store, ManualClock())
        found = everything(again) if "t" in again.topics() else []
        versions = len(found) // 5
        assert versions in {acknowledged + 1, acknowledged + 2}, fatal
        assert sorted(found) == sorted(f"{number}/{row}" for number in range(versions) for row in range(5))
        assert again.committed_offsets("g").get(("t", 0), -1) in {acknowledged, acknowledged + 1}
        list(appends(again))
        assert sorted(everything(again)) == sorted(
            f"{number}/{row}" for number in range(4) for row in range(5)
        )
        assert again.committed_offsets("g") == {("t", 0): 3}


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("append_file", ".log"), ("write", ".log"), ("sync", ".log"), ("put_if_absent", ".json")],
)
def test_a_full_disk_is_told_and_nothing_is_published(operation: str, suffix: str) -> None:
    store = MemoryStore("full")
    log = opened(store, ManualClock())
    log.append("t", pa.table({"value": ["a"]}))
    hit = []

    def hook(called: str, name: str) -> None:
        if called == operation and name.endswith(suffix):
            hit.append(name)
            raise StorageError("STORAGE_FULL", f"{name}: no space left", fix="free space")

    log.close()
    store.hook = hook
    rows = pa.table({"value": ["b", "c"]})
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        log.append("t", rows)
    assert hit
    assert everything(log) == ["a"]
    store.hook = None
    log.append("t", rows)
    assert everything(log) == ["a", "b", "c"]


def test_a_disk_that_fills_up_in_the_middle_of_a_write(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    log = sparklog.open(root)
    log.append("t", pa.table({"value": ["before"]}))
    write = os.pwritev

    def short_then_full(fd: int, buffers: list[memoryview], position: int, *flags: int) -> int:
        if "segments" not in os.readlink(f"/proc/self/fd/{fd}"):
            return write(fd, buffers, position, *flags)
        monkeypatch.setattr(os, "pwritev", full)
        return write(fd, [buffers[0][:10]], position)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", short_then_full)
    with pytest.raises(StorageError, match=r"STORAGE_FULL.*Free space"):
        log.append("t", pa.table({"value": ["lost"]}))
    monkeypatch.undo()
    log.append("t", pa.table({"value": ["after"]}))
    assert everything(log) == ["before", "after"]
    assert everything(sparklog.open(root)) == ["before", "after"]
    assert len(list(Path(root).glob("segments/*/*.log"))) == 2
