"""Opening the metadata log: the newest usable snapshot, and the commits that follow it.

Invariants: a damaged snapshot is reported and skipped, since an older one, or the commits, hold the same: the
root opens while one of the kept snapshots is intact. A damaged, missing or misplaced commit is an error,
since no other file holds its content.
Concurrency: cleaners may remove files that are about to be read; then loading starts again.
Sources: FORMAT.md#metadata-log, Reader MUST.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.errors import (
    CorruptLogError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    SparklogError,
    UnsupportedVersionError,
)
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.documents.document import (
    MAX_DOCUMENT_BYTES,
    MAX_HEADER_BYTES,
    Header,
    corrupt,
    decode_commit,
    uuid_in,
)
from sparklog.metadata.documents.properties import (
    CLEANED_MARKER,
    DIRECTORY,
    INCARNATION,
    commit_name,
    commit_of,
    manifest_name,
    manifest_of,
)
from sparklog.metadata.documents.snapshot import read_hint, read_snapshot
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import Action, ImageBuilder
from sparklog.metadata.model.extents import count_replayed
from sparklog.metadata.model.image import NO_COMMIT, Image, empty_image
from sparklog.storage import Store

# --- incarnation -------------------------------------------------------------------------------------
#
# A process that has an older incarnation of the root open fails before it publishes or removes anything.
#
# A restore from a backup (model/restoring.py) must run while no process has the root open. A process
# that was not stopped must do no harm:
#
# - A refresh finds out. On a file system each publish refreshes; the commit of the restore, or a log that is
#   shorter than the image, is a FencedError: this process publishes nothing any more.
# - On an object store a publish is one PUT, of the number after the last known commit. In the restored log
#   that number is free:
#
#       1. a process that was not stopped has seen commit 500; the root is put back to 400, and restored;
#       2. it puts commit 501, and then 502 and 503, each after its own: all are acknowledged;
#       3. the restored log reaches commit 500: no reader gets past it, because two histories are mixed.
#
#   So the id of the newest incarnation is in a small object, which a publisher has read within LEASE_MS, by
#   the larger of a monotonic and a wall clock. A restore puts the object first, waits for longer than that,
#   and only then commits.
#
# Invariants: a process that creates a commit on a remote store has found its own incarnation there, or no
#     object, within the lease. Without the object the check passes: a root that was never restored has none,
#     and a copy of a restored one may have none.
# Not here: what a restore does (model/restoring.py), in which order (maintenance/restoring.py).
# Concurrency: an object of the metadata log, used under its lock.
# After a crash of the restore between its object and its commit nobody publishes until it is run again.
# Sources: adr/0033; FORMAT.md#metadata-log.


LEASE_MS = 30_000
_MAX_BYTES = 100


def read_incarnation(store: Store) -> str | None:
    """Return the id of the newest incarnation by its object; None if there is no object."""
    try:
        return store.read(INCARNATION, 0, _MAX_BYTES).decode("ascii", "replace").strip()
    except NotFoundError:
        return None


def write_incarnation(store: Store, incarnation_id: str) -> None:
    """Write the object; after LEASE_MS no process of another incarnation publishes to a remote store."""
    store.put_hint(INCARNATION, f"{incarnation_id}\n".encode())


def another_incarnation(store: Store, seen: Image, found: Image) -> FencedError | None:
    """Return the error for a process that has `seen` open, if `found` is of another incarnation."""
    if seen.commit == NO_COMMIT or seen.incarnation.incarnation_id == found.incarnation.incarnation_id:
        return None
    return _restored(store, seen.incarnation.incarnation_id, found.incarnation.incarnation_id)


def _restored(store: Store, seen: str, found: str) -> FencedError:
    return FencedError(
        "ROOT_RESTORED",
        f"{store.url}: found incarnation {found or 'none'} of the root, expected {seen or 'none'}, which "
        "this process has open: the root was restored from a backup meanwhile, and may have lost what this "
        "process has seen",
        fix="Restart this process, and write again what it had not published. If a restore was interrupted, "
        "run `sparklog root restore` again",
    )


class IncarnationCheck:
    """The check of one process for one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Make it before the root is first read."""
        self._store = store
        self._clock = clock
        self._checked = self._now()

    def check(self, incarnation_id: str, *, max_age_ms: int = LEASE_MS) -> None:
        """Raise FencedError ROOT_RESTORED if the newest incarnation is another one. Costs a GET, unless the
        last one was less than `max_age_ms` ago.
        """
        now = self._now()
        if max(new - old for new, old in zip(now, self._checked, strict=True)) < max_age_ms:
            return
        found = read_incarnation(self._store)
        if found not in (None, incarnation_id):
            raise _restored(self._store, incarnation_id, found or "")
        self._checked = now

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ms(), self._clock.now_ms()


# --- loading -----------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_MAX_LISTINGS = 20
_MAX_WINDOW = 32  # commits that are fetched together from a remote store
_CODE = "CORRUPT_METADATA_COMMIT"
Commit = tuple[Header, tuple[Action, ...]]


@dataclass(frozen=True, slots=True)
class _Listing:
    commits: list[int]
    snapshots: list[int]
    is_whole: bool  # or from a hint on, without the older snapshots

    @property
    def relevant(self) -> tuple[list[int], list[int]]:
        """The parts that loading uses and a cleaning changes (commit 0 stays)."""
        return self.commits[:2], self.snapshots


def load_image(store: Store, cluster_id: str) -> Image:
    """Return the image after the last commit.

    Raises:
        CorruptLogError: a commit is damaged or missing, or no snapshot has all commits after it.
    """
    listing = _list_from_hint(store)
    for _ in range(_MAX_LISTINGS):
        image: Image | None = None
        problem: CorruptLogError | NotFoundError | None = None
        try:
            base, damage = _newest_snapshot(store, cluster_id, listing)
            if base is None and not listing.is_whole:
                listing = _list(store, None)  # the hint left the older ones out, or points nowhere
                continue
            if base is None:
                base = empty_image(cluster_id)
            image = _follow_to_end(store, base, damage, listing)
            if _is_end(store, image):
                return image
        except (CorruptLogError, NotFoundError) as error:
            problem = error
        # Either that is the state of the log, or a cleaner removed files in the meantime.
        now = _list(store, None) if listing.is_whole else _list_from_hint(store)
        if now.relevant == listing.relevant:
            if image is not None:
                return image
            if isinstance(problem, CorruptLogError):
                raise problem
            raise _missing(store, str(problem)) from problem
        listing = now
    raise _missing(store, f"the directory changed during each of {_MAX_LISTINGS} attempts to load it")


def read_commit(store: Store, commit: int, cluster_id: str) -> tuple[Header, tuple[Action, ...]]:
    """Read and check one commit. NotFoundError when there is none."""
    name = commit_name(commit)
    data = store.read(name, 0, MAX_DOCUMENT_BYTES + 1)
    return decode_commit(data, where=f"{store.url}/{name}", commit=commit, cluster_id=cluster_id)


def read_commits(store: Store, commits: Sequence[int], cluster_id: str) -> Iterator[Commit]:
    """Read and check these commits, several per request. NotFoundError at the first that is missing."""
    for start in range(0, len(commits), _MAX_WINDOW):
        numbers = commits[start : start + _MAX_WINDOW]
        names = [commit_name(commit) for commit in numbers]
        found = store.read_many(names, max_bytes=MAX_DOCUMENT_BYTES + 1)
        for commit, name, data in zip(numbers, names, found, strict=True):
            where = f"{store.url}/{name}"
            if data is None:
                raise NotFoundError(
                    "FILE_NOT_FOUND",
                    f"{where}: there is no such commit; it may have been cleaned",
                    fix="Open the root again",
                )
            yield decode_commit(data, where=where, commit=commit, cluster_id=cluster_id)


def reload_image(store: Store, seen: Image) -> Image:
    """Load again, for a follower at `seen`. The result is never older, nor of another incarnation.

    Raises:
        FencedError: ROOT_RESTORED. CorruptLogError: it is older, or damaged.
    """
    image = load_image(store, seen.cluster_id)
    fenced = another_incarnation(store, seen, image)
    if fenced is not None:
        raise fenced
    if image.commit < seen.commit:
        raise CorruptLogError(
            "CORRUPT_METADATA_LOG",
            f"{store.url}/{DIRECTORY}: found commits up to {image.commit}, expected at least "
            f"{seen.commit}, which this process has seen; was the root replaced by an older copy?",
            fix="Stop all processes, restore the newest copy of the root, run `sparklog root restore`, and "
            "open it again",
        )
    return image


def refuse_another_history(store: Store, image: Image) -> None:
    """Check, for a publisher, that the commit that its next one will name is still the one of this number.

    1. A has seen commit 5; the root is removed, and made anew, up to its own commit 5, or an older copy of it
       is put in its place, and goes on to another commit 5;
    2. A finds no commit 6, and a commit 5 as before: that seems to be the end;
    3. A's commit 6 names the old commit 5 as its previous: it is in no log, and no reader gets past it.

    Raises:
        CorruptLogError: it is another commit. NotFoundError: it is gone.
    """
    name = commit_name(image.commit)
    found = uuid_in(store.read(name, 0, MAX_HEADER_BYTES))
    if found != image.commit_uuid:
        raise CorruptLogError(
            "CORRUPT_METADATA_LOG",
            f"{store.url}/{name}: found commit {found!r}, expected {image.commit_uuid!r}, which this process "
            "has seen; was the root made anew, or replaced by a copy?",
            fix="Close the log, and open the root again; nothing was published. If it was restored from a "
            "backup, run `sparklog root restore` before",
        )


def refuse_another_root(store: Store, image: Image) -> None:
    """As refuse_another_history, for an image that may be old: its commit may have been cleaned."""
    if image.commit == NO_COMMIT:
        return
    try:
        refuse_another_history(store, image)
    except NotFoundError:
        reload_image(store, image)


def reload_cleaned(store: Store, image: Image) -> tuple[Image, SparklogError | None]:
    """Load again, for a follower that has found the commit of `image` gone, and none after it.

    A cleaner wrote a newer snapshot first, and never removes the newest commit. So if nothing newer is found,
    the commit was not cleaned but removed by hand: another attempt would find the same, and a put of the next
    commit is refused by its guard.
    """
    newer = reload_image(store, image)
    if newer.commit > image.commit or not commit_was_cleaned(store, image.commit):
        return newer, None
    if image.commit == 0:
        return newer, _missing(store, f"there is {CLEANED_MARKER}, but nothing after commit 0")
    return newer, _missing(store, f"commit {image.commit} is missing, snapshot {image.commit} exists")


def follow(
    store: Store, image: Image, *, window: int = 1, max_window: int = 1, limit: int | None = None
) -> tuple[Image, tuple[Commit, ...], SparklogError | None]:
    """Apply the commits that follow an image, up to a broken one.

    Args:
        window: the number of commits of the first request, and
        max_window: of later ones, once there are several.
        limit: stop after this many commits, without checking for more.

    Returns: the image before the error; the commits that were applied; the error, if any.
    """
    good: list[Commit] = []
    builder, replayed = ImageBuilder(image), image.replayed
    error: SparklogError | None = None
    try:
        for (header, actions), size in _commits_after(store, image, (window, max_window), limit):
            _apply(store, builder, header, actions)
            good.append((header, actions))
            replayed = replayed.after(size, count_replayed(actions))
    except (CorruptLogError, UnsupportedVersionError) as problem:
        error = problem
        builder = ImageBuilder(image)
        for header, actions in good:
            _apply(store, builder, header, actions)
    return (builder.image(replayed) if good else image), tuple(good), error


def _commits_after(
    store: Store, image: Image, windows: tuple[int, int], limit: int | None
) -> Iterator[tuple[Commit, int]]:
    """Yield commits with the size of their documents in bytes."""
    uuid = image.commit_uuid
    for commit, data in _documents_after(store, image.commit, windows, limit):
        name = f"{store.url}/{commit_name(commit)}"
        header, actions = decode_commit(data, where=name, commit=commit, cluster_id=image.cluster_id)
        if header.previous != uuid:
            raise corrupt(
                _CODE,
                name,
                f"found previous commit {header.previous!r}, expected {uuid!r}; two histories are mixed: was "
                "the root put back to a backup while a process had it open?",
            )
        uuid = header.uuid
        yield (header, actions), len(data)


def _documents_after(
    store: Store, commit: int, windows: tuple[int, int], limit: int | None
) -> Iterator[tuple[int, bytes]]:
    """Yield commits in order, up to the first that is missing, in windows that grow as more are found."""
    left = limit if limit is not None else 1 << 62
    (window, max_window), found = windows, 0
    while left > 0:
        count = min(window, left)
        names = [commit_name(commit + 1 + at) for at in range(count)]
        for data in store.read_many(names, max_bytes=MAX_DOCUMENT_BYTES + 1):
            if data is None:
                return
            commit += 1
            yield commit, data
        found += count
        left -= count
        window = min(max_window, found)


def _apply(store: Store, builder: ImageBuilder, header: Header, actions: tuple[Action, ...]) -> None:
    try:
        builder.apply(
            actions, commit=header.commit, commit_uuid=header.uuid, timestamp_ms=header.timestamp_ms
        )
    except ActionRefusedError as error:
        where = f"{store.url}/{commit_name(header.commit)}"
        raise corrupt(_CODE, where, f"does not apply: {error}") from error


def _list_from_hint(store: Store) -> _Listing:
    newest = read_hint(store)
    return _list(store, commit_name(newest - 1) if newest is not None and newest > 0 else None)


def _list(store: Store, start_after: str | None) -> _Listing:
    names = [stored.name for stored in store.list(DIRECTORY, recursive=True, start_after=start_after)]
    commits = sorted(number for number in map(commit_of, names) if number is not None)
    snapshots = sorted(number for number in map(manifest_of, names) if number is not None)
    return _Listing(commits, snapshots, is_whole=start_after is None)


def _follow_to_end(
    store: Store, base: Image, damage: CorruptLogError | NotFoundError | None, listing: _Listing
) -> Image:
    image, _, error = follow(store, base, max_window=_MAX_WINDOW if store.traits.is_remote else 1)
    if error is None and listing.commits and listing.commits[-1] > image.commit:
        error = _missing(
            store, f"commit {image.commit + 1} is missing, but commit {listing.commits[-1]} exists"
        )
    if error is None and listing.snapshots and listing.snapshots[-1] > image.commit:
        error = _missing(store, f"the commits end at {image.commit}, before snapshot {listing.snapshots[-1]}")
    if error is not None:
        raise error from damage
    return image


def _is_end(store: Store, image: Image) -> bool:
    """True if the image is the end of the log, and not an old snapshot in an inconsistent listing.

    Listing a directory is not atomic: it may leave out files that were added or removed meanwhile, so that an
    old snapshot seems to be the end. Then the commits after it are gone, and its own commit with them. An
    object store lists in order: where commits were removed, it lists newer ones.
    """
    return store.traits.is_remote or not commit_was_cleaned(store, image.commit)


def _newest_snapshot(
    store: Store, cluster_id: str, listing: _Listing
) -> tuple[Image | None, CorruptLogError | NotFoundError | None]:
    """Return the newest intact snapshot, if there is one, and the damage of the newest of all."""
    damage: CorruptLogError | NotFoundError | None = None
    for snapshot in reversed(listing.snapshots):
        try:
            return read_snapshot(store, snapshot, cluster_id=cluster_id), damage
        except (CorruptLogError, NotFoundError) as error:
            if not store.exists(manifest_name(snapshot)):
                raise NotFoundError(error.code, error.message, fix=error.fix) from error
            _log.warning("skipping a damaged snapshot: %s", error)
            damage = damage or error
    return None, damage


def _missing(store: Store, problem: str) -> CorruptLogError:
    return CorruptLogError(
        "CORRUPT_METADATA_LOG",
        f"{store.url}/{DIRECTORY}: {problem}",
        fix="Restore the missing files from a copy; see FORMAT.md, 'Metadata log', recovery",
    )


# --- past --------------------------------------------------------------------------------------------
#
# Past images, and the commits since then, as far back as the log reaches.
#
# Invariants: an image is one that existed, never a mixture; which one belongs to a time depends on the dates
#     of files, so correctness must not depend on it.
# Concurrency: a cleaner may remove files that are about to be read; then the image is a later one, or there
#     is none.


@dataclass(slots=True)
class _Found:
    """The numbers in the log, and the newest one from before a time."""

    commits: set[int]
    snapshots: list[int]
    before: int = NO_COMMIT


def load_past(store: Store, image: Image, until_ms: int) -> Image | None:
    """Return the image after the newest commit from before `until_ms`, by the storage's clock, or else after
    the oldest commit that can be reconstructed; None if there is none.

    Args:
        image: the newest image to return.
    """
    found = _list_past(store, image, until_ms)
    for snapshot in reversed([number for number in found.snapshots if number <= found.before]):
        base = _read(store, snapshot, image.cluster_id)
        if base is not None:
            return follow(store, base, limit=found.before - snapshot)[0]
    # Commit 0 is never cleaned: only where commit 1 is there, too, is it the newest from before.
    if found.before != NO_COMMIT and (1 in found.commits or image.commit == 0):
        return follow(store, empty_image(image.cluster_id), limit=found.before + 1)[0]
    for snapshot in [number for number in found.snapshots if number > found.before]:
        base = _read(store, snapshot, image.cluster_id)
        if base is not None:
            return base
    return None


def load_image_at(store: Store, image: Image, commit: int) -> Image:
    """Return the image after exactly this commit.

    Args:
        image: a known image; `commit` is not newer.

    Raises:
        InvalidRequestError: COMMIT_MISSING, cleaned, or not there yet.
        CorruptLogError: a commit on the way is damaged.
    """
    if commit == image.commit:
        return image
    if not 0 <= commit < image.commit:
        raise _not_yet(store, image, commit)
    found = _list_past(store, image, 0)
    older = (snapshot for snapshot in reversed(found.snapshots) if snapshot <= commit)
    bases = (_read(store, snapshot, image.cluster_id) for snapshot in older)
    base = next((base for base in bases if base is not None), None)
    if base is None and (commit == 0 or 1 in found.commits):
        base = empty_image(image.cluster_id)
    if base is not None:
        past, _, error = follow(
            store, base, window=_window(store), max_window=_window(store), limit=commit - base.commit
        )
        if error is not None:
            raise error
        if past.commit == commit:
            return past
    oldest = min(found.snapshots, default=image.commit)
    raise _gone(store, image, commit, f"images from commit {oldest} on can be shown")


def newest_commit_before(store: Store, image: Image, until_ms: int) -> int:
    """Return the newest commit from before `until_ms`, by the storage's clock, for `load_image_at`.

    Raises:
        InvalidRequestError: COMMIT_MISSING, all commits that are left are younger.
    """
    found = _list_past(store, image, until_ms)
    has_base = any(snapshot <= found.before for snapshot in found.snapshots)
    if found.before != NO_COMMIT and (1 in found.commits or image.commit == 0 or has_base):
        return found.before
    oldest = min(found.snapshots, default=image.commit)
    raise InvalidRequestError(
        "COMMIT_MISSING",
        f"{store.url}/{DIRECTORY}: the log as of then has been cleaned, commit {oldest} is the oldest that "
        "can be shown",
        fix=f"name a later time, or commit {oldest}",
    )


def read_past_commits(
    store: Store, image: Image, first: int, last: int
) -> Iterator[tuple[Header, tuple[Action, ...]]]:
    """Yield the commits from `first` to `last`, inclusive.

    Raises:
        InvalidRequestError: COMMIT_MISSING, one of them is cleaned, or not there yet.
        CorruptLogError: one of them is damaged.
    """
    if not 0 <= first <= last <= image.commit:
        raise _not_yet(store, image, last if 0 <= first <= last else first)
    number = first
    try:
        for header, actions in read_commits(store, range(first, last + 1), image.cluster_id):
            yield header, actions
            number += 1
    except NotFoundError:
        oldest = oldest_commit(store, image)
        raise _gone(store, image, number, f"commit {oldest} is the oldest that is left") from None


def oldest_commit(store: Store, image: Image) -> int:
    """Return the first commit of the unbroken range up to the newest."""
    found = _list_past(store, image, 0).commits
    oldest = image.commit
    while oldest - 1 in found:
        oldest -= 1
    return oldest


def _not_yet(store: Store, image: Image, commit: int) -> InvalidRequestError:
    return InvalidRequestError(
        "COMMIT_MISSING",
        f"{store.url}/{DIRECTORY}: found commits up to {image.commit}, expected commit {commit}",
        fix=f"name a commit up to {image.commit}",
    )


def _gone(store: Store, image: Image, commit: int, what_is_left: str) -> InvalidRequestError:
    return InvalidRequestError(
        "COMMIT_MISSING",
        f"{store.url}/{DIRECTORY}: commit {commit} has been cleaned: {what_is_left}, up to {image.commit}",
        fix="name a later commit",
    )


def _window(store: Store) -> int:
    return _MAX_WINDOW if store.traits.is_remote else 1


def _list_past(store: Store, image: Image, until_ms: int) -> _Found:
    found = _Found(set(), [])
    for file in store.list(DIRECTORY, recursive=True):
        commit, snapshot = commit_of(file.name), manifest_of(file.name)
        number = commit if snapshot is None else snapshot
        if number is None or number > image.commit:
            continue
        if snapshot is not None:
            found.snapshots.append(snapshot)
        else:
            found.commits.add(number)
        if file.modified_ms <= until_ms:
            found.before = max(found.before, number)
    found.snapshots.sort()
    return found


def _read(store: Store, snapshot: int, cluster_id: str) -> Image | None:
    try:
        return read_snapshot(store, snapshot, cluster_id=cluster_id)
    except (CorruptLogError, NotFoundError):
        return None
