"""Rounds of maintenance: what is due, in which order, how much of it, and with whose consent."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import RetriableError, StorageError
from sparklog.maintenance import (
    ROUND,
    MergeLimits,
    Terms,
    alone,
    compact,
    due_steps,
    maintain,
    optimize,
    rounds,
)
from sparklog.maintenance.rounds import dirtiness_of
from sparklog.maintenance.sweep import DAY_MS
from tests.maintenance.conftest import Append, extents, records
from tests.maintenance.rounds_told import FEW, clock_of, outcomes, step

# --- what is due ------------------------------------------------------------------------------------------


def test_nothing_is_due_in_a_new_root(log: SparkLog) -> None:
    assert list(due_steps(log.image, log.clock.now_ms())) == []
    assert set(outcomes(maintain(log.metadata, log.clock)).values()) == {"nothing"}


def test_due_is_told_from_the_image_alone(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    now_ms = log.clock.now_ms()
    for number in range(3):
        append([b"%d" % number], times_ms=[now_ms - 5000])
    image = log.refresh()
    assert list(due_steps(image, now_ms, FEW)) == ["expire", "optimize"]
    assert list(due_steps(image, now_ms)) == ["expire"]  # by default only many extents are merged
    assert list(due_steps(image, now_ms - 5000, FEW)) == ["optimize"]


def test_a_round_expires_before_it_merges(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.ms": "1000"})
    now_ms = log.clock.now_ms()
    for number in range(6):
        append([b"%d" % number], times_ms=[now_ms - (5000 if number < 3 else 0)])
    report = maintain(log.metadata, log.clock, FEW)
    assert outcomes(report) == {
        "transactions": "nothing",
        "expire": "done",
        "producers": "nothing",
        "compact": "nothing",
        "optimize": "done",
        "retire": "nothing",
        "vacuum": "nothing",
    }
    assert step(report, "expire").figures["offsets"] == 3
    assert step(report, "optimize").figures["merged_extents"] == 3  # what went was not rewritten
    assert [value for _, value, _ in records(log)] == [b"3", b"4", b"5"]
    assert (report.before.extents, report.after.extents) == (6, 1)
    assert list(due_steps(log.image, now_ms, FEW)) == []


def test_a_dry_run_only_tells(log: SparkLog, append: Append) -> None:
    log.alter_topic("t", {"retention.bytes": "0"})
    for number in range(3):
        append([b"%d" % number])
    commit = log.refresh().commit
    report = maintain(log.metadata, log.clock, FEW, dry_run=True)
    assert outcomes(report) == {
        "transactions": "nothing",
        "expire": "due",
        "producers": "nothing",
        "compact": "nothing",
        "optimize": "due",
        "retire": "nothing",
        "vacuum": "nothing",
    }
    assert log.refresh().commit == commit


def test_only_some_topics_and_steps(log: SparkLog, append: Append) -> None:
    log.create_topic("u", 1)
    for topic in "tu":
        for number in range(3):
            append([b"%d" % number], topic=topic)
    report = maintain(
        log.metadata, log.clock, Terms(topics=["u"], limits=MergeLimits(fan_in=3)), steps=["optimize"]
    )
    assert outcomes(report) == {"optimize": "done"}
    assert (len(extents(log, "t")), len(extents(log, "u"))) == (3, 1)
    assert report.before.extents == 3


def test_a_brokers_defaults_count_where_nobody_else_says_anything(log: SparkLog, append: Append) -> None:
    log.create_topic("kept", 1, {"retention.bytes": "-1"})
    append([b"x"])
    append([b"x"], topic="kept")
    terms = Terms(defaults={"retention.bytes": "0"})
    assert list(due_steps(log.refresh(), log.clock.now_ms())) == []
    assert step(maintain(log.metadata, log.clock, terms), "expire").figures["offsets"] == 1
    assert (records(log), len(records(log, "kept"))) == ([], 1)


def test_files_are_removed_once_a_day_of_roots_that_are_written_to(log: SparkLog) -> None:
    def write(commits: int) -> None:
        for number in range(commits):
            log.alter_topic("t", {"segment.ms": str(number + 1)})

    write(250)
    assert list(due_steps(log.refresh(), log.clock.now_ms())) == []
    write(10)
    assert list(due_steps(log.refresh(), log.clock.now_ms())) == ["vacuum"]
    assert outcomes(maintain(log.metadata, log.clock, dry_run=True))["vacuum"] == "due"
    assert outcomes(maintain(log.metadata, log.clock))["vacuum"] == "done"
    assert list(due_steps(log.image, log.clock.now_ms())) == []
    clock_of(log).advance_ms(DAY_MS)
    assert list(due_steps(log.image, log.clock.now_ms())) == ["vacuum"]
    assert list(due_steps(log.image, log.clock.now_ms(), Terms(topics=["t"]))) == []


def compacted(log: SparkLog, append: Append) -> None:
    """A topic in which a key was written four times, and its tail may be compacted."""
    log.create_topic("table", 1, {"cleanup.policy": "compact"})
    for number in range(4):
        rows = pa.table({"key": ["k"], "value": [f"{number}"]})
        log.append("table", rows)
    append([b"x"])


def test_compaction_comes_before_merging(log: SparkLog, append: Append) -> None:
    compacted(log, append)
    assert list(due_steps(log.refresh(), log.clock.now_ms(), FEW)) == ["compact", "optimize"]
    done = step(maintain(log.metadata, log.clock, FEW), "compact")
    assert (done.outcome, done.figures["records_removed"]) == ("done", 2)  # the newest extent stays as it is
    assert [value for _, value, _ in records(log, "table")] == [b"2", b"3"]


def test_a_few_small_extents_are_not_compacted_by_themselves_for_a_while(
    log: SparkLog, append: Append
) -> None:
    compacted(log, append)
    assert list(due_steps(log.refresh(), log.clock.now_ms())) == []
    assert list(due_steps(log.image, log.clock.now_ms() + 8 * DAY_MS)) == ["compact"]  # segment.ms is a week


def test_a_brokers_defaults_of_compaction_count_where_nobody_else_says_anything(
    log: SparkLog, append: Append
) -> None:
    compacted(log, append)
    eager = Terms(limits=FEW.limits, defaults={"min.cleanable.dirty.ratio": "0.9", "segment.ms": "1"})
    assert list(due_steps(log.refresh(), log.clock.now_ms(), FEW)) == ["compact", "optimize"]
    lazy = Terms(limits=FEW.limits, defaults={"min.compaction.lag.ms": str(DAY_MS)})
    assert list(due_steps(log.image, log.clock.now_ms(), lazy)) == ["optimize"]
    log.alter_root({"min.compaction.lag.ms": "0"})
    assert list(due_steps(log.refresh(), log.clock.now_ms(), lazy)) == ["compact", "optimize"]
    assert list(due_steps(log.image, log.clock.now_ms(), eager)) == ["compact", "optimize"]


def test_how_dirty_it_is(log: SparkLog, append: Append) -> None:
    def seen(now_ms: int) -> tuple[float, int]:
        found = dirtiness_of(log.refresh(), now_ms, Terms())
        return round(found.ratio, 2), found.overdue_ms

    assert seen(log.clock.now_ms()) == (0.0, 0)
    compacted(log, append)
    log.alter_topic("table", {"max.compaction.lag.ms": "1000"})
    now_ms = log.clock.now_ms()
    assert seen(now_ms) == (1.0, 0)
    assert seen(now_ms + 5_000) == (1.0, 4_000)
    compact(log.metadata, log.clock, ["table"])
    assert seen(now_ms + 5_000) == (0.0, 0)


# --- others ------------------------------------------------------------------------------------------------


def test_what_fails_does_not_keep_the_others_from_their_turn(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append([b"%d" % number])

    def failing(*_: object, **__: object) -> None:
        raise StorageError("STORAGE_FAILED", "x: found no disk, expected one", fix="mount it")

    monkeypatch.setattr(rounds, "expire", failing)
    report = maintain(log.metadata, log.clock, FEW)
    assert {step: found for step, found in outcomes(report).items() if found != "nothing"} == {
        "expire": "failed",
        "optimize": "done",
    }
    assert report.has_failed
    assert "no disk" in step(report, "expire").message


def test_a_vacuum_that_fails_is_not_tried_again_all_the_time(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has listed the storage for nothing, which costs money in a bucket."""
    for number in range(256):
        log.alter_topic("t", {"segment.ms": str(number + 1)})

    def failing(*_: object, **__: object) -> None:
        raise StorageError("STORAGE_FAILED", "x: found DELETE refused, expected removal", fix="allow it")

    monkeypatch.setattr(rounds, "vacuum", failing)
    assert outcomes(maintain(log.metadata, log.clock))["vacuum"] == "failed"
    assert outcomes(maintain(log.metadata, log.clock))["vacuum"] == "nothing"
    clock_of(log).advance_ms(DAY_MS)
    assert outcomes(maintain(log.metadata, log.clock))["vacuum"] == "failed"


def test_one_round_at_a_time_on_a_machine(tmp_path_log: SparkLog) -> None:
    with alone(tmp_path_log.metadata, ROUND):
        with pytest.raises(RetriableError, match="MAINTENANCE_RUNNING"), alone(tmp_path_log.metadata, ROUND):
            pass
        assert optimize(tmp_path_log.metadata, tmp_path_log.clock).topics == {}  # a command is another matter
    with alone(tmp_path_log.metadata, ROUND):
        pass


def test_a_step_that_somebody_else_does_is_left_to_them(tmp_path_log: SparkLog) -> None:
    tmp_path_log.create_topic("t", 1)
    with alone(tmp_path_log.metadata):
        assert outcomes(maintain(tmp_path_log.metadata, tmp_path_log.clock))["optimize"] == "busy"
