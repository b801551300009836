"""To be asked to stop by a signal, while the same thread waits.

threading.Event is not for that. Its `wait` has a lock for moments; a handler that runs in such a moment, in
the same thread, waits in `set` for that lock, and the thread for its handler: for ever. Here what wakes who
waits is a byte in a pipe.

Concurrency: `ask` anywhere, also between two instructions of `wait`; the rest in one thread.
"""

from __future__ import annotations

import contextlib
import os
import select

LONGEST_SECONDS = 86_400.0 * 365


class Stop:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._is_asked = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def ask(self) -> None:
        """From now on."""
        self._is_asked = True
        with contextlib.suppress(OSError):  # the pipe is full: whoever waits is awake
            os.write(self._writer, b"\0")

    def is_asked(self) -> bool:
        """Was it?"""
        return self._is_asked

    def wait(self, seconds: float) -> bool:
        """Until it is asked, or for so long. Was it?"""
        if not self._is_asked:
            select.select([self._reader], [], [], min(max(0.0, seconds), LONGEST_SECONDS))
        return self._is_asked

    def close(self) -> None:
        """Nobody asks, or waits, any more."""
        os.close(self._reader)
        os.close(self._writer)
