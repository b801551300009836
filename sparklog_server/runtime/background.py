"""Work that goes on beside requests, until its owner stops.

Invariants: a task is referred to until it is done, so that it is not collected before.
Concurrency: event loop only.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it from the loop's next turn on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End what goes on."""
        for task in list(self._tasks):
            task.cancel()
