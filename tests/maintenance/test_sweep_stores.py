"""Vacuum where files really are: directories that become empty, locks, a bucket."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import RetriableError
from sparklog.maintenance import VacuumReport, optimize, vacuum
from sparklog.maintenance.budget import HOLD
from sparklog.maintenance.sweep import DAY_MS
from sparklog.metadata import plan_delete_topic
from sparklog.storage import LocalStore, StoredFile
from sparklog.storage.base import OnFailed


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def run_now(log: SparkLog) -> VacuumReport:
    return vacuum(log.metadata, log.clock, retain_ms=0, force=True)


def values(log: SparkLog) -> list[str]:
    return [value.decode() for value in log.read("t", 0, 0)["value"].to_pylist()]


def files(log: SparkLog) -> set[str]:
    found = {file.name for file in log.store.list("segments", recursive=True)}
    return found | {file.name for file in log.store.list("t-0", recursive=True)}


def live(log: SparkLog) -> set[str]:
    return {extent.segment for extent in log.refresh(force=True).partition("t", 0).extents}


@pytest.fixture
def log(root: str) -> SparkLog:
    log = sparklog.open(root)
    log.create_topic("t", 1)
    return log


def test_what_was_merged_goes_and_all_offsets_read_as_before(log: SparkLog) -> None:
    for number in range(5):
        log.append("t", rows(str(number)))
        log.close()
    optimize(log.metadata, log.clock)
    report = run_now(log)
    assert (report.dead.files, report.live.files, report.waiting.files) == (5, 1, 0)
    assert {name for name in files(log) if name.endswith(".log")} == live(log)
    with sparklog.open(log.url, create=False) as other:
        assert values(other) == ["0", "1", "2", "3", "4"]
    log.append("t", rows("5"))
    assert values(log) == ["0", "1", "2", "3", "4", "5"]


def test_what_is_born_while_a_vacuum_looks_is_no_older_copy(
    log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("t", rows("0"))
    walk = log.store.walk

    def append_first(enters: Callable[[str], bool], failed: OnFailed) -> Iterator[Sequence[StoredFile]]:
        monkeypatch.setattr(log.store, "walk", walk)
        with sparklog.open(log.url, create=False) as other:
            for number in range(1, 3):
                other.append("t", rows(str(number)))
                other.close()
        return walk(enters, failed)

    monkeypatch.setattr(log.store, "walk", append_first)
    assert run_now(log).live.files == 3


def test_empty_directories_go_a_day_later(log: SparkLog, directory: Path) -> None:
    log.append("t", rows("a"))
    log.create_topic("gone", 1)
    with sparklog.open(log.url) as other:
        other.append("gone", rows("b"))
    before = set((directory / "segments").iterdir())
    log.metadata.publish(lambda image: [plan_delete_topic(image, "gone")])
    assert run_now(log).dead.files == 1
    assert set((directory / "segments").iterdir()) == before  # it was changed a moment ago
    assert vacuum(log.metadata, log.clock).directories == 0
    (empty,) = [path for path in before if not list(path.iterdir())]
    old_ns = os.stat(empty).st_mtime_ns - DAY_MS * 1_000_000
    mine = [directory / "mine", directory / "mine-2026-01", directory / "segments" / "mine"]
    for path in (directory / "t-7", *mine):
        path.mkdir()
    for path in (empty, directory / "t-7", *mine):
        os.utime(path, ns=(old_ns, old_ns))
    assert vacuum(log.metadata, log.clock, dry_run=True).directories == 2
    assert empty.exists()
    assert vacuum(log.metadata, log.clock).directories == 2
    assert set((directory / "segments").iterdir()) == before - {empty} | {directory / "segments" / "mine"}
    assert not (directory / "t-7").exists()
    assert all(path.exists() for path in mine)


def test_one_at_a_time_on_a_machine(log: SparkLog, directory: Path) -> None:
    held = log.store.hold(HOLD, b"somebody")
    with pytest.raises(RetriableError, match="somebody") as raised:
        vacuum(log.metadata, log.clock)
    assert raised.value.code == "MAINTENANCE_RUNNING"
    vacuum(log.metadata, log.clock, dry_run=True)
    held.release()
    vacuum(log.metadata, log.clock)


def test_temporary_files_of_a_day_ago_go_too(log: SparkLog, directory: Path) -> None:
    left, young = directory / ".tmp" / "left", directory / ".tmp" / "young"
    for path in (left, young):
        path.touch()
    os.utime(left, ns=((os.stat(left).st_mtime_ns - DAY_MS * 1_000_000),) * 2)
    assert vacuum(log.metadata, log.clock, dry_run=True).temporary == 1
    assert left.exists()
    assert vacuum(log.metadata, log.clock).temporary == 1
    assert young.exists()
    assert not left.exists()


def test_a_bucket(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", 1)
        log.store.put_hint("out/there/x", b"")
        for number in range(5):
            log.append("t", rows(str(number)))
        optimize(log.metadata, log.clock)
        log.clock.sleep_ms(1100)  # its dates are whole seconds
        before = live(log)
        assert run_now(log).dead.files == 5
        assert (files(log), values(log)) == (before, ["0", "1", "2", "3", "4"])
        assert not isinstance(log.store, LocalStore)
        assert log.store.exists("out/there/x")
