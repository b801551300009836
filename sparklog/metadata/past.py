"""The image as it was some time ago, as far back as the log still shows.

Invariants: what is given is an image that there was, never a mixture; which one is a matter of dates, and so
    nothing may depend on it.
Concurrency: a cleaner may remove what we are about to read; then the image is a later one, or there is none.
"""

from dataclasses import dataclass

from sparklog.errors import CorruptLogError, NotFoundError
from sparklog.metadata.documents.paths import DIRECTORY, commit_of, manifest_of
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.loading import follow
from sparklog.metadata.model.image import NO_COMMIT, Image, empty_image
from sparklog.storage import Store


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
