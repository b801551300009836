"""Writers whose open segment is swept: they begin another and append again, nothing lost, nothing doubled."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, PublishResult
from sparklog.storage import MemoryStore, Store, open_store
from tests.support.removing import expire_below, move_horizon, remove_dead
from tests.support.roots import opened


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Whose files grow: objects are left alone once they are there."""
    return (
        open_store(tmp_path / "root", create=True) if request.param == "directory" else MemoryStore("going")
    )


@pytest.fixture
def log(store: Store) -> Iterator[SparkLog]:
    with opened(store, ManualClock()) as log:
        log.create_topic("t", 1)
        log.append("t", rows(b"a"))
        yield log


def rows(*values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


def records(log: SparkLog) -> list[tuple[int, bytes]]:
    log.refresh()
    found = log.read("t", 0, log.log_start_offset("t", 0))
    return list(zip(found.column("offset").to_pylist(), found.column("value").to_pylist(), strict=True))


def swept(store: Store) -> Callable[[], list[str]]:
    """Another process: everything expires, the horizon moves, and the dead files go."""

    def sweep() -> list[str]:
        other = opened(store, ManualClock())
        expire_below(other, other.image.partition("t", 0).log_end_offset)
        move_horizon(other)
        return remove_dead(other)

    return sweep


def before_publishing(
    monkeypatch: pytest.MonkeyPatch, log: SparkLog, sweep: Callable[[], object], times: int = 1
) -> None:
    """Between what `log` has staged and its commit."""
    publish = log.metadata.publish
    left = [sweep] * times

    def late(*arguments: object, **options: object) -> PublishResult:
        if left:
            left.pop()()
        return publish(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log.metadata, "publish", late)


def test_between_two_appends(log: SparkLog, store: Store) -> None:
    assert len(swept(store)()) == 1
    log.append("t", rows(b"b"))
    log.append("t", rows(b"c"))
    assert records(log) == [(1, b"b"), (2, b"c")]
    assert len({extent.segment for extent in log.image.partition("t", 0).extents}) == 1


def test_between_data_and_commit(log: SparkLog, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also twice in a row."""
    before_publishing(monkeypatch, log, swept(store), times=2)
    found = log.append("t", rows(b"b", b"c"))
    assert found.ranges["t", 0].base_offset == 1
    assert records(log) == [(1, b"b"), (2, b"c")]


def test_with_a_version(log: SparkLog, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before_publishing(monkeypatch, log, swept(store))
    assert not log.append("t", rows(b"b"), txn=("app", 1)).duplicate
    assert log.append("t", rows(b"b"), txn=("app", 1)).duplicate
    assert records(log) == [(1, b"b")]


def test_between_data_and_sync(log: SparkLog, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has no name any more: no use to publish."""
    published: list[object] = []
    publish = MetadataLog.publish
    sweep, sync = swept(store), log.writer.sync
    left = [sweep]

    def late(*arguments: object) -> None:
        if left:
            left.pop()()
        sync(*arguments)  # type: ignore[arg-type]

    def counted(metadata: MetadataLog, *arguments: object, **options: object) -> PublishResult:
        if metadata is log.metadata:
            published.append(arguments)
        return publish(metadata, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log.writer, "sync", late)
    monkeypatch.setattr(MetadataLog, "publish", counted)
    log.append("t", rows(b"b"))
    assert len(published) == 1
    assert records(log) == [(1, b"b")]


def test_committed_offsets(log: SparkLog, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before_publishing(monkeypatch, log, swept(store))
    log.commit_offsets("g", {("t", 0): 1})
    assert log.committed_offsets("g") == {("t", 0): 1}
