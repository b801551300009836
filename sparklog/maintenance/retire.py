"""What was committed, and is dead, is freed by name: after file.delete.delay.ms, not after a week.

The week that a vacuum leaves (sweep.py) is for what was written and may be published still. A dead segment
all of whose bytes were committed at some time holds nothing of that kind: it is retired, in a commit, and
removed when readers have had their time. The file's size and the image's counts show whether all were.

    1. files that were retired `delay_ms` ago are removed
    2. of the dead segments that the image counts: what is as large as what was committed is retired; the
       rest is counted no more, and waits for the horizon. What was written to a while ago is looked at again
       later: its writer would have to begin another segment

Invariants: a file is removed only if a durable image has its segment retired; then no commit can bring it to
    life (metadata/model/sweeping.py).
Limits: MAX_SEGMENTS a round.
Concurrency: beside all others, as a vacuum. Two at a time do the same, and harm nothing.
After a crash: what is retired and not removed is still pending; a vacuum removes it as well.
Sources: adr/0019; tests/models/sweeping.py (retirer).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.log.names import index_name, is_merged, time_index_name
from sparklog.maintenance.alone import alone
from sparklog.maintenance.dead_files import all_extents
from sparklog.metadata import Action, Image, MetadataLog, RetireSegments, plan_retire_segments
from sparklog.storage import Store, StoredFile

MAX_SEGMENTS = 5_000
CHECK_MS = 600_000
IDLE_MS = 3_600_000  # of a file that may grow: its writer goes on in it until then, most likely


@dataclass(slots=True, kw_only=True)
class RetireReport:
    """Segments that were retired, and files and bytes that were removed."""

    retired: int = 0
    retired_bytes: int = 0
    files: int = 0

    @property
    def has_done_anything(self) -> bool:
        """True if anything was retired or removed."""
        return bool(self.retired or self.files)


def retire_is_due(image: Image, now_ms: int, delay_ms: int) -> bool:
    """True if files are to be removed, or dead segments may be retired. Pure."""
    if _to_remove(image, now_ms, delay_ms):
        return True
    counted, checked_ms = image.retired.removed_bytes, image.retired.checked_ms
    return bool(counted) and abs(now_ms - checked_ms) >= CHECK_MS and bool(_dead(image))


def retire(
    metadata: MetadataLog,
    clock: Clock,
    *,
    delay_ms: int,
    check: Callable[[], None] = lambda: None,
    removed: Callable[[int], None] = lambda _files: None,
) -> RetireReport:
    """Do what is due.

    Args:
        delay_ms: how long readers have a file after it is retired.
        check: called between steps; may raise.
        removed: called with numbers of removed files.

    Raises:
        RetriableError: MAINTENANCE_RUNNING. StorageError: see MetadataLog.publish and Store.delete_many.
    """
    report = RetireReport()
    with alone(metadata):
        store, image = metadata.store, metadata.refresh(force=True)
        now_ms = store.storage_now_ms(clock.now_ms())
        gone = _to_remove(image, now_ms, delay_ms)[:MAX_SEGMENTS]
        for segment in gone:
            assert image.retired.has(segment), "pending is what was retired"
        names = [name for segment in gone for name in _files_of(segment)]
        if names:
            store.delete_many(names)
            report.files = len(gone)
            removed(len(names))
        check()
        ready, left = _judged(store, image, now_ms, check)

        def plan(newest: Image) -> list[Action]:
            return [plan_retire_segments(newest, now_ms, list(ready), left=left, gone=gone)]

        if not (gone or _dead(image)):
            return report
        for action in metadata.publish(plan).actions:
            if isinstance(action, RetireSegments):
                report.retired = len(action.segments)
                report.retired_bytes = sum(ready[one] for one in action.segments)
    return report


def _to_remove(image: Image, now_ms: int, delay_ms: int) -> list[str]:
    """Retired so long ago, or (a clock was wrong) so far in the future."""
    return [one for one, at_ms in image.retired.pending.items() if abs(now_ms - at_ms) >= delay_ms]


def _files_of(segment: str) -> list[str]:
    more = [time_index_name(segment)] if is_merged(segment) else []
    return [segment, index_name(segment), *more]


def _dead(image: Image) -> list[str]:
    """Counted segments of which nothing is live. Cost: a look at the extents, until none is left."""
    left = set(image.retired.removed_bytes)
    for extents in all_extents(image):
        if not left:
            break
        for _, block in extents.column_blocks():
            left.difference_update(block.segment.tolist())
    return [segment for segment in image.retired.removed_bytes if segment in left]


def _judged(
    store: Store, image: Image, now_ms: int, check: Callable[[], None]
) -> tuple[dict[str, int], list[str]]:
    """What may be retired, with its bytes; and what is to wait for the horizon."""
    ready: dict[str, int] = {}
    left: list[str] = []
    dead = _dead(image)[:MAX_SEGMENTS]
    files = _stored(store, dead, check)
    for segment in dead:
        file, committed = files.get(segment), image.retired.removed_bytes[segment]
        is_open = store.traits.appends_after_sync and not is_merged(segment)
        if file is not None and is_open and now_ms - IDLE_MS < file.modified_ms:
            continue
        if file is not None and file.size == committed:
            ready[segment] = committed
        else:
            left.append(segment)
    return ready, left


def _stored(store: Store, segments: Collection[str], check: Callable[[], None]) -> dict[str, StoredFile]:
    found: dict[str, StoredFile] = {}
    wanted = set(segments)
    for directory in sorted({segment.rpartition("/")[0] for segment in segments}):
        check()
        found.update((file.name, file) for file in store.list(directory) if file.name in wanted)
    return found
