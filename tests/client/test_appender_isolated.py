"""Isolated topics: all that is written of one, by whatever path, is in its directory, and nothing else is."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.appender import AppendOptions
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.log.writer import MAX_ISOLATED, MAX_LANES
from sparklog.maintenance import optimize, restore, vacuum
from sparklog.metadata import is_internal, isolated_prefix
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.seaweed import KEY, SECRET, SeaweedServer
from tests.storage.s3_proxy import FaultyProxy
from tests.support.roots import opened

ONE = pa.table({"key": [b"k"], "value": [b"x"]})
ISOLATED = {"sparklog.segment.isolation": "true"}
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)


@pytest.fixture(params=[None, REMOTE], ids=["files", "objects"])
def log(request: pytest.FixtureRequest) -> SparkLog:
    return opened(MemoryStore("isolated", traits=request.param), ManualClock())


def segments(log: SparkLog, topic: str) -> set[str]:
    """Of its extents, staged ones included."""
    image = log.refresh(force=True)
    found = image.topic(topic)
    places = [(found.topic_id, number) for number in range(len(found.partitions))]
    staged = [
        one.staged_in(*place) for one in image.transactions.by_id.values() for place in places if one.staged
    ]
    return {
        extent.segment for extents in (*[s.extents for s in found.partitions], *staged) for extent in extents
    }


def in_one_flush(log: SparkLog, topics: list[str], options: AppendOptions | None = None) -> None:
    with log.appender(options) as appender:
        for topic in topics:
            appender.add(ONE, topic, state=is_internal(topic))
        log.publish([appender.finish()])


def assert_isolated(log: SparkLog, topics: list[str]) -> None:
    """Each of these topics has all of its segments in its directory, and no other topic has one there."""
    for name in log.image.topics:
        inside = [segment.startswith(isolated_prefix(name)) for segment in segments(log, name)]
        assert all(inside) if name in topics else not any(inside)
        assert not any(
            segment.startswith(isolated_prefix(other))
            for other in topics
            for segment in segments(log, name)
            if other != name
        )


def test_more_isolated_topics_than_a_process_has_segments_open(log: SparkLog) -> None:
    topics = [f"t{number}" for number in range(MAX_ISOLATED + MAX_LANES)]
    for topic in topics:
        log.create_topic(topic, 1, ISOLATED)
    log.create_topic("shared", 1)
    for _ in range(3):
        in_one_flush(log, [*topics, "shared"])
    assert_isolated(log, topics)
    assert [log.read(topic, 0, 0).num_rows for topic in topics] == [3] * len(topics)
    assert log.read("shared", 0, 0).num_rows == 3


def test_a_few_isolated_topics_keep_their_segments(log: SparkLog) -> None:
    topics = [f"t{number}" for number in range(MAX_LANES)]
    for topic in topics:
        log.create_topic(topic, 2, ISOLATED)
    for _ in range(3):
        in_one_flush(log, topics)
    flushes = 3 if log.store.traits == REMOTE else 1
    assert [len(segments(log, topic)) for topic in topics] == [flushes] * len(topics)


def test_nothing_changes_for_other_topics(log: SparkLog) -> None:
    for topic in ("a", "b"):
        log.create_topic(topic, 1)
    in_one_flush(log, ["a", "b"])
    assert segments(log, "a") == segments(log, "b")
    assert log.image.reader_features == frozenset()


def test_by_the_root_for_all_topics_and_committed_offsets(log: SparkLog) -> None:
    log.alter_root(ISOLATED)
    log.create_topic("a", 1)
    log.create_topic("b", 1, {"sparklog.segment.isolation": "false"})
    in_one_flush(log, ["a", "b"])
    log.commit_offsets("g", {("a", 0): 1})
    assert_isolated(log, ["a", "__consumer_offsets"])


def test_a_topic_that_the_write_creates(log: SparkLog) -> None:
    options = AppendOptions(auto_create_topics=True, topic_configs=ISOLATED)
    in_one_flush(log, ["new"], options)
    assert_isolated(log, ["new"])
    assert log.image.reader_features == log.image.writer_features == {"isolated-topics"}


def test_a_planned_topic_that_another_process_has_created_without_the_setting(log: SparkLog) -> None:
    """The extents stay where they are, and the root needs the feature for them."""
    with log.appender(AppendOptions(auto_create_topics=True, topic_configs=ISOLATED)) as appender:
        appender.add(ONE, "t")
        staged = appender.finish()
        log.create_topic("t", 1)
        assert log.image.reader_features == frozenset()
        log.publish([staged])
    assert_isolated(log, ["t"])
    assert log.image.reader_features == {"isolated-topics"}
    assert log.read("t", 0, 0).num_rows == 1


def test_a_transaction_stages_in_the_directory(log: SparkLog) -> None:
    log.create_topic("t", 2, ISOLATED)
    log.create_topic("shared", 1)
    with log.transaction("app") as txn:
        for _ in range(2):
            txn.append("t", ONE)
            txn.append("shared", ONE)
            txn.flush()
            assert segments(log, "t")
            assert_isolated(log, ["t"])
    assert_isolated(log, ["t"])
    assert log.read("shared", 0, 0).num_rows == 2


def test_what_was_written_before_is_moved_by_the_next_merge_and_back(log: SparkLog) -> None:
    log.create_topic("t", 1)
    in_one_flush(log, ["t"])
    log.alter_topic("t", ISOLATED)
    in_one_flush(log, ["t"])
    assert len(segments(log, "t")) == 2
    optimize(log.metadata, log.clock)
    assert_isolated(log, ["t"])
    log.alter_topic("t", delete=["sparklog.segment.isolation"])
    in_one_flush(log, ["t"])
    assert not all(name.startswith("isolated/") for name in segments(log, "t"))
    optimize(log.metadata, log.clock)
    assert_isolated(log, [])
    assert log.read("t", 0, 0).num_rows == 3


# --- on disks and in buckets -------------------------------------------------------------------------


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix == ".log"}


def test_a_deleted_topic_leaves_nothing_and_its_name_can_be_used_again(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with sparklog.open(root) as log:
        for topic in ("orders", "orders-eu"):
            log.create_topic(topic, 1, ISOLATED)
        in_one_flush(log, ["orders", "orders-eu"])
        log.delete_topic("orders")
        log.create_topic("orders", 1, ISOLATED)
        in_one_flush(log, ["orders", "orders-eu"])
        assert len(files_of(root)) == 3
        log.close()
        assert vacuum(log.metadata, log.clock, retain_ms=0, force=True).dead.files == 1
        assert files_of(root) == segments(log, "orders") | segments(log, "orders-eu")
        assert [log.read(topic, 0, 0).num_rows for topic in ("orders", "orders-eu")] == [1, 2]


def test_a_root_that_was_put_back_from_a_backup(tmp_path: Path) -> None:
    root, backup = tmp_path / "log", tmp_path / "backup"
    with sparklog.open(root) as log:
        log.create_topic("t", 1, ISOLATED)
        in_one_flush(log, ["t"])
    shutil.copytree(root, backup)
    with sparklog.open(root) as log:
        in_one_flush(log, ["t"])
        lost = segments(log, "t")
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    with sparklog.open(root, create=False) as log:
        restore(log.metadata, log.clock)
        in_one_flush(log, ["t"])
        assert_isolated(log, ["t"])
        assert log.read("t", 0, 0).num_rows == 2
        assert segments(log, "t") != lost
        assert log.image.reader_features == {"isolated-topics"}


def test_a_read_only_directory_of_another_topic_stops_nobody(tmp_path: Path) -> None:
    """Modes of directories separate topics: this process may write one of them only."""
    root = tmp_path / "log"
    with sparklog.open(root) as log:
        for topic in ("mine", "theirs"):
            log.create_topic(topic, 1, ISOLATED)
        in_one_flush(log, ["mine", "theirs"])
    shutil.rmtree(root / "isolated" / "theirs")
    (root / "isolated" / "theirs").write_text("")  # root may write to any directory, but not into a file
    with sparklog.open(root, create=False) as log:
        in_one_flush(log, ["mine"])
        assert log.read("mine", 0, 0).num_rows == 2
        with pytest.raises(StorageError):
            log.append("theirs", ONE)


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


def test_one_more_object_for_each_isolated_topic(s3_root: str, proxy: FaultyProxy) -> None:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": proxy.endpoint_url}
    with sparklog.open(s3_root, storage_options=options) as log:
        for topic, configs in (("a", {}), ("b", {}), ("orders", ISOLATED), ("orders-eu", ISOLATED)):
            log.create_topic(topic, 1, configs)
        in_one_flush(log, ["a", "b"])
        proxy.requests.clear()
        in_one_flush(log, ["a", "b"])
        assert [(one.method, one.is_commit) for one in proxy.requests] == [("PUT", False), ("PUT", True)]
        proxy.requests.clear()
        in_one_flush(log, ["a", "b", "orders", "orders-eu"])
        assert [one.method for one in proxy.requests] == ["PUT"] * 4
        assert_isolated(log, ["orders", "orders-eu"])
        in_one_flush(log, ["orders", "orders-eu"])
        optimize(log.metadata, log.clock)
        assert_isolated(log, ["orders", "orders-eu"])
        log.delete_topic("orders")
        vacuum(log.metadata, log.clock, retain_ms=0, force=True)
        assert log.store.list("isolated/orders", recursive=True) == []
        assert log.read("orders-eu", 0, 0).num_rows == 2
