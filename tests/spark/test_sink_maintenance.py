"""A streaming sink keeps its root in order: when it starts a round, and that nobody waits for it."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.client.round_process import RoundAnswer, RoundProcess, RoundRequest
from sparklog.clock import Clock, ManualClock
from sparklog.errors import InvalidRequestError
from sparklog.maintenance import ROUND, RoundReport, SkippedPartition, StepReport, maintain
from sparklog.maintenance.rounds import Amount
from sparklog.spark import sink_maintenance
from sparklog.spark.options import SinkOptions, parse_sink_options
from sparklog.spark.sink_maintenance import EXPIRY_MS, LOOK_MS, Keeper, maintain_if_due
from sparklog.spark.write_task import MAINTENANCE_PROPERTY
from tests.spark.conftest import CopyStream
from tests.support.broker_process import until as until_true
from tests.support.told import Told

pytestmark = pytest.mark.slow

DUE = 256  # small extents
# Of one commit: it starts a round, and ends.
WORKER = """
import sys, sparklog
from sparklog.spark.options import parse_sink_options
from sparklog.spark.sink_maintenance import Keeper
keeper = Keeper()
with sparklog.open(sys.argv[1], create=False) as log:
    keeper.after_commit(log, parse_sink_options({"path": sys.argv[1]}, streaming=True))
assert keeper.running.answer() is None
"""


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
        keeper.running.kill()
        keeper.running.end(30)


class Recorded(RoundProcess):
    """Runs until the test says what came of it."""

    started: list[RoundRequest]

    def __init__(self, request: RoundRequest) -> None:
        self.started.append(request)

    def answer(self) -> None:
        """It goes on."""

    def kill(self) -> None:
        """There is no process."""

    def end(self, timeout_seconds: float) -> RoundAnswer:
        return RoundAnswer(error="ended")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RoundRequest]:
    """What rounds were asked for; none is run."""
    requests: list[RoundRequest] = []
    monkeypatch.setattr(Recorded, "started", requests, raising=False)
    monkeypatch.setattr(sink_maintenance, "RoundProcess", Recorded)
    return requests


@pytest.mark.slow
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
    assert [later - before for before, later in itertools.pairwise(looks)] == [1 + 2, 1 + 4, 1 + 8]


@pytest.mark.slow
def test_a_round_goes_on_without_the_worker_that_started_it(log: SparkLog, root: str) -> None:
    """Its owner is the worker's parent, which is this process."""
    fill(log, DUE)
    words = [sys.executable, "-c", WORKER, root]
    subprocess.run(words, check=True, timeout=60)
    until_true(lambda: extent_count(log) == 1, 60)


def test_a_damaged_partition_is_skipped_by_the_next_round(
    log: SparkLog, root: str, keeper: Keeper, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, DUE)
    maintain(log.metadata, log.clock, steps=["vacuum"])  # which would be due as well
    found = SkippedPartition(
        topic="t",
        topic_id=log.image.partition("t", 0).topic_id,
        partition=0,
        size_bytes=1,
        code="CORRUPT_BATCH",
        message="m",
    )
    requests: list[RoundRequest] = []

    class Skipping(Recorded):
        def __init__(self, request: RoundRequest) -> None:
            requests.append(request)

        def answer(self) -> RoundAnswer:  # type: ignore[override]
            step = StepReport(step="optimize", outcome="failed", skipped=(found,))
            nothing = Amount(extents=0, bytes=0)
            return RoundAnswer(
                report=RoundReport(
                    steps=(step,), before=nothing, after=nothing, duration_ms=1, is_stopped=False
                )
            )

    monkeypatch.setattr(sink_maintenance, "RoundProcess", Skipping)
    for _ in range(3):
        keeper.after_commit(log, options_of(root))
        clock.advance_ms(LOOK_MS)
    assert len(requests) == 1
    log.create_topic("u", 1)
    for _ in range(DUE):
        log.append("u", pa.table({"value": ["x"]}))
    keeper.after_commit(log, options_of(root))
    assert requests[1].terms.skip == {found.key}


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
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def failing(_request: RoundRequest) -> RoundProcess:
        raise OSError("no process is left")

    monkeypatch.setattr(sink_maintenance, "RoundProcess", failing)
    monkeypatch.setattr(sink_maintenance, "LOOK_MS", 0)
    fill(log, DUE)
    for _ in range(3):
        maintain_if_due(log, options_of(root))
    (message,) = told("sparklog.spark")
    assert "no process is left" in message


@pytest.mark.parametrize("by_environment", [True, False])
def test_off(root: str, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    given = {} if by_environment else {"maintenance": "off"}
    if by_environment:
        monkeypatch.setenv("SPARKLOG_MAINTENANCE", "off")
    assert not options_of(root, **given).maintenance
    assert options_of(root, maintenance="auto").maintenance


@pytest.mark.parametrize(
    ("session", "option", "looks"), [("off", "", False), ("off", "auto", True), ("auto", "off", False)]
)
def test_a_session_says_it_for_queries_that_do_not(
    spark: SparkSession,
    root: str,
    copy_stream: CopyStream,
    monkeypatch: pytest.MonkeyPatch,
    session: str,
    option: str,
    looks: bool,
) -> None:
    with sparklog.open(root) as log:
        log.create_topic("s", 1)
        log.append("s", pa.table({"value": ["x"]}))
        log.create_topic("t", 1)
        fill(log, DUE)
        spark.conf.set(MAINTENANCE_PROPERTY, session)
        try:
            source = {"subscribe": "s", "startingOffsets": "earliest"}
            copy_stream(source, {"topic": "t", **({"maintenance": option} if option else {})})
        finally:
            spark.conf.unset(MAINTENANCE_PROPERTY)
        assert log.log_end_offset("t", 0) == DUE + 1
        if looks:
            until_true(lambda: extent_count(log) <= 2, 60)
        else:
            assert not (Path(root) / ROUND).exists()


def test_what_a_session_must_not_say(spark: SparkSession, root: str, copy_stream: CopyStream) -> None:
    with sparklog.open(root) as log:
        log.create_topic("s", 1)
        log.append("s", pa.table({"value": ["x"]}))
    spark.conf.set(MAINTENANCE_PROPERTY, "on")
    try:
        with pytest.raises(Exception, match="auto or off"):
            copy_stream({"subscribe": "s", "startingOffsets": "earliest"}, {"topic": "t"})
    finally:
        spark.conf.unset(MAINTENANCE_PROPERTY)


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
