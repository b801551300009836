"""Removing old commits, and the two who could be fooled by it: sleeping followers and stalled publishers.

A stall is a hook inside the put of a real LocalStore (the same steps as in production); a sleep is simply
not calling refresh while others publish and clean.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.documents.properties import (
    CLEANED_MARKER,
    DIRECTORY,
    commit_name,
    commit_of,
    manifest_name,
    manifest_of,
    snapshot_directory,
)
from sparklog.storage import LocalStore, MemoryStore, StoredFile
from tests.metadata.cleaned_logs import FUTURE_MS, SETTINGS, commits, opened, publish


def snapshots(store: LocalStore | MemoryStore) -> list[int]:
    names = (manifest_of(file.name) for file in store.list(DIRECTORY, recursive=True))
    return [number for number in names if number is not None]


def test_the_snapshot_that_is_kept_is_durable_before_anything_is_removed() -> None:
    """Its writer may have linked its manifest and not synced that yet; after a power cut without it nothing
    would lead from what is left to the newest commit (found by the simulation, seed 104218).
    """
    steps: list[tuple[str, str]] = []
    store = MemoryStore("steps")
    log = opened(store)
    publish(log, 35)
    kept = snapshots(store)[0]
    publish(log, 4)
    store.hook = lambda operation, name: steps.append((operation, name))
    publish(log, 5)
    store.hook = None
    assert snapshots(store)[0] > kept
    first_removal = next(at for at, (operation, _) in enumerate(steps) if operation == "delete")
    kept = snapshots(store)[0]
    verified = max(
        at for at, (_, name) in enumerate(steps[:first_removal]) if name.startswith(manifest_name(kept))
    )
    between = steps[verified:first_removal]
    assert ("sync_directory", snapshot_directory(kept)) in between
    assert ("sync_directory", DIRECTORY) in between


def test_old_commits_and_snapshots_go(local: LocalStore) -> None:
    publish(opened(local), 36)
    assert commits(local) == [0, *range(19, 36)]
    assert snapshots(local) == [19, 29]
    assert opened(local).image.commit == 35


def test_young_commits_stay(local: LocalStore) -> None:
    publish(opened(local, now_ms=0), 36)
    assert commits(local) == list(range(36))
    assert snapshots(local) == [19, 29]  # snapshots are not for followers, who need no grace


def test_nothing_goes_without_enough_intact_snapshots(local: LocalStore) -> None:
    log = opened(local)
    publish(log, 21)
    local.delete(manifest_name(19))
    local.put_if_absent(manifest_name(19), b"damaged")
    assert log.clean() == 0
    publish(log, 10)
    assert snapshots(local) == [9, 19, 29]
    assert commits(local)[:2] == [0, 9]


def test_clean_by_hand(local: LocalStore) -> None:
    log = MetadataLog.open(local, ManualClock(FUTURE_MS), create=True)
    publish(log, 5)
    assert log.clean() == 0
    log.write_snapshot()
    publish(log, 5)
    log.write_snapshot()
    assert log.clean() == 3
    assert log.clean() == 0
    assert commits(local) == [0, *range(4, 10)]
    assert log.clean(grace_ms=1 << 60) == 0


def test_interrupted_snapshots_go_with_the_old_ones(local: LocalStore) -> None:
    log = opened(local)
    local.put_if_absent(f"{snapshot_directory(5)}/state-x.json", b"{}")
    publish(log, 36)
    assert not any(file.name.startswith(snapshot_directory(5)) for file in local.list("", recursive=True))


def test_marker_is_durable_before_the_first_removal(memory: MemoryStore) -> None:
    log = opened(memory, now_ms=0)
    publish(log, 30)
    seen: list[tuple[str, str]] = []
    memory.hook = lambda operation, name: seen.append((operation, name))
    log.clean(grace_ms=-(1 << 60))
    changes = [(op, name) for op, name in seen if op in {"put_if_absent:done", "delete", "abort_puts"}]
    assert changes[:5] == [
        ("put_if_absent:done", CLEANED_MARKER),
        ("abort_puts", commit_name(1)),
        ("delete", commit_name(1)),
        ("abort_puts", commit_name(2)),
        ("delete", commit_name(2)),
    ]


@pytest.mark.parametrize("asleep_at", [-1, 0, 1, 2, 9, 10, 15, 19, 20, 35])
def test_follower_that_slept_through_the_cleaning(local: LocalStore, asleep_at: int) -> None:
    log = opened(local)
    publish(log, asleep_at + 1)
    follower = opened(local)
    assert follower.image.commit == asleep_at
    publish(log, 45 - asleep_at)
    assert follower.refresh() == log.image
    assert follower.image.commit == 45


def test_follower_stays_right_while_cleaning_is_under_way(memory: MemoryStore) -> None:
    """Followers at every commit ask between any two removals: each is told of news, none of their absence."""
    log = opened(memory, now_ms=0)
    followers = []
    for _ in range(30):
        publish(log)
        followers.append(opened(memory, now_ms=0))
    checked = 0

    def hook(operation: str, name: str) -> None:
        nonlocal checked
        if operation in {"delete", "abort_puts", "delete_directory"}:
            memory.hook = None
            for follower in followers[:-1]:
                image = follower.image
                cleaned = commit_was_cleaned(memory, image.commit)
                assert cleaned or memory.exists(commit_name(image.commit + 1)), (
                    image.commit,
                    operation,
                    name,
                )
            fresh = MetadataLog.open(memory, ManualClock(), settings=SETTINGS)
            assert fresh.image == log.image
            checked += 1
            memory.hook = hook

    memory.hook = hook
    log.clean(grace_ms=-(1 << 60))
    assert checked == 36
    memory.hook = None
    assert all(follower.refresh() == log.image for follower in followers)


class KilledAtManifests(LocalStore):
    """Whose cleaner is killed when all commits are removed, and no snapshot yet."""

    def delete(self, name: str) -> None:
        if manifest_of(name) is not None:
            raise KeyboardInterrupt
        super().delete(name)


class SlowListing(LocalStore):
    """Lists once as readdir(3) may while `meanwhile` runs: what is new is there if `sees` says so."""

    def __init__(self, root: Path, meanwhile: Callable[[], None], sees: Callable[[str], bool]) -> None:
        super().__init__(root)
        self.meanwhile: Callable[[], None] | None = meanwhile
        self.sees = sees

    def list(
        self, prefix: str, *, recursive: bool = False, start_after: str | None = None, within_ms: int = 0
    ) -> list[StoredFile]:
        before = super().list(prefix, recursive=recursive, start_after=start_after, within_ms=within_ms)
        if prefix != DIRECTORY or self.meanwhile is None:
            return before
        meanwhile, self.meanwhile = self.meanwhile, None
        meanwhile()
        after = super().list(prefix, recursive=recursive, start_after=start_after)
        return [file for file in after if file in before or self.sees(file.name)]


@pytest.mark.parametrize("seen", ["nothing new", "new commits"])
def test_a_listing_that_a_cleaner_overtakes_is_not_believed(local: LocalStore, seen: str) -> None:
    """
    1. An opener lists the directory, and is suspended in the middle.
    2. Others publish and write snapshots; a cleaner removes commits, and is not done with old snapshots.
    3. The opener has missed what is new, and what is gone: the old snapshot is all there is, it seems. Or it
       has seen new commits, and no way leads there.
    """
    others = opened(local)
    publish(others, 13)

    def meanwhile() -> None:
        with pytest.raises(KeyboardInterrupt):
            publish(opened(KilledAtManifests(Path(local.root))), 25)

    def sees(name: str) -> bool:
        return seen == "new commits" and commit_of(name) is not None

    store = SlowListing(Path(local.root), meanwhile, sees)
    assert opened(store).image.commit == others.refresh().commit
    assert store.meanwhile is None
    assert snapshots(local)[0] == 9
