"""What writers that were killed left behind: temporary files, parts of uploads that nobody will finish.

Looked for at most once a day, when other upkeep falls due: never while somebody waits for a publish, and by
one thread alone. What is older than a day belongs to nobody who is still at work; a put that was suspended
for so long fails, with an error that says so, and is tried again. An upload may belong to a task of days, and
is left for a week.
Not here: how they are told from what is in use (sparklog/storage/); roots without a broker, which
    `sparklog root sweep` is for.
Concurrency: the upkeep's thread (sparklog/metadata/background.py).
After a crash: what is left is found by the next sweep.
"""

import logging

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.storage import Store

DAY_MS = 24 * 3_600_000
_log = logging.getLogger("sparklog_server")


class Leftovers:
    """See the module's docstring."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._due_ms = clock.monotonic_ms()

    def sweep_if_due(self) -> None:
        """Sweep, unless that was done within a day. What fails is tried again in a day."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + DAY_MS
        try:
            removed = self._store.sweep_temporary(older_than_ms=DAY_MS)
        except (SparklogError, OSError) as error:
            _log.warning("removing what unfinished writes left behind failed: %s", error)
            return
        if removed:
            _log.info("removed %d files that unfinished writes had left behind", removed)
