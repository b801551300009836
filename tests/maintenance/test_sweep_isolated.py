"""Files of isolated topics: removed with their topic, whoever still writes, and never another topic's."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, RetriableError, StorageError
from sparklog.maintenance import RETAIN_MS, MergeLimits, Terms, maintain, optimize, vacuum
from sparklog.maintenance.sweep import (
    CHECK_MS,
    DAY_MS,
    IDLE_MS,
    Classifier,
    FileState,
    measure_usage,
    retire,
    retire_is_due,
)
from sparklog.metadata import MetadataLog, isolated_prefix
from sparklog.storage import MemoryStore, StoredFile, StoreTraits
from tests.maintenance.conftest import extents
from tests.maintenance.rounds_told import step
from tests.support.rights import closed, read_only

ISOLATED = {"sparklog.segment.isolation": "true"}
OBJECTS = StoreTraits(is_remote=True, appends_after_sync=False)
TOPICS = ("orders", "orders-eu", "t")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[None, OBJECTS], ids=["files", "objects"])
def log(request: pytest.FixtureRequest, clock: ManualClock) -> SparkLog:
    """Two isolated topics and one that is not, each with a record; the clock is that of the files."""
    store = MemoryStore("tests", clock=clock, traits=request.param)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    for topic in TOPICS:
        log.create_topic(topic, 1, ISOLATED if topic != "t" else {})
        put(log, topic)
    return log


def put(log: SparkLog, topic: str) -> None:
    log.append(topic, pa.table({"value": [b"x" * 100]}))


def data_files(log: SparkLog) -> set[str]:
    return {file.name for file in log.store.list("", recursive=True) if file.name.endswith(".log")}


def live(log: SparkLog) -> set[str]:
    return {extent.segment for topic in log.image.topics for extent in extents(log, topic)}


def test_the_files_of_a_deleted_topic_go_though_its_writer_goes_on(log: SparkLog, clock: ManualClock) -> None:
    log.delete_topic("orders")
    for topic in ("orders-eu", "t"):
        put(log, topic)
    clock.advance_ms(RETAIN_MS)
    assert vacuum(log.metadata, clock).dead.files == 1
    assert data_files(log) == live(log)


def test_rounds_free_them_after_the_delay_for_readers(log: SparkLog, clock: ManualClock) -> None:
    """All of the file was committed, and no other topic is in it: it need not wait for a week."""
    log.delete_topic("orders")
    terms = Terms(limits=MergeLimits(fan_in=10_000))
    clock.advance_ms(IDLE_MS + CHECK_MS)
    maintain(log.metadata, clock, terms)
    clock.advance_ms(60_000)
    maintain(log.metadata, clock, terms)
    assert data_files(log) == live(log)
    assert not any(name.startswith(isolated_prefix("orders")) for name in data_files(log))


def test_what_was_not_published_keeps_its_week_and_then_is_refused(log: SparkLog, clock: ManualClock) -> None:
    log.close()  # the next append begins another segment
    appender = log.appender()
    appender.add(pa.table({"value": [b"slow"]}), "orders")
    staged = appender.finish()
    kept = {draft.segment for draft in staged.drafts}
    log.delete_topic("orders-eu")
    clock.advance_ms(RETAIN_MS - 1)
    vacuum(log.metadata, clock)
    assert kept <= data_files(log)
    clock.advance_ms(1)
    vacuum(log.metadata, clock)
    assert kept.isdisjoint(data_files(log))
    with pytest.raises(RetriableError, match="sweep horizon"):
        log.publish([staged])


def test_usage_and_states(log: SparkLog, clock: ManualClock) -> None:
    optimize(log.metadata, clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    log.delete_topic("orders")
    usage = measure_usage(log.metadata, clock, limit_ms=1000)
    assert (usage.live.files, usage.unused.files) == (2, 1)


@pytest.mark.parametrize("shared_bytes", [0, 1 << 20])
def test_a_segment_is_live_however_the_directory_of_its_topic_is_spelt(
    log: SparkLog, clock: ManualClock, shared_bytes: int
) -> None:
    """A file system that ignores case may show it in the directory of a topic with almost the same name."""
    put(log, "orders")
    optimize(log.metadata, clock, limits=MergeLimits(fan_in=None, shared_bytes=shared_bytes))
    (segment,) = {extent.segment for extent in extents(log, "orders")}
    image = dataclasses.replace(log.image, sweep_horizon=log.image.commit)
    names = [segment, segment.replace("isolated/orders/", "isolated/Orders/")]
    dead = f"isolated/orders/segments/{'b' * 32}/00000000.0.log"
    states = [Classifier(image).state_of(StoredFile(name, 1, 0)) for name in (*names, dead)]
    assert states == [FileState.LIVE, FileState.LIVE, FileState.DEAD]


def test_empty_directories_go_but_for_those_of_topics_which_may_have_access_lists(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        for topic in ("orders", "orders-eu"):
            log.create_topic(topic, 1, ISOLATED)
            put(log, topic)
        log.close()
        log.delete_topic("orders")
        assert vacuum(log.metadata, log.clock, retain_ms=0, force=True).dead.files == 1
        directory = tmp_path / "log" / "isolated"
        (directory / "notes").mkdir()
        for _ in range(3):  # from the innermost one on, once each has been empty for a day
            for path, _, _ in os.walk(directory):
                os.utime(path, (0, 0))
            vacuum(log.metadata, log.clock, retain_ms=DAY_MS, force=True)
        assert list((directory / "orders").iterdir()) == []
        assert {path.name for path in directory.iterdir()} == {"orders", "orders-eu", "notes"}
        put(log, "orders-eu")
        log.create_topic("orders", 1, ISOLATED)
        put(log, "orders")
        assert log.read("orders", 0, 0).num_rows == 1


# --- refused topics ----------------------------------------------------------------------------------


@pytest.fixture
def root(unprivileged: Path) -> Path:
    return unprivileged / "log"


@pytest.fixture
def files(root: Path) -> Iterator[SparkLog]:
    """Two isolated topics and one that is not, each with a file of a merged, and so dead, segment."""
    with open_log(root) as log:
        for topic in TOPICS:
            log.create_topic(topic, 1, ISOLATED if topic != "t" else {})
            for _ in range(2):
                put(log, topic)
            log.close()
            optimize(log.metadata, log.clock, [topic])
        log.close()
        age(root, IDLE_MS + CHECK_MS)
        yield log


def age(root: Path, by_ms: int) -> None:
    for path in root.rglob("*"):
        seconds = path.stat().st_mtime - by_ms / 1000
        os.utime(path, (seconds, seconds))


def dead(log: SparkLog) -> dict[str, int]:
    """How many dead files each topic has."""
    found = data_files(log) - live(log)
    return {
        topic: sum(name.startswith(isolated_prefix(topic) if topic != "t" else "segments/") for name in found)
        for topic in TOPICS
    }


def test_retiring_leaves_a_closed_topic_to_the_vacuum(files: SparkLog, root: Path) -> None:
    """Tried in each round, its segments would keep the others from their turn, once there are enough."""
    assert dead(files) == dict.fromkeys(TOPICS, 1)
    with closed(root / "isolated/orders"):
        first = retire(files.metadata, files.clock, delay_ms=0)
        assert first.retired == 2
        (message,) = first.refused
        assert "isolated/orders/ is closed to this process" in message
        second = retire(files.metadata, files.clock, delay_ms=0)
        assert (second.files, second.refused) == (2, [])
    assert dead(files) == {"orders": 1, "orders-eu": 0, "t": 0}
    assert not retire_is_due(files.image, files.clock.now_ms() + CHECK_MS, 0)
    age(root, RETAIN_MS)
    vacuum(files.metadata, files.clock)
    assert dead(files) == dict.fromkeys(TOPICS, 0)


def test_what_is_retired_and_may_not_be_removed_is_left_to_the_vacuum(files: SparkLog, root: Path) -> None:
    assert retire(files.metadata, files.clock, delay_ms=0).retired == 3
    with read_only(root / "isolated/orders"):
        second = retire(files.metadata, files.clock, delay_ms=0)
        assert second.files == 2
        assert len(second.refused) == 1
    assert dead(files) == {"orders": 1, "orders-eu": 0, "t": 0}
    assert not retire_is_due(files.image, files.clock.now_ms() + CHECK_MS, 0)
    vacuum(files.metadata, files.clock)
    assert dead(files) == dict.fromkeys(TOPICS, 0)


def test_a_round_says_which_topic_it_left_out(files: SparkLog, root: Path) -> None:
    with closed(root / "isolated/orders"):
        report = maintain(files.metadata, files.clock, steps=["retire"])
    assert step(report, "retire").outcome == "done"
    assert "isolated/orders/ is closed to this process" in report.problem
    assert report.has_failed


def test_a_round_that_could_do_nothing_else_has_failed(root: Path) -> None:
    with open_log(root) as log:
        log.create_topic("orders", 1, ISOLATED)
        put(log, "orders")
        log.close()
        log.delete_topic("orders")
        age(root, IDLE_MS)
        with closed(root / "isolated/orders"):
            report = maintain(log.metadata, log.clock, steps=["retire"])
    assert step(report, "retire").outcome == "failed"
    assert report.is_fruitless


def test_an_empty_directory_that_may_not_be_removed_stays(files: SparkLog, root: Path) -> None:
    empty = root / "isolated/orders/segments" / ("e" * 32)
    empty.mkdir()
    age(root, RETAIN_MS)
    with closed(empty.parent, 0o500):
        (message,) = vacuum(files.metadata, files.clock).refused
        assert "cannot remove" in message
    assert empty.exists()
    assert vacuum(files.metadata, files.clock).refused == []
    assert not empty.exists()


def test_the_directories_of_all_topics_may_be_closed_together(files: SparkLog, root: Path) -> None:
    age(root, RETAIN_MS)
    with closed(root / "isolated"):
        (message,) = vacuum(files.metadata, files.clock).refused
        assert "isolated/ is closed to this process" in message
        assert retire(files.metadata, files.clock, delay_ms=0).retired == 1
    vacuum(files.metadata, files.clock)
    assert dead(files) == dict.fromkeys(TOPICS, 0)


def test_a_vacuum_removes_what_it_may(files: SparkLog, root: Path) -> None:
    age(root, RETAIN_MS)
    with read_only(root / "isolated/orders"):
        report = vacuum(files.metadata, files.clock)
        assert report.horizon > report.horizon_before
        assert dead(files) == {"orders": 1, "orders-eu": 0, "t": 0}
        assert len(report.refused) == 1
        assert report.waiting.files >= 1
    assert vacuum(files.metadata, files.clock).refused == []
    assert dead(files) == dict.fromkeys(TOPICS, 0)


def test_while_a_directory_cannot_be_listed_the_horizon_stays(files: SparkLog, root: Path) -> None:
    """Its files might be the only ones to show that the log has lost commits. What was dead before may go."""
    assert retire(files.metadata, files.clock, delay_ms=0).retired == 3
    put(files, "t")
    files.close()
    optimize(files.metadata, files.clock, ["t"])
    age(root, RETAIN_MS)
    with closed(root / "isolated/orders"):
        report = vacuum(files.metadata, files.clock)
    assert report.horizon == report.horizon_before
    (message,) = report.refused
    assert "isolated/orders/ is closed to this process" in message
    assert dead(files) == {"orders": 1, "orders-eu": 0, "t": 2}
    vacuum(files.metadata, files.clock)
    assert dead(files) == dict.fromkeys(TOPICS, 0)


def test_files_of_a_closed_directory_might_show_that_the_log_is_an_older_copy(
    files: SparkLog, root: Path
) -> None:
    """1. a task writes rows of `t`; 2. the log is copied; 3. the rows are published, then some of `orders` in
    a new file; 4. the copy replaces the log. Nothing in it refers to the rows, and only the file of `orders`
    shows that it lacks commits."""
    appender = files.appender()
    appender.add(pa.table({"value": [b"slow"]}), "t")
    staged = appender.finish()
    (slow,) = {draft.segment for draft in staged.drafts}
    for number in range(3):
        files.create_topic(f"more-{number}", 1)
    shutil.copytree(root / "__cluster_metadata", root / "copy")
    files.publish([staged])
    put(files, "orders")
    files.close()
    shutil.rmtree(root / "__cluster_metadata")
    (root / "copy").rename(root / "__cluster_metadata")
    age(root, RETAIN_MS)
    with open_log(root) as older:
        with closed(root / "isolated/orders"):
            assert len(vacuum(older.metadata, older.clock).refused) == 1
        assert slow in data_files(older)
        with pytest.raises(CorruptLogError, match="older copy"):
            vacuum(older.metadata, older.clock)


def test_a_closed_shared_directory_ends_it(files: SparkLog, root: Path) -> None:
    with closed(root / "segments"), pytest.raises(StorageError, match="STORAGE_REFUSED"):
        vacuum(files.metadata, files.clock)
    with closed(root / "segments"), pytest.raises(StorageError, match="STORAGE_REFUSED"):
        retire(files.metadata, files.clock, delay_ms=0)


def test_usage_says_what_it_did_not_see(files: SparkLog, root: Path) -> None:
    with closed(root / "isolated/orders"):
        usage = measure_usage(files.metadata, files.clock, limit_ms=60_000)
    assert (usage.is_whole, len(usage.refused), usage.live.files) == (False, 1, 2)
