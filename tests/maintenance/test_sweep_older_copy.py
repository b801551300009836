"""An older copy of the log was put back: vacuum removes nothing that only the lost commits refer to."""

from collections.abc import Set as AbstractSet

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError
from sparklog.log.config import LOST_COMMITS_KEY
from sparklog.maintenance import RETAIN_MS, VacuumReport, restore, vacuum
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore
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


def run(log: SparkLog, *, dry_run: bool = False) -> VacuumReport:
    return vacuum(log.metadata, log.clock, dry_run=dry_run)


def data_files(log: SparkLog) -> AbstractSet[str]:
    return {file.name for file in log.store.list("segments", recursive=True)}


def test_an_older_copy_of_the_log_is_refused(log: SparkLog, append: Append, clock: ManualClock) -> None:
    append([b"a"])
    name = f"segments/{'c' * 32}/00000000.{log.image.commit + 1}.log"
    log.store.put_hint(name, b"?")
    clock.advance_ms(RETAIN_MS)
    with pytest.raises(CorruptLogError, match=f"expected at least {log.image.commit + 1}.*{name} was born"):
        run(log)
    with pytest.raises(CorruptLogError, match="replaced by an older copy"):
        run(log, dry_run=True)
    for _ in range(3):
        append([b"b"])  # the log has as many commits again, and more: others than those that were lost
    clock.advance_ms(RETAIN_MS)
    append([b"b"])
    for dry_run in (True, False):
        with pytest.raises(CorruptLogError, match="run `sparklog root restore`"):
            run(log, dry_run=dry_run)
    assert name in data_files(log)
    restore(log.metadata, clock)  # given up
    assert LOST_COMMITS_KEY not in log.image.configs
    assert run(log).dead.files == 1
    assert name not in data_files(log)


def test_a_dry_run_notes_nothing(log: SparkLog, append: Append) -> None:
    append([b"a"])
    log.store.put_hint(f"segments/{'c' * 32}/00000000.99.log", b"?")
    commit = log.image.commit
    with pytest.raises(CorruptLogError, match="replaced by an older copy"):
        run(log, dry_run=True)
    assert log.refresh().commit == commit
