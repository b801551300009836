"""What nobody expected of a partition, or of a step, is reported, and keeps nothing else from its turn."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.maintenance import Terms, compact, compaction, due_steps, maintain, rounds
from sparklog.maintenance.budget import StoppedError, failure_of
from sparklog.maintenance.compaction import run_compaction
from sparklog.maintenance.merging import run_merge
from sparklog.metadata import MetadataLog
from tests.maintenance.compacted import left
from tests.maintenance.conftest import Append, Put, extents
from tests.maintenance.rounds_told import FEW, clock_of, outcomes, step
from tests.support.told import Told

MERGED = "sparklog.maintenance.merging.run_merge"


def failing(real: Callable[..., Any], error: BaseException, partition: int = 0) -> Callable[..., Any]:
    def fails(*arguments: Any, **named: Any) -> Any:
        work = next(one for one in arguments if hasattr(one, "born") or hasattr(one, "pieces"))
        where = work.partition if hasattr(work, "partition") else work.pieces[0].partition
        if where == partition:
            raise error
        return real(*arguments, **named)

    return fails


@pytest.mark.parametrize("error", [IndexError("list index out of range"), AssertionError(), ValueError("x")])
def test_one_partition_that_cannot_be_compacted_ends_no_round(
    table: SparkLog,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: Told,
    error: Exception,
) -> None:
    table.alter_topic("table", {"segment.ms": "1", "min.cleanable.dirty.ratio": "0"})
    for partition in range(2):
        put((b"a", b"1"), partition=partition)
        put((b"a", b"2"), partition=partition)
    monkeypatch.setattr(compaction, "run_compaction", failing(run_compaction, error))
    caplog.set_level(logging.DEBUG, "sparklog.maintenance")
    clock_of(table).sleep_ms(10)
    report = maintain(table.metadata, table.clock)
    (found,) = report.skipped
    assert (found.topic, found.partition, found.code) == ("table", 0, "INTERNAL")
    assert type(error).__name__ in found.message
    assert "in fails, line" in found.message
    (record,) = told.records("sparklog.maintenance")
    assert record.exc_info is not None, "the traceback"
    assert [len(left(table, partition)) for partition in range(2)] == [2, 1]
    assert set(outcomes(report)) >= {"expire", "compact", "optimize", "vacuum"}
    # It is left out next time, as one that cannot be read.
    but = frozenset({found.key})
    assert "compact" not in list(due_steps(table.image, table.clock.now_ms(), Terms(skip=but)))


def test_one_work_that_cannot_be_merged_ends_no_round(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(2):
        for _ in range(3):
            append([b"x"], partition=partition)
    monkeypatch.setattr(MERGED, failing(run_merge, KeyError("x")))
    report = maintain(log.metadata, log.clock, FEW)
    assert [(one.partition, one.code) for one in report.skipped] == [(0, "INTERNAL")]
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [3, 1]


def test_a_step_that_fails_in_its_own_way_ends_no_round(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        append([b"x"])

    def expire(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(rounds, "expire", expire)
    report = maintain(log.metadata, log.clock, FEW)
    assert step(report, "expire").outcome == "failed"
    assert "ZeroDivisionError" in step(report, "expire").message
    assert step(report, "optimize").outcome == "done"
    assert report.has_failed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_what_ends_the_process_ends_the_round(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    for _ in range(3):
        append([b"x"])
    monkeypatch.setattr(MERGED, failing(run_merge, error))
    with pytest.raises(type(error)):
        maintain(log.metadata, log.clock, FEW)


def test_an_unknown_durability_ends_the_round(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        append([b"x"])

    def publish(*_: Any, **__: Any) -> None:
        raise FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")

    monkeypatch.setattr(MetadataLog, "publish", publish)
    with pytest.raises(FatalStorageError):
        maintain(log.metadata, log.clock, FEW)


def test_what_concerns_all_is_raised() -> None:
    for error in (StoppedError(), MemoryError(), SparklogError("STORAGE_FULL", "x", fix="y")):
        with pytest.raises(type(error)):
            failure_of("here", error)


def test_stored_empty_batches_are_compacted(table: SparkLog, put: Put) -> None:
    """A round leaves one where all records of its end went; the next one reads it."""
    table.alter_topic("table", {"delete.retention.ms": "0"})
    put((b"a", b"1"))
    put((b"b", b"1"))
    put((b"a", None))
    compact(table.metadata, table.clock)
    put((b"b", None))
    for _ in range(3):
        clock_of(table).sleep_ms(1_000)
        compact(table.metadata, table.clock)
    assert left(table) == []
    (extent,) = extents(table, "table", 0)
    assert extent.end_offset == 4, "the end stays where it was"
    put((b"c", b"1"))
    compact(table.metadata, table.clock)
    assert left(table) == [(4, b"c", b"1")]
