"""Upkeep of the metadata log (snapshots, cleaning) beside the publishing, one at a time.

Invariants: at most one runs; what comes meanwhile is left out, since it comes due again.
Concurrency: `run` from any thread.
After a crash: a snapshot that was not finished is not one; the next upkeep begins anew.
"""

import concurrent.futures
import threading
from collections.abc import Callable


class Upkeep:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(1, "upkeep")
        self._is_running = threading.Lock()

    def run(self, upkeep: Callable[[], None]) -> None:
        """Something is due: do it, unless something else is being done."""
        if not self._is_running.acquire(blocking=False):
            return

        def run() -> None:
            try:
                upkeep()
            finally:
                self._is_running.release()

        try:
            self._threads.submit(run)
        except RuntimeError:  # shutting down
            self._is_running.release()

    def finish(self) -> None:
        """Wait for what is being done; nothing is begun any more. Blocks."""
        self._threads.shutdown(wait=True)
