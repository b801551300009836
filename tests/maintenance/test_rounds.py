"""Rounds: one run does what was due when it began, once; another one beside no writer does nothing."""

import os

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.maintenance import MergeLimits, TopicReport, optimize
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import Append, extents, records

APART = MergeLimits(fan_in=None, shared_bytes=0)


def merge(log: SparkLog, limits: MergeLimits = APART) -> TopicReport:
    return optimize(log.metadata, log.clock, limits=limits).topics["t"]


def test_what_is_appended_meanwhile_is_not_merged_with_what_has_just_been(
    log: SparkLog, append: Append, memory_or_s3: MemoryStore
) -> None:
    for _ in range(4):
        append([os.urandom(20_000)])
    stored = sum(extent.size for extent in extents(log))
    appending = False

    def write(called: str, name: str) -> None:
        nonlocal appending
        if called == "append_file" and name.startswith("t-0/") and not appending:
            appending = True
            append([b"meanwhile"])
            append([b"meanwhile"])
            appending = False

    memory_or_s3.hook = write
    report = merge(log)
    memory_or_s3.hook = None
    assert (report.merged_extents, report.merged_bytes, report.added_extents) == (4, stored, 1)
    assert len(extents(log)) == 3
    assert len(records(log)) == 6


@pytest.mark.parametrize("interval", [0, 100, 4096])
@pytest.mark.parametrize("index_bytes", [4, 120, 1200])
def test_segments_whose_index_is_full_are_merged_once(
    log: SparkLog, memory_or_s3: MemoryStore, interval: int, index_bytes: int
) -> None:
    log.alter_topic("t", {"segment.index.bytes": str(index_bytes), "index.interval.bytes": str(interval)})
    for _ in range(12):
        value = pa.array([os.urandom(50_000) for _ in range(12)], pa.binary())
        log.append("t", pa.table({"value": value}), partition=0)
    before = records(log)
    merge(log)
    found, files = extents(log), [one.name for one in memory_or_s3.list("t-0")]
    report = merge(log)
    assert (report.merged_extents, report.added_extents) == (0, 0)
    assert (extents(log), records(log)) == (found, before)
    assert [one.name for one in memory_or_s3.list("t-0")] == files  # nor was anything done in vain
