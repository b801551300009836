"""Following the metadata log: the image is refreshed at intervals, whichever process commits.

Invariants: a damaged commit, a root that was restored from a backup, a failed fsync, and a bug stop the
    broker: its heartbeats go on, so that it would lead forever what it cannot serve. Any other failure is
    logged once, and tried again. The
    role is reviewed (membership.py) after every look, and while one takes too long.
While no request waits for news (root/live_root.py), and each refresh is a request, refreshes are rare.
Not here: looking because a request may know of something newer (root/live_root.py, `look`).
Concurrency: one task on the event loop; the looking itself is in a storage thread.
Sources: Kafka BrokerMetadataPublisher; docs/adr/0013.
"""

import asyncio
import logging
from collections.abc import Callable

from sparklog.errors import CorruptLogError, FatalStorageError, FencedError, SparklogError
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import Attention, LiveRoot
from sparklog_server.runtime.lifecycle import Lifecycle

SHOWN_MS = 100
_log = logging.getLogger("sparklog_server")


class Follower:
    """Refreshes the image at intervals."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        lifecycle: Lifecycle,
        metrics: Metrics,
        attention: Attention,
        *,
        poll_ms: int,
        idle_ms: Callable[[], float],
    ) -> None:
        """`idle_ms`: how often to refresh while no request waits for news, on an object store."""
        self._root = root
        self._membership = membership
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._attention = attention
        self._poll_ms = poll_ms
        self._idle_ms = idle_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._follow())
        self._task.add_done_callback(self._has_ended)

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        """Not as stop() ends it: by a fault of ours."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("following the log has ended", exc_info=error)
            self._lifecycle.fail(error)

    async def _follow(self) -> None:
        """Look for commits of others."""
        problem = ""
        while True:
            try:
                await self._nap()
                await self._refresh()
            except (CorruptLogError, FencedError, FatalStorageError) as error:
                # A retry would always fail the same way.
                self._lifecycle.fail(error)
                return
            except (SparklogError, OSError) as error:
                if str(error) != problem:  # else at every poll
                    _log.warning("looking for commits failed: %s", error)
                problem = str(error)
            else:
                problem = ""
            finally:
                self._attention.refreshed()
            self._root.show()
            self._membership.review()

    async def _nap(self) -> None:
        """Between two looks. Naps also show how late the loop is."""
        idle_ms = max(self._poll_ms, self._idle_ms())
        if self._root.store.traits.is_remote and not self._attention.is_active:
            await self._attention.idle(idle_ms / 1000)
            return
        loop, nap = asyncio.get_running_loop(), self._poll_ms / 1000
        began = loop.time()
        await asyncio.sleep(nap)
        self._metrics.loop_lag.record((loop.time() - began - nap) * 1000)

    async def _refresh(self) -> None:
        """Look for commits; should the storage not answer in time, the role does not wait for it. Nor do
        those who wait for news: a publish may hold the look up, and show what it finds meanwhile.
        """
        refreshing = self._root.begin_refresh()
        while not refreshing.done():
            left_ms = self._membership.left_ms
            timeout_ms = min(left_ms, SHOWN_MS) if left_ms > 0 else SHOWN_MS
            await asyncio.wait({refreshing}, timeout=timeout_ms / 1000)
            self._root.show()
            self._membership.review()
        refreshing.result()
