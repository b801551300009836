"""A streaming sink keeps its root in order: when it starts a round, and that nobody waits for it."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.client.round_process import RoundAnswer, RoundProcess, RoundRequest
from sparklog.clock import Clock, ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.metadata import METADATA_VERSION_KEY
from sparklog.spark import sink_maintenance
from sparklog.spark.options import SinkOptions, parse_sink_options
from sparklog.spark.sink_maintenance import EXPIRY_MS, LOOK_MS, Keeper, maintain_if_due
from tests.spark.conftest import CopyStream
from tests.support.broker_process import until as until_true
from tests.support.roots import newest_version, old_root

DUE = 256  # small extents


def options_of(root: str, **given: str) -> SinkOptions:
    return parse_sink_options({"path": root, **given}, streaming=True)


def fill(log: SparkLog, count: int) -> None:
    for number in range(count):
        log.append("t", pa.table({"value": [f"{number}"]}), partition=0)


def extent_count(log: SparkLog) -> int:
    return len(log.refresh().partition("t", 0).extents)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(root: str, clock: Clock) -> Iterator[SparkLog]:
    with sparklog.open(root, clock=clock) as log:
        log.create_topic("t", 1)
        yield log


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    if keeper.running is not None:
        keeper.running.stop(30)


class Recorded(RoundProcess):
    """Runs until the test says what came of it."""

    started: list[RoundRequest]

    def __init__(self, request: RoundRequest) -> None:
        self.started.append(request)

    def answer(self) -> None:
        """It goes on."""

    def stop(self, timeout_seconds: float) -> None:
        """There is no process."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RoundRequest]:
    """What rounds were asked for; none is run."""
    requests: list[RoundRequest] = []
    monkeypatch.setattr(Recorded, "started", requests, raising=False)
    monkeypatch.setattr(sink_maintenance, "RoundProcess", Recorded)
    return requests


def test_a_root_that_is_due_is_merged_beside_the_query(log: SparkLog, root: str, keeper: Keeper) -> None:
    fill(log, DUE)
    keeper.after_commit(log, options_of(root))
    assert keeper.running is not None
    running = keeper.running
    until_true(lambda: extent_count(log) == 1, 60)
    until_true(lambda: running.answer() is not None, 60)
    keeper.running = None


def test_nothing_is_started_before_anything_is_due(
    log: SparkLog, root: str, keeper: Keeper, clock: ManualClock, started: list[RoundRequest]
) -> None:
    fill(log, DUE - 1)
    keeper.after_commit(log, options_of(root))
    fill(log, 1)
    keeper.after_commit(log, options_of(root))
    assert started == []  # it looks once in a while only
    clock.advance_ms(LOOK_MS)
    keeper.after_commit(log, options_of(root))
    (request,) = started
    assert (request.root, request.cluster_id) == (root, log.cluster_id)


def test_one_round_at_a_time(
    log: SparkLog, root: str, keeper: Keeper, clock: ManualClock, started: list[RoundRequest]
) -> None:
    fill(log, DUE)
    for _ in range(3):
        keeper.after_commit(log, options_of(root))
        clock.advance_ms(LOOK_MS)
    assert len(started) == 1


def test_rounds_that_come_to_nothing_become_rare(
    log: SparkLog, root: str, keeper: Keeper, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged segment is found after gigabytes have been read."""
    looks: list[int] = []

    class Failing(Recorded):
        def __init__(self, request: RoundRequest) -> None:
            looks.append(clock.monotonic_ms() // LOOK_MS)

        def answer(self) -> RoundAnswer:  # type: ignore[override]
            return RoundAnswer(error="damaged")

    monkeypatch.setattr(sink_maintenance, "RoundProcess", Failing)
    fill(log, DUE)
    for _ in range(20):
        keeper.after_commit(log, options_of(root))
        clock.advance_ms(LOOK_MS)
    # Each is asked after one interval; then two, four, eight of them pass.
    assert [later - before for before, later in itertools.pairwise(looks)] == [3, 5, 9]


def test_what_is_only_to_expire_is_not_looked_for_all_the_time(
    log: SparkLog, root: str, keeper: Keeper, clock: ManualClock, started: list[RoundRequest]
) -> None:
    log.alter_topic("t", {"retention.bytes": "0"})
    fill(log, 1)
    for _ in range(EXPIRY_MS // LOOK_MS):
        keeper.after_commit(log, options_of(root))
        keeper.running = None
        clock.advance_ms(LOOK_MS)
    assert len(started) == 1
    keeper.after_commit(log, options_of(root))
    assert len(started) == 2


def test_what_goes_wrong_is_told_once_and_harms_nobody(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_request: RoundRequest) -> RoundProcess:
        raise OSError("no process is left")

    monkeypatch.setattr(sink_maintenance, "RoundProcess", failing)
    monkeypatch.setattr(sink_maintenance, "LOOK_MS", 0)
    fill(log, DUE)
    with caplog.at_level(logging.WARNING, "sparklog.spark"):
        for _ in range(3):
            maintain_if_due(log, options_of(root))
    (record,) = caplog.records
    assert "no process is left" in record.getMessage()


def test_an_older_root_is_left_alone_until_it_agrees(
    tmp_path: Path, keeper: Keeper, clock: ManualClock, started: list[RoundRequest], caplog: Any
) -> None:
    root = str(old_root("v5", tmp_path))
    with sparklog.open(root, clock=clock) as log, caplog.at_level(logging.WARNING, "sparklog.spark"):
        for number in range(DUE):
            log.append("orders", pa.table({"value": [f"{number}"]}), partition=0)
        for _ in range(3):
            keeper.after_commit(log, options_of(root))
            clock.advance_ms(LOOK_MS)
        assert started == []
        (record,) = caplog.records
        assert "sparklog root alter --config sparklog.metadata.version=" in record.getMessage()
        log.alter_root({METADATA_VERSION_KEY: "5"})
        keeper.after_commit(log, options_of(root))
        assert len(started) == 1


def test_a_stream_writes_to_an_older_root_what_that_knows(
    spark: SparkSession, root: str, tmp_path: Path, copy_stream: CopyStream
) -> None:
    assert spark.version
    old_root("v4", tmp_path).rename(root)
    with sparklog.open(root) as log:
        log.create_topic("s", 12)
        log.create_topic("t", 12)
        for number in range(DUE):
            log.append("orders", pa.table({"value": [str(number)]}), partition=0)
        rows = pa.table({"value": ["x"] * 12, "partition": pa.array(range(12), pa.int32())})
        for _ in range(3):
            log.append("s", rows)
        source = {"subscribe": "s", "startingOffsets": "earliest"}
        copy_stream({**source, "maxOffsetsPerTrigger": "12"}, {"topic": "t"})
        assert sum(log.log_end_offset("t", partition) for partition in range(12)) == 36
        assert newest_version(log.store) == 4


@pytest.mark.parametrize("by_environment", [True, False])
def test_off(
    log: SparkLog,
    root: str,
    started: list[RoundRequest],
    monkeypatch: pytest.MonkeyPatch,
    by_environment: bool,
) -> None:
    fill(log, DUE)
    given = {} if by_environment else {"maintenance": "off"}
    if by_environment:
        monkeypatch.setenv("SPARKLOG_MAINTENANCE", "off")
    maintain_if_due(log, options_of(root, **given))
    assert started == []
    maintain_if_due(log, options_of(root, maintenance="auto"))
    assert len(started) == 1


def test_other_values_are_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="auto or off"):
        options_of(root, maintenance="on")
    monkeypatch.setenv("SPARKLOG_MAINTENANCE", "no")
    with pytest.raises(InvalidRequestError, match="auto or off"):
        options_of(root)


def test_a_stream_merges_what_streams_have_left(
    spark: SparkSession, root: str, tmp_path: Path, copy_stream: CopyStream
) -> None:
    assert spark.version
    with sparklog.open(root) as log:
        log.create_topic("s", 1)
        log.create_topic("t", 1)
        for number in range(3):
            log.append("s", pa.table({"value": [str(number)]}))
        fill(log, DUE)
        source = {"subscribe": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}
        copy_stream(source, {"topic": "t"})
        until_true(lambda: extent_count(log) <= 1 + 3, 60)
        assert log.log_end_offset("t", 0) == DUE + 3
