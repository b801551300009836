"""What a test leaves behind in its process, where it is the bad luck of those that come after.

Loggers that are set otherwise: they tell more or less than they do by themselves.
Threads that go on: they log, and take time. Idle ones of an executor's pool end with it, those of a test's
server with its clients: both are none.
"""

import logging
import re
import threading
import time

_HARMLESS = re.compile(r"_\d+$|process_request_thread")  # "storage_0" is how executors name their threads
_Set = tuple[int, bool, bool, int]
_UNSET: _Set = (logging.NOTSET, True, False, 0)


class Leftovers:
    """What there is before a test, to be compared with what there is after it."""

    def __init__(self, patience_seconds: float = 20) -> None:
        """`patience_seconds`: how long a thread may take to end."""
        self._patience_seconds = patience_seconds
        self._threads = set(threading.enumerate())
        self._loggers = _loggers()

    def loggers(self) -> list[str]:
        """Those that are set otherwise."""
        return [
            f"logger {name or 'of all'}: (level, propagates, is disabled, filters) is {found}, was {before}"
            for name, found in _loggers().items()
            if found != (before := self._loggers.get(name, _UNSET))
        ]

    def threads(self) -> list[str]:
        """Those that go on; who is about to end is waited for."""
        end = time.monotonic() + self._patience_seconds
        left = [one for one in set(threading.enumerate()) - self._threads if not _HARMLESS.search(one.name)]
        for one in left:
            one.join(max(0.0, end - time.monotonic()))
        return [str(one) for one in left if one.is_alive()]


def _loggers() -> dict[str, _Set]:
    """Our own and the root logger."""
    named = {
        name: one for name, one in logging.root.manager.loggerDict.items() if name.startswith("sparklog")
    }
    loggers = {name: one for name, one in named.items() if isinstance(one, logging.Logger)}
    loggers[""] = logging.root
    return {name: (one.level, one.propagate, one.disabled, len(one.filters)) for name, one in loggers.items()}
