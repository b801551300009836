"""Work beside whoever waits for a publish: in steps, in a thread that lives as long as there is some.

A piece of work is a generator; what it does from one `yield` to the next is a step, which is bounded. What
comes newly goes before what is there already (a snapshot before the rest of a cleaning), and is forgotten if
something newer comes before its turn, since it comes due again.

Invariants: one thread at most, none while there is nothing to do; after a step that is not the last, the
    thread rests as long as the step took, so that it takes half a core and half a disk at most.
Ends with its owner: `finish`, and the end of the process, let the step end that runs, and a piece of work
    begin that waits; then what is left may go on for END_SECONDS, and is left to others.
Concurrency: any thread. After a fork the child has no thread, and starts anew.
After a crash: whatever the work says.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

_log = logging.getLogger(__name__)
Work = Callable[[], Iterator[None]]
END_SECONDS = 2.0
_LONGEST_REST_SECONDS = 1.0


class Runner(Protocol):
    """Who does the work."""

    def run(self, work: Work) -> None:
        """Do it, now or soon."""
        ...

    def finish(self) -> None:
        """Wait for what is being done to come to an end, soon."""
        ...

    def start_anew(self) -> None:
        """In a forked child."""
        ...


class AtOnce:
    """Does it before it returns: for tests, and tools of one publish."""

    def run(self, work: Work) -> None:
        for _ in work():
            pass

    def finish(self) -> None:
        """All is done."""

    def start_anew(self) -> None:
        """There is nothing to forget."""


class Background:
    """See the module's docstring."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()

    def start_anew(self) -> None:
        """Without a thread, and without work."""
        self._lock = threading.Lock()
        self._news = threading.Event()  # to wake whoever rests
        self._thread: threading.Thread | None = None
        self._waiting: Work | None = None
        self._deadline: float | None = None

    def run(self, work: Work) -> None:
        """Do it soon, before what is being done already; something newer may take its place until then."""
        with self._lock:
            self._waiting = work
            self._news.set()
            if self._thread is not None:
                return
            # No daemon: what ends with its last publish, a job of one commit, waits for the snapshot.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=False)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is being shut down
                self._thread = self._waiting = None

    def finish(self) -> None:
        """Wait until nothing is being done any more; see the module's docstring for how long that may be."""
        with self._lock:
            thread, self._deadline = self._thread, time.monotonic() + END_SECONDS
            self._news.set()
        try:
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        finally:  # Ctrl-C, too: whoever goes on has work again
            with self._lock:
                self._deadline = None

    def _work(self) -> None:
        begun: list[Iterator[None]] = []
        while True:
            with self._lock:
                if self._waiting is not None:  # whatever the time: its first step is the snapshot
                    begun.append(self._waiting())
                    self._waiting = None
                    self._news.clear()
                elif not begun or self._is_over():
                    self._thread = None
                    return
            since = time.monotonic()
            try:
                next(begun[-1])
            except StopIteration:
                begun.pop()
            except Exception:  # noqa: BLE001 - nobody waits for it who could be told
                _log.exception("%s failed", self._name)
                begun.pop()
            else:
                self._rest(time.monotonic() - since)

    def _is_over(self) -> bool:
        """Under the lock. The main thread ends before the interpreter waits for the others."""
        if self._deadline is None and not threading.main_thread().is_alive():
            self._deadline = time.monotonic() + END_SECONDS
        return self._deadline is not None and time.monotonic() > self._deadline

    def _rest(self, seconds: float) -> None:
        if self._deadline is None:
            self._news.wait(min(seconds, _LONGEST_REST_SECONDS))
