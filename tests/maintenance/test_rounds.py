"""Rounds: one run does what was due when it began, once; another one beside no writer does nothing."""

import dataclasses
import os

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.maintenance import MergedTopic, MergeLimits, Terms, alone, due_steps, maintain, optimize
from sparklog.maintenance.budget import StoppedError
from sparklog.maintenance.rounds import LAST_VACUUM_KEY
from sparklog.maintenance.sweep import DAY_MS
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import Append, extents, records

APART = MergeLimits(fan_in=None, shared_bytes=0)


def merge(log: SparkLog, limits: MergeLimits = APART) -> MergedTopic:
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


@pytest.mark.parametrize("text", ["", "-1", "never", "9" * 18])
def test_a_vacuum_is_due_whatever_was_written_of_the_last_one(log: SparkLog, text: str) -> None:
    """A clock that was ahead would keep it from its turn until that time has come."""
    image = dataclasses.replace(log.image, commit=1_000, configs={**log.image.configs, LAST_VACUUM_KEY: text})
    assert list(due_steps(image, log.clock.now_ms())) == ["vacuum"]


def test_a_vacuum_is_due_a_day_after_or_before_the_last_one(log: SparkLog) -> None:
    now_ms = log.clock.now_ms()
    for off_ms, due in ((0, []), (DAY_MS - 1, []), (DAY_MS, ["vacuum"])):
        for last_ms in (now_ms - off_ms, now_ms + off_ms):
            image = dataclasses.replace(
                log.image, commit=1_000, configs={**log.image.configs, LAST_VACUUM_KEY: str(last_ms)}
            )
            assert list(due_steps(image, now_ms)) == due


def test_who_fails_leaves_the_root_to_the_next(tmp_path_log: SparkLog) -> None:
    for _ in range(2):
        with pytest.raises(StoppedError), alone(tmp_path_log.metadata):
            raise StoppedError


def test_a_topic_that_is_deleted_meanwhile_fails_its_steps_and_not_the_round(
    log: SparkLog, append: Append
) -> None:
    log.create_topic("gone", 1, {"cleanup.policy": "compact"})
    terms = Terms(topics=["t", "gone"], limits=MergeLimits(fan_in=3))

    def delete() -> bool:
        """Asked before each step: the topic was there when the round began."""
        if "gone" in log.refresh(force=True).topics:
            log.delete_topic("gone")
        return False

    for number in range(3):
        append([b"%d" % number])
    report = maintain(log.metadata, log.clock, terms, is_stopped=delete)
    assert {one.step: one.outcome for one in report.steps} == {
        "transactions": "nothing",
        "expire": "failed",
        "producers": "nothing",
        "compact": "nothing",
        "optimize": "failed",
        "retire": "nothing",
        "vacuum": "nothing",
    }
    (message,) = {one.message for one in report.steps if one.step == "optimize"}
    assert "gone" in message
    assert list(due_steps(log.image, log.clock.now_ms(), terms)) == ["optimize"]
