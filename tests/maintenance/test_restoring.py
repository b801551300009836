"""A root that was put back from a backup: the command, and maintenance that goes on beside it."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog, open_log
from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import CorruptLogError, FencedError, RetriableError
from sparklog.maintenance import RETAIN_MS, alone, restore, sweep, vacuum
from sparklog.metadata import MetadataLog, plan_begin_producer, plan_writer_txn
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.loading import LEASE_MS, read_incarnation
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.maintenance.conftest import Append


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> SparkLog:
    """Its files' dates are those of the clock."""
    store = MemoryStore("tests", clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 2)
    return log


def files(log: SparkLog) -> set[str]:
    return {file.name for file in log.store.list("segments", recursive=True)}


def test_the_report_says_what_changed(log: SparkLog, append: Append, clock: ManualClock) -> None:
    append([b"a"])
    log.metadata.publish(
        lambda image: [
            *plan_begin_producer(image, "app", timeout_ms=1, now_ms=1).actions,
            *filter(None, [plan_writer_txn(image, "query", 3, [image.topic("t").topic_id])]),
        ]
    )
    would = restore(log.metadata, clock, dry_run=True)
    assert (would.commit, log.image.incarnation.incarnation_id) == (log.image.commit, "")
    report = restore(log.metadata, clock)
    assert (report.commit, report.incarnation_before) == (log.image.commit, "")
    assert log.image.incarnation.incarnation_id == report.incarnation
    assert (report.transactions, report.applications, report.partitions) == (1, ("query",), 2)
    assert (report.aborted, report.brokers, report.producers) == ((), (), 0)
    assert (report.producer_id_before, log.image.next_producer_id) == (1, report.producer_id)
    assert would.producer_id <= report.producer_id
    again = restore(log.metadata, clock)
    assert again.incarnation_before == report.incarnation
    assert again.producer_id > report.producer_id
    assert log.read("t", 0, 0)["value"].to_pylist() == [b"a"]
    append([b"b"])
    assert log.read("t", 0, 0)["value"].to_pylist() == [b"a", b"b"]


def test_beside_maintenance_it_is_refused(tmp_path_log: SparkLog) -> None:
    with alone(tmp_path_log.metadata), pytest.raises(RetriableError, match="MAINTENANCE_RUNNING"):
        restore(tmp_path_log.metadata, SystemClock())


@pytest.fixture
def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore("tests", clock=clock, traits=StoreTraits(is_remote=True, appends_after_sync=False))


def test_on_an_object_store_it_waits_until_everybody_has_looked(
    remote: MemoryStore, clock: ManualClock
) -> None:
    """A process that was not stopped puts commits behind its own for as long as it has not looked."""
    log = SparkLog(remote, MetadataLog.open(remote, clock, create=True), clock)
    log.create_topic("t", 1)
    zombie = SparkLog(remote, MetadataLog.open(remote, clock), clock)
    began_ms = clock.monotonic_ms()
    report = restore(log.metadata, clock)
    assert clock.monotonic_ms() - began_ms == 2 * LEASE_MS
    assert read_incarnation(remote) == report.incarnation
    with pytest.raises(FencedError, match="ROOT_RESTORED"):
        zombie.create_topic("u", 1)


def test_after_a_crash_nobody_publishes_until_it_is_run_again(
    remote: MemoryStore, clock: ManualClock
) -> None:
    log = SparkLog(remote, MetadataLog.open(remote, clock, create=True), clock)
    log.create_topic("t", 1)

    def fail(operation: str, name: str) -> None:
        if operation == "put_if_absent" and name.endswith(".json"):
            raise KeyboardInterrupt

    remote.hook = fail
    with pytest.raises(KeyboardInterrupt):
        restore(log.metadata, clock)
    remote.hook = None
    opened = SparkLog(remote, MetadataLog.open(remote, clock), clock)
    clock.advance_ms(LEASE_MS)
    with pytest.raises(FencedError, match="run `sparklog root restore` again"):
        opened.create_topic("u", 1)
    restore(MetadataLog.open(remote, clock), clock)
    after = SparkLog(remote, MetadataLog.open(remote, clock), clock)
    clock.advance_ms(LEASE_MS)
    assert after.create_topic("u", 1)


def test_a_commit_behind_a_gap_is_not_overlooked(remote: MemoryStore, clock: ManualClock) -> None:
    """It was put by a process that was not stopped, and has seen what was lost."""
    log = SparkLog(remote, MetadataLog.open(remote, clock, create=True), clock)
    log.create_topic("t", 1)
    remote.put_if_absent(commit_name(log.image.commit + 5), b"?")
    with pytest.raises(CorruptLogError, match=f"commit {log.image.commit + 1} is missing, but commit"):
        restore(log.metadata, clock)


def test_what_only_lost_commits_refer_to_is_swept_and_what_comes_stays(
    log: SparkLog, append: Append, clock: ManualClock
) -> None:
    """Births are above those of all that was lost, so vacuum goes on, and keeps what is being written."""
    append([b"kept"])
    lost = f"segments/{'c' * 32}/00000000.{log.image.commit + 9}.log"
    log.store.put_hint(lost, b"?")
    restore(log.metadata, clock)
    coming = f"segments/{'d' * 32}/00000000.{log.image.birth}.log"
    log.store.put_hint(coming, b"?")
    vacuum(log.metadata, clock)
    assert lost not in files(log)
    assert coming in files(log)
    append([b"later"])
    clock.advance_ms(RETAIN_MS + 1)
    report = vacuum(log.metadata, clock)
    assert report.horizon == report.horizon_before + 1 == log.image.birth - 1
    assert coming not in files(log)
    assert log.read("t", 0, 0)["value"].to_pylist() == [b"kept", b"later"]


def test_a_vacuum_that_goes_on_over_a_restore_removes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dead as of its image may be live in the older one that was put in its place."""
    root, backup = tmp_path / "root", tmp_path / "backup"
    clock = SystemClock()
    with open_log(root) as log:
        log.create_topic("t", 1)
        log.append("t", pa.table({"value": pa.array([b"a"], pa.binary())}))
    shutil.copytree(root, backup)

    def put_back(name: str) -> None:
        if name == "vacuum.moved":  # it knows what is dead, and has removed nothing yet
            shutil.rmtree(root)
            shutil.copytree(backup, root)
            with open_log(root) as back:
                restore(back.metadata, clock)

    with open_log(root) as log:
        log.delete_topic("t")
        monkeypatch.setattr(sweep, "failpoint", put_back)
        with pytest.raises(FencedError, match="ROOT_RESTORED"):
            vacuum(log.metadata, clock, retain_ms=0, force=True)
    with open_log(root) as log:
        assert log.read("t", 0, 0)["value"].to_pylist() == [b"a"]
