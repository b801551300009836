"""The image as it was some time ago, and the commits since then, as far back as the log still shows.

Invariants: what is given is an image that there was, never a mixture; which one of a time is a matter of
    dates, and so nothing may depend on it.
Concurrency: a cleaner may remove what we are about to read; then the image is a later one, or there is none.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparklog.errors import CorruptLogError, InvalidRequestError, NotFoundError
from sparklog.metadata.documents.document import Header
from sparklog.metadata.documents.paths import DIRECTORY, commit_of, manifest_of
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.loading import follow, read_commits
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.image import NO_COMMIT, Image, empty_image
from sparklog.storage import Store

_WINDOW = 32  # commits that are fetched at once from a remote store


@dataclass(slots=True)
class _Found:
    """What the log has: numbers, and the newest one from before a time."""

    commits: set[int]
    snapshots: list[int]
    before: int = NO_COMMIT


def load_past(store: Store, image: Image, until_ms: int) -> Image | None:
    """The image after the newest commit of before `until_ms`, by the storage's clock, or else after the
    oldest that the log still shows; None if it shows none.

    Args:
        image: what is known to be there; nothing newer is looked at.
    """
    found = _look(store, image, until_ms)
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
    """The image after exactly this commit.

    Args:
        image: what is known to be there; `commit` is not newer.

    Raises:
        InvalidRequestError: COMMIT_MISSING, the log does not show it any more, or not yet.
        CorruptLogError: a commit that leads there is damaged.
    """
    if commit == image.commit:
        return image
    if not 0 <= commit < image.commit:
        raise _not_yet(store, image, commit)
    found = _look(store, image, 0)
    bases = (_read(store, one, image.cluster_id) for one in reversed(found.snapshots) if one <= commit)
    base = next((one for one in bases if one is not None), None)
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
    """The newest commit of before `until_ms`, by the storage's clock, which `load_image_at` can show.

    Raises:
        InvalidRequestError: COMMIT_MISSING, all that the log still shows is younger.
    """
    found = _look(store, image, until_ms)
    if found.before != NO_COMMIT and (
        1 in found.commits or image.commit == 0 or any(one <= found.before for one in found.snapshots)
    ):
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
    """The commits from `first` to `last`, both of them included.

    Raises:
        InvalidRequestError: COMMIT_MISSING, the log does not show one of them any more, or not yet.
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
    """From which commit on there is every one, up to the newest."""
    found = _look(store, image, 0).commits
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
    return _WINDOW if store.traits.is_remote else 1


def _look(store: Store, image: Image, until_ms: int) -> _Found:
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
