"""Vacuum: what nothing refers to goes when it is old enough, and nothing else ever does."""

import dataclasses
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.appender import StagedAppend
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError, StorageError
from sparklog.maintenance import RETAIN_MS, MergeLimits, VacuumReport, optimize, vacuum
from sparklog.maintenance.sweep import DAY_MS, FREED_MS, Classifier, FileState
from sparklog.metadata import MetadataLog, born_of, plan_delete_topic
from sparklog.metadata.documents.properties import DIRECTORY
from sparklog.storage import MemoryStore, StoredFile
from tests.maintenance.conftest import Append, extents, records


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    """Its dates are those of the clock."""
    return MemoryStore("tests", clock=clock)


@pytest.fixture
def log(memory: MemoryStore, clock: ManualClock) -> SparkLog:
    log = SparkLog(memory, MetadataLog.open(memory, clock, create=True), clock)
    log.create_topic("t", 2)
    return log


@pytest.fixture
def other(memory: MemoryStore, clock: ManualClock) -> SparkLog:
    """Another process."""
    return SparkLog(memory, MetadataLog.open(memory, clock, create=True), clock)


def run(log: SparkLog, *, dry_run: bool = False) -> VacuumReport:
    return vacuum(log.metadata, log.clock, dry_run=dry_run)


def run_now(log: SparkLog, retain_ms: int = 0) -> VacuumReport:
    return vacuum(log.metadata, log.clock, retain_ms=retain_ms, force=True)


def test_what_is_being_uploaded_has_the_time_that_segments_have(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[dict[str, object]] = []

    def sweep_temporary(**given: object) -> int:
        swept.append(given)
        return 0

    monkeypatch.setattr(log.store, "sweep_temporary", sweep_temporary)
    run(log)
    vacuum(log.metadata, log.clock, retain_ms=5 * RETAIN_MS)
    run_now(log)
    assert [one["unfinished_older_than_ms"] for one in swept] == [RETAIN_MS, 5 * RETAIN_MS, DAY_MS]
    assert {one["older_than_ms"] for one in swept} == {DAY_MS}


def data_files(log: SparkLog) -> set[str]:
    names = {file.name for file in log.store.list("", recursive=True)}
    return {name for name in names if not name.startswith(("__cluster_metadata/", "meta.properties"))}


def live(log: SparkLog) -> set[str]:
    return {extent.segment for partition in range(2) for extent in extents(log, partition=partition)}


def stage(log: SparkLog, value: bytes) -> StagedAppend:
    with log.appender() as appender:
        appender.add(pa.table({"value": pa.array([value], pa.binary())}), "t")
        return appender.finish()


def delete_topic(log: SparkLog, name: str) -> None:
    log.metadata.publish(lambda image: [plan_delete_topic(image, name)])


def test_what_was_merged_goes_after_a_week(log: SparkLog, append: Append, clock: ManualClock) -> None:
    for number in range(4):
        append([b"%d" % number])
    before, (old,) = records(log), live(log)
    optimize(log.metadata, clock)
    commit = log.image.commit
    clock.advance_ms(RETAIN_MS - 1)
    report = run(log)
    assert (report.dead.files, report.waiting.files, report.live.files) == (0, 1, 1)
    assert (report.horizon, log.image.commit) == (-1, commit)  # nothing to gain: nothing is published
    clock.advance_ms(1)
    report = run(log)
    assert (report.dead.files, report.waiting.files, report.live.files) == (1, 0, 1)
    assert (report.horizon_before, report.horizon) == (-1, commit)
    assert old not in data_files(log)
    assert data_files(log) == live(log)
    assert records(log) == before
    append([b"more"])
    commit = log.image.commit
    assert run(log).dead.files == 0
    assert log.image.commit == commit


def test_where_nothing_can_go_nothing_is_published(log: SparkLog, append: Append, clock: ManualClock) -> None:
    """Its first commit of that kind would lock older software out."""
    append([b"a"])
    commit = log.image.commit
    clock.advance_ms(2 * RETAIN_MS)
    report = run(log)
    assert (report.live.files, report.horizon, log.refresh().commit) == (1, -1, commit)


def test_what_was_born_at_the_horizon_may_be_published_still(log: SparkLog, append: Append) -> None:
    append([b"a"])
    names = [f"segments/{'a' * 32}/00000000.{born}.{kind}" for born in (4, 5, 6) for kind in ("log", "index")]
    classifier = Classifier(dataclasses.replace(log.image, sweep_horizon=5))
    verdicts = [classifier.state_of(StoredFile(name, 1, 0)) for name in names]
    assert verdicts == [FileState.DEAD] * 2 + [FileState.WAITING] * 4


def test_a_deleted_topic_frees_its_space(log: SparkLog, append: Append, clock: ManualClock) -> None:
    log.create_topic("gone", 1)
    append([b"x" * 1000], topic="gone")
    log.close()  # the next append begins another segment
    append([b"kept"])
    delete_topic(log, "gone")
    clock.advance_ms(RETAIN_MS)
    assert run(log).dead.size_bytes > 1000
    assert data_files(log) == live(log)
    assert [value for _, value, _ in records(log)] == [b"kept"]


def test_what_is_staged_stays_for_a_week_and_can_be_published(
    log: SparkLog, other: SparkLog, append: Append, clock: ManualClock
) -> None:
    staged = stage(log, b"slow")
    clock.advance_ms(RETAIN_MS - 1)
    other.append("t", pa.table({"value": [b"quick"]}), partition=1)
    report = run(other)
    assert (report.dead.files, report.waiting.files) == (0, 1)
    log.publish([staged])
    assert [value for _, value, _ in records(log) + records(log, partition=1)].count(b"slow") == 1


def test_what_is_staged_for_longer_goes_and_says_so(
    log: SparkLog, other: SparkLog, clock: ManualClock
) -> None:
    staged = stage(log, b"late")
    other.append("t", pa.table({"value": [b"quick"]}))
    clock.advance_ms(RETAIN_MS)
    assert run(other).dead.files == 1
    with pytest.raises(RetriableError) as raised:
        log.publish([staged])
    assert raised.value.code == "STAGING_EXPIRED"
    log.append("t", pa.table({"value": [b"late"]}), partition=0)
    assert [value for _, value, _ in records(log)].count(b"late") == 1
    assert data_files(other) >= live(other)


def test_what_is_published_while_the_horizon_moves_is_live(
    log: SparkLog, other: SparkLog, memory: MemoryStore, clock: ManualClock
) -> None:
    """1. a vacuum finds that nothing refers to a file; 2. its writer publishes it; 3. the horizon moves."""
    staged = stage(log, b"just in time")
    other.append("t", pa.table({"value": [b"quick"]}), partition=1)
    clock.advance_ms(RETAIN_MS)

    def publish_first(operation: str, name: str) -> None:
        if (operation, name) == ("list", DIRECTORY):  # for the dates of commits: the image is known by now
            memory.hook = None
            log.publish([staged])

    memory.hook = publish_first
    report = run(other)
    assert report.horizon >= 0
    assert (report.dead.files, report.live.files) == (0, 2)
    found = [value for partition in range(2) for _, value, _ in records(other, partition=partition)]
    assert sorted(found) == [b"just in time", b"quick"]


def test_names_that_are_not_ours_are_never_touched(log: SparkLog, append: Append, clock: ManualClock) -> None:
    own = f"segments/{'a' * 32}/00000000.0.log"
    strange = {
        f"segments/{'a' * 32}/00000000.0.log.bak",
        f"segments/{'a' * 32}/notes.txt",
        f"segments/{'a' * 31}g/00000000.0.log",
        f"segments/{'a' * 32}.copy/00000000.0.log",
        f"t-0/{0:020d}.0-{'x' * 22}.log~",
        f"t-0/{0:020d}.log",
        "t-0/_SUCCESS",
        f"t-01/{0:020d}.0-{'x' * 22}.log",  # a date, perhaps
        f"segments/{'a' * 32}/deeper/00000000.0.log",
        f"elsewhere/{'a' * 32}/00000000.0.log",
        "00000000.0.log",
        "checkpoint/offsets/0",
    }
    for name in (own, *strange):
        log.store.put_hint(name, b"?")
    append([b"a"])
    clock.advance_ms(RETAIN_MS)
    report = run(log)
    assert (report.dead.files, report.other.files) == (1, 7)
    assert data_files(log) == {*live(log), *strange}


def test_names_from_before_births_go_when_the_horizon_is_there(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    names = [f"segments/{'a' * 32}/00000003.log", f"t-1/{5:020d}-{'x' * 22}.log"]
    for name in names:
        log.store.put_hint(name, b"?")
    append([b"a"])
    clock.advance_ms(RETAIN_MS)
    assert {born_of(name) for name in names} == {-1}
    assert run(log).dead.files == 2
    assert data_files(log) == live(log)


def test_indexes_go_with_their_segments_and_after_them(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    append([b"a"])
    (segment,) = live(log)
    index = segment.removesuffix(".log") + ".index"
    orphans = {
        f"segments/{'b' * 32}/00000000.0.index",
        f"t-0/{0:020d}.0-{'x' * 22}.index",
        f"t-0/{0:020d}.0-{'x' * 22}.timeindex",
    }
    for name in (index, *orphans):
        log.store.put_hint(name, b"")
    clock.advance_ms(RETAIN_MS)
    assert run(log).dead.files == 3
    assert data_files(log) == {segment, index}


def test_a_segment_is_live_however_its_directory_is_spelt(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    """A file system that ignores case may show it under another topic's directory."""
    for number in range(3):
        append([b"%d" % number])
    optimize(log.metadata, clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    (segment,) = live(log)
    image = dataclasses.replace(log.image, sweep_horizon=log.image.commit)
    names = [segment, f"T{segment[1:]}", f"t-0/{0:020d}.0-{'x' * 22}.log"]
    verdicts = [Classifier(image).state_of(StoredFile(name, 1, 0)) for name in names]
    assert segment.startswith("t-0/")
    assert verdicts == [FileState.LIVE, FileState.LIVE, FileState.DEAD]


def test_a_dry_run_names_what_would_go_and_changes_nothing(
    log: SparkLog, append: Append, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog.maintenance.sweep.MAX_NAMED", 2)
    for _ in range(3):
        append([b"a"])
        log.close()
    optimize(log.metadata, clock)
    clock.advance_ms(RETAIN_MS)
    before, commit = data_files(log), log.image.commit
    told = run(log, dry_run=True)
    assert (data_files(log), log.image.commit) == (before, commit)
    assert len(told.named) == 2
    assert {file.name for file in told.named} < before - live(log)
    assert all(file.born == born_of(file.name) and file.size_bytes > 60 for file in told.named)
    done = run(log)
    assert (done.dead, done.live, done.horizon) == (told.dead, told.live, told.horizon)
    assert (done.dead.files, done.named) == (3, [])


@pytest.mark.parametrize(("retain_ms", "force"), [(RETAIN_MS - 1, False), (0, False), (-1, True)])
def test_less_than_a_week_must_be_forced(log: SparkLog, retain_ms: int, force: bool) -> None:
    with pytest.raises(InvalidRequestError, match="to retain, expected at least") as raised:
        vacuum(log.metadata, log.clock, retain_ms=retain_ms, force=force)
    assert raised.value.code == "RETAIN_TOO_SHORT"


def test_what_was_live_within_the_hour_stays_for_its_readers(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    for number in range(3):
        append([b"%d" % number])
    (old,) = live(log)
    clock.advance_ms(4 * RETAIN_MS)
    append([b"x"], partition=1)  # so that there is something to say that it is late
    clock.advance_ms(RETAIN_MS)
    optimize(log.metadata, clock)
    clock.advance_ms(FREED_MS - 1)
    report = run(log)
    assert (report.dead.files, old in data_files(log)) == (0, True)
    clock.advance_ms(1)
    assert run(log).dead.files > 0
    assert old not in data_files(log)


def test_a_wrong_date_makes_a_writer_append_twice_and_loses_nothing(
    log: SparkLog, other: SparkLog, append: Append, clock: ManualClock
) -> None:
    append([b"a"])
    staged = stage(other, b"b")
    clock.advance_ms(-100 * DAY_MS)  # whoever writes this has a storage whose clock is wrong
    log.store.put_hint(f"segments/{'d' * 32}/00000000.{log.image.commit}.log", b"?")
    clock.advance_ms(100 * DAY_MS)
    report = run(log)
    assert report.horizon == log.image.commit - 1  # as far as that file says
    with pytest.raises(RetriableError, match="Append the rows again"):
        other.publish([staged])
    other.append("t", pa.table({"value": [b"b"]}), partition=0)
    assert [value for _, value, _ in records(log)] == [b"a", b"b"]


def test_whatever_the_dates_are_the_horizon_is_at_most_the_end(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    for _ in range(5):
        append([b"a"])
        run_now(log)
        assert log.image.sweep_horizon <= log.image.commit
    clock.advance_ms(-1000 * DAY_MS)
    before = log.image.sweep_horizon
    assert run(log).horizon == before  # never back


def test_two_at_once_on_one_root(log: SparkLog, other: SparkLog, append: Append, memory: MemoryStore) -> None:
    for number in range(4):
        append([b"%d" % number])
        log.close()
    before = records(log)
    optimize(log.metadata, log.clock)

    others: list[int] = []

    def also(operation: str, name: str) -> None:
        if operation == "delete":
            memory.hook = None
            others.append(run_now(other).dead.files)

    memory.hook = also
    run_now(log)
    assert others == [4]
    assert (data_files(log), records(log)) == (live(log), before)


@pytest.mark.parametrize("step", range(11))
def test_stopped_anywhere_and_run_again(
    log: SparkLog, append: Append, memory: MemoryStore, clock: ManualClock, step: int
) -> None:
    for number in range(4):
        append([b"%d" % number])
        log.close()
    before = records(log)
    optimize(log.metadata, clock)
    clock.advance_ms(RETAIN_MS)
    calls = iter(range(step))

    def stop(operation: str, name: str) -> None:
        if operation in {"list", "put_if_absent", "delete"} and next(calls, None) is None:
            raise StorageError("STORAGE_FAILED", f"{operation} {name}", fix="")

    memory.hook = stop
    try:
        run(log)
    except StorageError:
        stopped = True
    else:
        stopped = False
    memory.hook = None
    assert stopped is (step < 10)
    assert records(log) == before
    run(log)
    assert (data_files(log), records(log)) == (live(log), before)


def test_progress_is_told_in_bytes(log: SparkLog, append: Append, clock: ManualClock) -> None:
    for number in range(5):
        append([b"%d" % number])
        log.close()
    told: list[tuple[int, int]] = []

    def note(show: Callable[[int, int], None], progress: object) -> None:
        show(progress.done_bytes, progress.total_bytes)  # type: ignore[attr-defined]

    vacuum(log.metadata, clock, progress=partial(note, lambda done, total: told.append((done, total))))
    assert len(told) > 2
    assert told[0][0] == 0 < told[0][1]
    assert told[-1][0] == told[-1][1] == sum(file.size for file in log.store.list("segments", recursive=True))
    assert sorted(told) == told
