"""Files of isolated topics: removed with their topic, whoever still writes, and never another topic's."""

import dataclasses
import os
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import ManualClock
from sparklog.errors import RetriableError
from sparklog.maintenance import RETAIN_MS, MergeLimits, Terms, maintain, optimize, vacuum
from sparklog.maintenance.sweep import CHECK_MS, DAY_MS, IDLE_MS, Classifier, FileState, measure_usage
from sparklog.metadata import MetadataLog, isolated_prefix
from sparklog.storage import MemoryStore, StoredFile, StoreTraits
from tests.maintenance.conftest import extents

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
