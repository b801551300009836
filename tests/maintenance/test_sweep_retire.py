"""What was committed and is dead is freed within minutes; what may still be committed keeps its week."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.client.appender import StagedAppend
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError
from sparklog.maintenance import MergeLimits, RoundReport, Terms, maintain, optimize, vacuum
from sparklog.maintenance.sweep import CHECK_MS, IDLE_MS, Classifier, FileState, retire, retire_is_due
from sparklog.metadata import MetadataLog, RetireSegments
from sparklog.storage import MemoryStore, StoredFile, StoreTraits
from tests.maintenance.conftest import extents, records
from tests.maintenance.rounds_told import outcomes, step

DELAY_MS = 60_000
OBJECTS = StoreTraits(is_remote=True, appends_after_sync=False)
FILES = StoreTraits()
NO_MERGES = Terms(limits=MergeLimits(fan_in=10_000))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[FILES, OBJECTS], ids=["files", "objects"])
def log(request: pytest.FixtureRequest, clock: ManualClock) -> SparkLog:
    store = MemoryStore("tests", clock=clock, traits=request.param)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 2, {"retention.bytes": "2000", "compression.type": "none"})
    return log


def put(log: SparkLog, *, size: int = 1000, partition: int = 0, rolls: bool = True) -> None:
    log.append("t", pa.table({"value": [b"x" * size]}), partition=partition)
    if rolls:
        log.close()  # the next one begins another segment


def stage(log: SparkLog) -> StagedAppend:
    """As a task of a job that goes on for long."""
    appender = log.appender()
    appender.add(pa.table({"value": [b"of a slow job"]}), "t")
    return appender.finish()


def stored(log: SparkLog) -> list[str]:
    return [file.name for file in log.store.list("segments", recursive=True) if file.name.endswith(".log")]


def stored_bytes(log: SparkLog) -> int:
    return sum(file.size for file in log.store.list("", recursive=True) if file.name.endswith(".log"))


def round_of(log: SparkLog) -> RoundReport:
    return maintain(log.metadata, log.clock, NO_MERGES)


def freed(log: SparkLog, clock: ManualClock) -> None:
    """Rounds, with as much time between them as it takes."""
    clock.advance_ms(IDLE_MS + CHECK_MS)
    round_of(log)
    clock.advance_ms(DELAY_MS)
    round_of(log)


def test_what_expired_is_freed_after_the_delay(log: SparkLog, clock: ManualClock) -> None:
    for _ in range(70):
        put(log)
    assert stored_bytes(log) > 70_000
    clock.advance_ms(IDLE_MS + 1)
    report = round_of(log)
    assert (outcomes(report)["expire"], outcomes(report)["retire"]) == ("done", "done")
    assert step(report, "retire").figures["retired_segments"] == 68
    assert len(stored(log)) == 70, "readers have them still"
    clock.advance_ms(DELAY_MS - 1)
    assert outcomes(round_of(log))["retire"] == "nothing"
    clock.advance_ms(1)
    assert step(round_of(log), "retire").figures["removed_segments"] == 68
    assert len(stored(log)) == 2
    assert stored_bytes(log) < 5_000
    assert len(records(log)) == 2
    assert log.image.retired.pending == {}
    ranges = log.image.retired.ranges.values()
    assert sum(map(len, ranges)) <= 70
    assert vacuum(log.metadata, clock).dead.files == 0, "indexes went with them"


def test_what_was_merged_and_aborted_is_freed(log: SparkLog, clock: ManualClock) -> None:
    log.alter_topic("t", {"retention.bytes": "-1"})
    for _ in range(4):
        put(log)
    txn = log.transaction("app")
    with contextlib.suppress(ZeroDivisionError), txn:
        txn.append("t", pa.table({"value": [b"aborted" * 1000]}))
        raise ZeroDivisionError
    log.close()
    optimize(log.metadata, clock)
    before = records(log)
    freed(log, clock)
    (extent,) = extents(log)
    assert stored(log) == [extent.segment]
    assert records(log) == before


def test_a_deleted_topic_is_freed(log: SparkLog, clock: ManualClock) -> None:
    put(log)
    log.delete_topic("t")
    freed(log, clock)
    assert stored(log) == []


def test_drafts_of_a_slow_job_keep_their_file(log: SparkLog, clock: ManualClock) -> None:
    put(log, size=3_000, rolls=False)
    staged = stage(log)  # on a file system behind it, in the same file
    put(log, size=3_000)
    put(log, size=3_000)
    freed(log, clock)
    log.publish([staged])
    assert records(log, partition=staged.drafts[0].partition)[-1][1] == b"of a slow job"


def test_a_retired_segment_is_refused_whoever_has_it(log: SparkLog, clock: ManualClock) -> None:
    """A count that is wrong makes a writer append again, and loses nothing."""
    staged = stage(log)
    segment = staged.drafts[0].segment
    log.metadata.publish(lambda _: [RetireSegments(time_ms=clock.now_ms(), segments=(segment,))])
    with pytest.raises(RetriableError, match="STAGING_EXPIRED"):
        log.publish([staged])


def test_a_file_that_grows_is_left_alone_for_an_hour(clock: ManualClock) -> None:
    store = MemoryStore("tests", clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 1, {"retention.ms": "1000"})
    put(log, rolls=False)
    clock.advance_ms(CHECK_MS)
    round_of(log)
    assert extents(log) == []
    assert log.image.retired.pending == {}
    put(log, rolls=False)  # goes on in it
    assert len(stored(log)) == 1
    clock.advance_ms(IDLE_MS + 1)
    round_of(log)
    assert list(log.image.retired.pending) == stored(log)
    put(log, rolls=False)  # its writer is told so, and begins another
    assert len(stored(log)) == 2
    assert len(records(log)) == 1


def test_bytes_that_were_never_committed_wait_for_the_horizon(log: SparkLog, clock: ManualClock) -> None:
    stage(log)
    put(log, size=3_000)
    put(log, size=3_000)
    put(log, size=3_000)
    freed(log, clock)
    left = {extent.segment for extent in extents(log)}
    assert len(set(stored(log)) - left) == 1
    assert log.image.retired.removed_bytes == {} or log.store.traits.is_remote


def test_a_crash_between_its_steps_leaves_nothing_behind(log: SparkLog, clock: ManualClock) -> None:
    for _ in range(3):
        put(log, size=3_000)
    clock.advance_ms(IDLE_MS + 1)
    round_of(log)
    pending = set(log.image.retired.pending)
    assert len(pending) == 2
    clock.advance_ms(DELAY_MS)

    def killed(operation: str, _name: str) -> None:
        if operation == "put_if_absent":
            raise KeyboardInterrupt  # the files are removed, and nobody has noted it

    assert isinstance(log.store, MemoryStore)
    log.store.hook = killed
    with pytest.raises(KeyboardInterrupt):
        retire(log.metadata, clock, delay_ms=DELAY_MS)
    log.store.hook = None
    assert len(stored(log)) == 1
    again = MetadataLog.open(log.store, clock)
    assert set(again.refresh(force=True).retired.pending) == pending
    assert retire(again, clock, delay_ms=DELAY_MS).files == 2
    assert again.image.retired.pending == {}


def test_a_vacuum_removes_what_is_retired(log: SparkLog, clock: ManualClock) -> None:
    for _ in range(3):
        put(log, size=3_000)
    clock.advance_ms(IDLE_MS + 1)
    round_of(log)
    retired = set(log.image.retired.pending)
    classifier = Classifier(log.image)
    verdicts = {name: classifier.state_of(StoredFile(name, 1, 0)) for name in stored(log)}
    assert {name for name, state in verdicts.items() if state is FileState.DEAD} == retired
    clock.advance_ms(2 * IDLE_MS)  # readers' hour
    assert vacuum(log.metadata, clock).dead.files >= 2
    assert len(stored(log)) == 1


def test_a_reader_with_an_old_plan_looks_again(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "log") as log:
        log.create_topic("t", 1)
        for number in range(6):
            log.append("t", pa.table({"value": [b"%d" % number]}))
        log.close()
        batches = log.read_batches("t", 0)
        optimize(log.metadata, log.clock)
        for segment in stored(log):
            if segment != extents(log)[0].segment:
                log.store.delete(segment)
        values = [value.as_py() for one in batches for value in one["value"]]
        assert values == [b"%d" % number for number in range(6)]


def test_due_is_told_from_the_image(log: SparkLog, clock: ManualClock) -> None:
    is_due: Callable[[], bool] = lambda: retire_is_due(log.refresh(), clock.now_ms(), DELAY_MS)  # noqa: E731
    put(log)
    put(log, partition=1)
    assert not is_due()
    log.alter_topic("t", {"retention.bytes": "0"})
    maintain(log.metadata, clock, steps=["expire"])
    assert is_due()
    retire(log.metadata, clock, delay_ms=DELAY_MS)
    assert not is_due()
    clock.advance_ms(CHECK_MS)
    assert is_due()  # to remove them, or to look again
