"""What a query's user is told without being stopped: once a query, with a time and a level.

Spark parses a query's options again for every plan and every micro-batch, in several processes. A process
tells each thing once for the same options: its memory holds no options, only their hash.
Spark's own Python workers have no logging set up, and Python would print bare messages there: in them, and
nowhere else, the logger `sparklog` gets a handler, which stands back as soon as somebody sets up another.
Concurrency: Spark's workers are single-threaded; elsewhere a race tells a thing twice.
"""

import gc
import itertools
import logging
import sys
from collections.abc import Mapping

from sparklog.allocator import keep_freed_memory

logger = logging.getLogger("sparklog.spark")
_MAX_REMEMBERED = 10_000
_told: set[tuple[int, str]] = set()


class Notices:
    """Where the parsing of one query's options puts what is worth saying."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._query = hash(frozenset(options.items()))

    def warn(self, text: str) -> None:
        """Log a warning, unless this process has done so for a query with these options."""
        told = (self._query, text)
        if told in _told:
            return
        if len(_told) >= _MAX_REMEMBERED:
            _told.clear()
        _told.add(told)
        logger.warning("%s", text)


def start_anew() -> None:
    """As a process that has told nothing yet."""
    _told.clear()


def log_with_time_and_level() -> None:
    """In a Python worker of Spark: give the logger `sparklog` a form; elsewhere that is the application's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or not str(spec.name).startswith("pyspark."):
        return
    package = logging.getLogger("sparklog")
    if not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        package.addHandler(handler)


# --- workers -----------------------------------------------------------------------------------------
#
# Spark's Python workers go from task to task: what makes their next one cheap.
#
# Spark runs a full garbage collection after each task, and after each question to the driver's workers. It
# looks at everything that was ever imported: 90,000 objects, 20 to 30 ms, in two workers for each task of a
# micro-batch. What is there when the second task begins stays for the worker's life, so it is taken out of
# the collector's sight; a collection takes microseconds then. What tasks make is collected as before.


_turns = itertools.count(1)


def settle_in() -> None:
    """Call it where a task begins."""
    keep_freed_memory()
    if next(_turns) == 2:  # the first task has imported all that tasks need
        gc.freeze()
