"""Opening the metadata log: the newest usable snapshot, and the commits that follow it.

Invariants: a damaged snapshot is reported and passed over, since an older one or the commits say the
same: while one that was kept is intact, the root opens. A damaged, missing or misplaced commit is an error,
since nothing else says what it said.
Concurrency: cleaners may remove what we are about to read; then we look again.
Sources: FORMAT.md#metadata-log, Reader MUST.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparklog.errors import CorruptLogError, NotFoundError, SparklogError, UnsupportedVersionError
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.documents.document import (
    MAX_DOCUMENT_BYTES,
    MAX_HEADER_BYTES,
    Header,
    corrupt,
    decode_commit,
    uuid_in,
)
from sparklog.metadata.documents.paths import (
    CLEANED_MARKER,
    DIRECTORY,
    commit_name,
    commit_of,
    manifest_name,
    manifest_of,
)
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.documents.snapshot_hint import read_hint
from sparklog.metadata.incarnation import another_incarnation
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.apply import ImageBuilder
from sparklog.metadata.model.extents import count_replayed
from sparklog.metadata.model.image import NO_COMMIT, Image, empty_image
from sparklog.storage import Store

_log = logging.getLogger(__name__)
_MAX_LOOKS = 20
_MAX_WINDOW = 32  # commits that are fetched at once from a remote store
_CODE = "CORRUPT_METADATA_COMMIT"
Commit = tuple[Header, tuple[Action, ...]]


@dataclass(frozen=True, slots=True)
class _Listing:
    commits: list[int]
    snapshots: list[int]
    is_whole: bool  # or from a hint on, without the older snapshots

    @property
    def at_stake(self) -> tuple[list[int], list[int]]:
        """What changes with a cleaning (commit 0 stays), and what loading goes by."""
        return self.commits[:2], self.snapshots


def load_image(store: Store, cluster_id: str) -> Image:
    """The image after the last commit there is.

    Raises:
        CorruptLogError: a commit is damaged or missing, or no way leads from a snapshot to the end.
    """
    listing = _look(store)
    for _ in range(_MAX_LOOKS):
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
        # Either that is so, or a cleaner removed files under our hands.
        now = _list(store, None) if listing.is_whole else _look(store)
        if now.at_stake == listing.at_stake:
            if image is not None:
                return image
            if isinstance(problem, CorruptLogError):
                raise problem
            raise _missing(store, str(problem)) from problem
        listing = now
    raise _missing(store, f"{_MAX_LOOKS} looks found it changing each time")


def read_commit(store: Store, commit: int, cluster_id: str) -> tuple[Header, tuple[Action, ...]]:
    """Read and check one commit. NotFoundError when there is none."""
    name = commit_name(commit)
    data = store.read(name, 0, MAX_DOCUMENT_BYTES + 1)
    return decode_commit(data, where=f"{store.url}/{name}", commit=commit, cluster_id=cluster_id)


def read_commits(store: Store, commits: Sequence[int], cluster_id: str) -> Iterator[Commit]:
    """Read and check these commits, several at once. NotFoundError at the first that is not there."""
    for start in range(0, len(commits), _MAX_WINDOW):
        numbers = commits[start : start + _MAX_WINDOW]
        names = [commit_name(commit) for commit in numbers]
        found = store.read_many(names, max_bytes=MAX_DOCUMENT_BYTES + 1)
        for commit, name, data in zip(numbers, names, found, strict=True):
            where = f"{store.url}/{name}"
            if data is None:
                raise NotFoundError(
                    "FILE_NOT_FOUND", f"{where}: there is no such commit", fix="It may have been cleaned"
                )
            yield decode_commit(data, where=where, commit=commit, cluster_id=cluster_id)


def reload_image(store: Store, seen: Image) -> Image:
    """Load again, for a follower that has seen `seen`: the result is never older, nor of another incarnation.

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
    """For a publisher: is the commit that it goes on from still the one under this number?

    1. A has seen commit 5; the root is removed, and made anew, up to its own commit 5, or an older copy of it
       is put in its place, and goes on to another commit 5;
    2. A finds no commit 6, and commit 5 there as before: that is the end, it seems;
    3. A's commit 6 names the old one as its previous: it is in nobody's log, and nobody gets past it.

    Raises:
        CorruptLogError: it is another. NotFoundError: it is gone.
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
    """As refuse_another_history, for who has an image that may be old: its commit may have been cleaned."""
    if image.commit == NO_COMMIT:
        return
    try:
        refuse_another_history(store, image)
    except NotFoundError:
        reload_image(store, image)


def reload_cleaned(store: Store, image: Image) -> tuple[Image, SparklogError | None]:
    """Load again, for a follower that has found the commit of `image` gone, and none after it.

    Whoever cleaned it had a newer snapshot before, with its commit, and the newest commit is never cleaned.
    So where nothing newer is found, somebody else has removed it: to look again would come to the same, for
    ever, and a commit behind it is refused by its guard.
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
    """Apply the commits that follow an image, and tell which broken one stopped us, if any.

    Args:
        window: fetch so many at first, and
        max_window: up to so many at once, once it is clear that there are several.
        limit: stop after so many commits, without asking whether there are more.

    Returns: the image, right up to the commit before the error; the commits that led there; the error.
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
    """Each with the bytes of its document."""
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
    """Commits in order, up to the first that is missing; in windows that grow as more are found."""
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


def _look(store: Store) -> _Listing:
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
    """A directory is not listed in one moment. What came meanwhile may be left out, and what went as well, so
    that an old snapshot seems to be all there is: then commits after it are gone, and its own with them.
    An object store lists in order: where commits have gone, it has newer ones.
    """
    return store.traits.is_remote or not commit_was_cleaned(store, image.commit)


def _newest_snapshot(
    store: Store, cluster_id: str, listing: _Listing
) -> tuple[Image | None, CorruptLogError | NotFoundError | None]:
    """The newest that is intact, if there is one, and what was wrong with the newest of all."""
    damage: CorruptLogError | NotFoundError | None = None
    for snapshot in reversed(listing.snapshots):
        try:
            return read_snapshot(store, snapshot, cluster_id=cluster_id), damage
        except (CorruptLogError, NotFoundError) as error:
            if not store.exists(manifest_name(snapshot)):
                raise NotFoundError(error.code, error.message, fix=error.fix) from error
            _log.warning("passing over a damaged snapshot: %s", error)
            damage = damage or error
    return None, damage


def _missing(store: Store, problem: str) -> CorruptLogError:
    return CorruptLogError(
        "CORRUPT_METADATA_LOG",
        f"{store.url}/{DIRECTORY}: {problem}",
        fix="Restore the missing files from a copy; see FORMAT.md, 'Metadata log', recovery",
    )
