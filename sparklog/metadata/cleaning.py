"""Cleaning: removing commits and snapshots that a newer snapshot has made superfluous.

The danger is not the removal but the number it frees. For commit n = 700:
    1. publisher P has the image of commit 699, plans commit 700, and is stopped (SIGSTOP, a long pause)
       just before its put;
    2. others publish 700 to 2000; a cleaner removes 700;
    3. P wakes up, and its put-if-absent of 700 *succeeds*, since there is no such file any more;
    4. P acknowledges a commit that is never read.
No clock and no grace period excludes that; the order of steps does. A publisher of commit n
    (a) creates its temporary file, (b) checks that commit n-1 still exists, (c) links the name,
and a cleaner, for n = 1, 2, ... in ascending order,
    (1) has removed commit n-1, (2) aborts puts of n: unlinks temporary files, (3) removes commit n.
If (b) finds commit n-1, it came before (1), so the temporary file was there before (2); then (c) either
came before (2), when commit n still existed, and failed with "exists", or comes after, and fails with
"aborted". If (b) does not find commit n-1, P gives up. In no case is n created again.

The chain needs an anchor: commit 0 is never removed (so a put of 0 always fails), and in the place of
"commit 0 still exists" stands "the marker does not exist"; the marker is put before the first removal
and is never removed. The newest commit is never removed, since the next one needs it.

The same rule serves followers: commit n+1 is missing, and commit n is still there: nothing is new.
Commit n is missing, too: both were cleaned, load a snapshot. Asked in this order, the answer is exact.

The grace period is a courtesy to slow followers (they need not load a snapshot), nothing more: clocks
that are wrong by hours make cleaning earlier or later, never wrong.

Object stores cannot do that: a put that was sent cannot be stopped. There, time must do:
(a) a publisher of commit n has known within the last hour (TRUST_MS in following.py) that n, if it exists, is
    younger than that; its guard, called after the request was dated and signed, makes sure of it;
(b) the store refuses requests whose date is too old (put_lifetime_ms: half an hour on S3), by its own clock;
(c) a cleaner removes a commit only when the store's own times say that it is six hours old, or more.
So a put that could find the name free again comes hours too late, and is refused. A store without (b) has no
bound (put_lifetime_ms is None): no commit is ever removed from it, only snapshots are.
Not here: data files (log/); when to clean (upkeep.py).
After a crash: removals are not synced; commits that come back below the oldest snapshot mean nothing.
"""

from collections.abc import Iterable, Iterator

from sparklog.errors import AlreadyExistsError, CorruptLogError, NotFoundError, UnsupportedVersionError
from sparklog.failpoints import failpoint
from sparklog.metadata.documents.properties import (
    CLEANED_MARKER,
    DIRECTORY,
    commit_name,
    commit_of,
    manifest_name,
    manifest_of,
    snapshot_directory,
    snapshot_of,
)
from sparklog.metadata.documents.snapshot import verify_snapshot
from sparklog.metadata.model.image import Image
from sparklog.storage import Store, StoredFile

# Far above the hour that publishers and followers trust what they know, and the life of a put on its way.
REMOTE_GRACE_MS = 6 * 3_600_000
# Commits that one step removes: some 10 ms of a directory.
STEP = 256


def commit_was_cleaned(store: Store, commit: int) -> bool:
    """True if this commit, which the caller has seen, has been removed since."""
    if commit <= 0:
        return commit == 0 and store.exists(CLEANED_MARKER)
    return not store.exists(commit_name(commit))


def clean_metadata(store: Store, image: Image, *, grace_ms: int, snapshots_kept: int, now_ms: int) -> int:
    """Remove what the `snapshots_kept`-newest intact snapshot makes superfluous; return how many files.

    Older snapshots are removed immediately, commits once they are older than `grace_ms`, or never.
    """
    return sum(clean_in_steps(store, image, grace_ms=grace_ms, snapshots_kept=snapshots_kept, now_ms=now_ms))


def clean_in_steps(
    store: Store, image: Image, *, grace_ms: int, snapshots_kept: int, now_ms: int
) -> Iterator[int]:
    """Clean in steps; yield the number of files that each removed, STEP at most.

    The first step lists, and removes nothing. The caller may stop between two steps, and leave the rest to
    the next cleaning; or pause for any time, since concurrent cleaners follow the same rules.
    """
    lifetime_ms = store.put_lifetime_ms()
    if store.traits.is_remote:
        grace_ms = max(grace_ms, REMOTE_GRACE_MS + (lifetime_ms or 0))
        now_ms = store.storage_now_ms(now_ms)
    files = store.list(DIRECTORY, recursive=True)
    names = [stored.name for stored in files]
    kept = _oldest_to_keep(store, image, _numbers(map(manifest_of, names)), snapshots_kept)
    if kept is None:
        return
    freed = _numbers(
        () if lifetime_ms is None else _old_commits(files, below=kept, modified_until_ms=now_ms - grace_ms)
    )
    old = [snapshot for snapshot in _numbers(map(snapshot_of, names)) if snapshot < kept]
    del files, names
    yield 0
    if freed:
        put_marker(store)
        failpoint("cleaning.marked")
    for start in range(0, len(freed), STEP):
        step = freed[start : start + STEP]
        for commit in step:
            store.abort_puts(commit_name(commit))
            failpoint("cleaning.aborted")
            store.delete(commit_name(commit))
            failpoint("cleaning.removed")
        yield len(step)
    for snapshot in old:
        store.delete(manifest_name(snapshot))  # first, so that nobody starts on a snapshot in pieces
        failpoint("cleaning.manifest_removed")
        store.delete_directory(snapshot_directory(snapshot))
        yield 1


def put_marker(store: Store) -> None:
    """Record durably that commits of this root have been removed."""
    try:
        store.put_if_absent(
            CLEANED_MARKER, b"Commits have been removed; see FORMAT.md, 'Metadata log', cleaning.\n"
        )
    except AlreadyExistsError:
        return


def _oldest_to_keep(store: Store, image: Image, snapshots: list[int], snapshots_kept: int) -> int | None:
    intact = 0
    for snapshot in reversed(snapshots):
        if snapshot > image.commit:  # of commits that we have not seen; a process that has may clean
            continue
        try:
            verify_snapshot(store, snapshot, cluster_id=image.cluster_id)
        except (CorruptLogError, UnsupportedVersionError, NotFoundError):
            continue
        intact += 1
        if intact >= snapshots_kept:
            # Its writer may not be done: a power cut must not leave us without commits and snapshot.
            store.sync_directory(snapshot_directory(snapshot))
            store.sync_directory(DIRECTORY)
            return snapshot
    return None


def _old_commits(files: Iterable[StoredFile], *, below: int, modified_until_ms: int) -> Iterator[int]:
    """Yield old commits, ascending, without commit 0, up to the first that is younger."""
    for stored in files:  # sorted by name, and so by number
        commit = commit_of(stored.name)
        if commit is None or commit == 0:
            continue
        if commit >= below or stored.modified_ms > modified_until_ms:
            return
        yield commit


def _numbers(found: Iterable[int | None]) -> list[int]:
    return sorted({number for number in found if number is not None})
