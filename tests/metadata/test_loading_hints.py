"""Opening where listing everything is slow: hints, lists, damaged snapshots."""

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError
from sparklog.metadata.documents.properties import (
    DIRECTORY,
    SNAPSHOT_HINT,
    commit_name,
    manifest_name,
    snapshot_directory,
)
from sparklog.metadata.documents.snapshot import write_hint
from sparklog.storage import MemoryStore
from tests.metadata.remote_logs import HOUR_MS, REMOTE, opened, set_config


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["object store", "directory"])
def store(clock: ManualClock, request: pytest.FixtureRequest) -> MemoryStore:
    if request.param == "directory":
        return MemoryStore("local", clock=clock)
    return MemoryStore("remote", clock=clock, traits=REMOTE)


def test_opening_lists_from_the_newest_snapshot_on(store: MemoryStore, clock: ManualClock) -> None:
    log = opened(store, clock)
    for number in range(40):
        set_config(log, f"key-{number}")
        if number == 30:
            log.write_snapshot()
    asked: list[str] = []
    store.hook = lambda operation, name: asked.append(name)
    again = opened(store, clock)
    store.hook = None
    assert again.image == log.image
    assert commit_name(30) not in asked
    assert asked.count(DIRECTORY) <= 2  # one LIST, and a sync that costs nothing


@pytest.mark.parametrize("hint", [b"", b"nonsense\n", b"7\n", b"99999999\n", b"9" * 40, None])
def test_wrong_hints_cost_only_time(store: MemoryStore, clock: ManualClock, hint: bytes | None) -> None:
    log = opened(store, clock)
    for number in range(10):
        set_config(log, f"key-{number}")
        if number == 5:
            log.write_snapshot()
    store.delete(SNAPSHOT_HINT)
    if hint is not None:
        store.put_hint(SNAPSHOT_HINT, hint)
    assert opened(store, clock).image == log.image


def damage(store: MemoryStore, snapshot: int, what: str) -> None:
    """Of one snapshot: its manifest, or one of its parts; or take a part away."""
    parts = [file.name for file in store.list(snapshot_directory(snapshot))]
    (part,) = [name for name in parts if "/extents-" in name]
    if what == "manifest":
        store.delete(manifest_name(snapshot))
        store.put_if_absent(manifest_name(snapshot), b"nonsense")
    elif what == "part":
        store.delete(part)
        store.put_if_absent(part, b"nonsense")
    elif what == "missing part":
        store.delete(part)


DAMAGES = ["nothing", "manifest", "part", "missing part"]


@pytest.mark.sampled(26)
@pytest.mark.parametrize("hint", ["newest", "older", "nowhere", "none"])
@pytest.mark.parametrize("newest", DAMAGES)
@pytest.mark.parametrize("older", DAMAGES)
def test_a_root_opens_while_one_snapshot_that_was_kept_is_intact(
    store: MemoryStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    hint: str,
    newest: str,
    older: str,
) -> None:
    log = opened(store, clock)
    for number in range(9):
        set_config(log, f"key-{number}")
    first = log.write_snapshot()
    clock.advance_ms(7 * HOUR_MS)
    for number in range(3):
        set_config(log, f"more-{number}")
    last = log.write_snapshot()
    set_config(log, "after")
    assert log.clean() == first - 1  # so nobody can start from commit 0
    damage(store, first, older)
    damage(store, last, newest)
    hinted = {"newest": last, "older": first, "nowhere": last + 100, "none": None}[hint]
    store.delete(SNAPSHOT_HINT)
    if hinted is not None:
        write_hint(store, hinted)

    if "nothing" in {newest, older}:
        assert opened(store, clock).image == log.image
        assert ("skipping" in caplog.text) == (newest != "nothing")
    else:
        with pytest.raises(CorruptLogError, match="commit 1 is missing"):
            opened(store, clock)


def test_snapshots_that_are_all_damaged_do_not_matter_while_the_commits_are_there(
    store: MemoryStore, clock: ManualClock
) -> None:
    log = opened(store, clock)
    for number in range(9):
        set_config(log, f"key-{number}")
        if number in {3, 6}:
            damage(store, log.write_snapshot(), "manifest")
    assert opened(store, clock).image == log.image


def test_an_older_snapshot_is_looked_for_before_all_commits_are_read(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Where no commit is ever removed there may be millions of them."""
    log = opened(store, clock)
    for number in range(40):
        set_config(log, f"key-{number}")
        if number in {20, 30}:
            log.write_snapshot()
    damage(store, 30, "manifest")
    asked: list[str] = []
    store.hook = lambda operation, name: asked.append(name)
    again = opened(store, clock)
    store.hook = None
    assert again.image == log.image
    assert commit_name(20) not in asked
    assert commit_name(21) in asked
