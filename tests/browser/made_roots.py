"""Roots for the browser: with some of everything and hostile content, damaged ones, and a large one."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparklog
from benchmarks.bench_console import make
from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.clock import ManualClock, SystemClock
from sparklog.console.app import create_app
from sparklog.console.message_masks import MessageRules
from sparklog.format.schema import HEADERS_TYPE
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore
from tests.browser.conftest import serving
from tests.console.made_records import HOSTILE as HOSTILE_VALUES
from tests.support.cluster_root import ClusterRoot

HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=1>\x1b[31m\u202e'\"&{{7*7}}\n"
NOW_MS = 1_800_000_000_000


def opened(clock: Any) -> SparkLog:
    """An empty root in memory."""
    store = MemoryStore(clock=clock)
    return SparkLog(store, MetadataLog.open(store, clock, create=True), clock)


@contextlib.contextmanager
def console(
    log: SparkLog, *, write: bool = True, messages: bool = True, history: LagHistory | None = None
) -> Iterator[str]:
    """A console of the root: its address."""
    rules = MessageRules() if messages else None
    with serving(create_app(log, messages=rules, history=history or LagHistory(), write=write)) as base:
        yield base


def fill(log: SparkLog, *, brokers: bool = True) -> LagHistory:
    """Topics, groups, transactions, and an hour of lag; brokers that are not there, if asked for."""
    log.create_topic("orders", partitions=3, configs={"retention.ms": "86400000"})
    log.create_topic("quiet", partitions=1)
    clock = log.clock
    rows = [json.dumps({"id": number, "customer": f"c{number % 7}"}) for number in range(300)]
    log.append("orders", pa.table({"key": [f"k{number % 11}" for number in range(300)], "value": rows}))
    if brokers:
        cluster = ClusterRoot(log)
        cluster.assign("orders", (1, 2), (2, 3), (3, 1))
        cluster.lead("orders", 1, 2, 3)
        cluster.fence(3)
    for group in ("spark-etl", HOSTILE):
        log.commit_offsets(group, {("orders", 0): 1, ("orders", 1): 3, ("gone", 0): 5}, metadata=HOSTILE)
    for name in ("etl", HOSTILE):
        txn = log.transaction(name)
        txn.__enter__()
        txn.append("orders", pa.table({"value": ["staged"] * 5}))
        txn.flush()
    history = LagHistory()
    now = {group: log.committed_offsets(group) for group in log.groups()}
    for back in range(360, 0, -1):
        committed = {
            group: {at: max(0, offset - back // 120) for at, offset in offsets.items()}
            for group, offsets in now.items()
        }
        history.add(clock.now_ms() - 10_000 * back, log.image, committed)
    return history


def fill_hostile(log: SparkLog, *, large: int = 1 << 20) -> None:
    """Records that try to run something, to hide something, or to be too much."""
    log.create_topic("hostile", partitions=1, configs={"max.message.bytes": str(2 * large + 1_000_000)})
    values = [
        *HOSTILE_VALUES,
        HOSTILE.encode(),
        b"<b>" * (large // 3),
        json.dumps({HOSTILE: HOSTILE}).encode(),
    ]
    headers = pa.array([[{"key": HOSTILE, "value": value[:5000]}] for value in values], HEADERS_TYPE)
    keys = [value[:5000] for value in values]
    log.append("hostile", pa.table({"key": keys, "value": values, "headers": headers}))


def busy_log() -> tuple[SparkLog, LagHistory]:
    log = opened(ManualClock(NOW_MS))
    history = fill(log)
    fill_hostile(log)
    log.clock.advance_ms(600_000)  # type: ignore[attr-defined]
    return log, history


def big_log() -> SparkLog:
    """5,000 topics, 200 groups, 100 million records: by metadata, so that no bytes need to be there."""
    return make(5000, 2, 200, records=500)


def damaged_log(folder: Path) -> SparkLog:
    """Opened before a segment is overwritten and another one is lost."""
    with sparklog.open(folder, create=True, clock=SystemClock()) as log:
        log.create_topic("lost")
        log.append("lost", pa.table({"value": ["x" * 1000] * 100}))
    with sparklog.open(folder, clock=SystemClock()) as log:
        fill(log, brokers=False)
    lost, *others = sorted(folder.glob("segments/*/*.log"))
    lost.unlink()
    for path in others:
        path.write_bytes(b"\xff" * path.stat().st_size)
    return sparklog.open(folder, clock=SystemClock())


def damage_newest_commit(log: SparkLog, folder: Path) -> None:
    """The next commit is there, and is no commit."""
    number = log.image.commit + 1
    (folder / "__cluster_metadata" / f"{number:020d}.json").write_bytes(b"\x00<script>hacked=1</script>")
