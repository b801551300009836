"""Who has an older incarnation of the root open is told so, before it publishes or removes anything.

A restore from a backup (model/restoring.py) is meant for a time when nothing has the root open. What was not
stopped must do no harm:

- Who looks sees it. Where looking costs nothing, each publish looks; the commit of the restore, or a log that
  is shorter than what was seen, is a FencedError: nothing of this process is published any more.
- On an object store a publish is one PUT, of the number after the last one that is known. In the restored
  log that number is free:

      1. a process that was not stopped has seen commit 500; the root is put back to 400, and restored;
      2. it puts commit 501, and then 502 and 503, each behind its own: all are acknowledged;
      3. the restored log comes to commit 500: nobody gets past it, for two histories are mixed.

  So the id of the newest incarnation is in a small object, and who publishes has looked at it within
  LEASE_MS, by the larger of a monotonic and a wall clock. A restore puts the object first, waits for longer
  than that, and only then commits.

Invariants: whoever creates a commit on a remote store has found its own incarnation there, or none, within
    the lease. A missing object says nothing: a root that was never restored has none, nor need a copy of one.
Not here: what a restore does (model/restoring.py), in which order (maintenance/restore.py).
Concurrency: an object of the metadata log, used under its lock.
After a crash of the restore between its object and its commit nobody publishes until it is run again.
Sources: adr/0033; FORMAT.md#metadata-log.
"""

from sparklog.clock import Clock
from sparklog.errors import FencedError, NotFoundError
from sparklog.metadata.documents.paths import INCARNATION
from sparklog.metadata.model.image import NO_COMMIT, Image
from sparklog.storage import Store

LEASE_MS = 30_000
_MAX_BYTES = 100


def read_incarnation(store: Store) -> str | None:
    """The id of the newest incarnation, as far as its object says; None: there is none."""
    try:
        return store.read(INCARNATION, 0, _MAX_BYTES).decode("ascii", "replace").strip()
    except NotFoundError:
        return None


def write_incarnation(store: Store, incarnation_id: str) -> None:
    """From now on, within LEASE_MS, nobody publishes to a remote store by another one."""
    store.put_hint(INCARNATION, f"{incarnation_id}\n".encode())


def another_incarnation(store: Store, seen: Image, found: Image) -> FencedError | None:
    """The error for who has `seen`, if the newest image `found` is of another incarnation of the root."""
    if seen.commit == NO_COMMIT or seen.incarnation.incarnation_id == found.incarnation.incarnation_id:
        return None
    return _restored(store, seen.incarnation.incarnation_id, found.incarnation.incarnation_id)


def _restored(store: Store, seen: str, found: str) -> FencedError:
    return FencedError(
        "ROOT_RESTORED",
        f"{store.url}: found incarnation {found or 'none'} of the root, expected {seen or 'none'}, which "
        "this process has open: the root was restored from a backup meanwhile, and may have lost what this "
        "process has seen",
        fix="Stop this process, and start it anew; what it had not published yet is to be written again. If "
        "a restore was interrupted, run `sparklog root restore` again",
    )


class IncarnationCheck:
    """Of one process, for one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Made before the root is looked at for the first time."""
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
