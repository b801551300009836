"""Warnings of a query, once for each query, and the preparation of Spark's Python workers.

Spark parses a query's options again for every plan and every micro-batch, in several processes. A process
logs each warning once for the same options; it keeps only a hash of them.
Spark's Python workers have no logging configured, so Python would print messages without time and level.
Only there the logger `sparklog` gets a handler, which is inactive once the root logger has one.
Concurrency: Spark's workers are single-threaded; elsewhere a race may log a warning twice.
"""

import gc
import itertools
import logging
import sys
from collections.abc import Mapping

from sparklog.allocator import keep_freed_memory

logger = logging.getLogger("sparklog.spark")
_MAX_REMEMBERED = 10_000
_logged: set[tuple[int, str]] = set()


class Notices:
    """Logs warnings about one query's options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._query = hash(frozenset(options.items()))

    def warn(self, text: str) -> None:
        """Log a warning, unless this process has logged it for a query with these options."""
        key = (self._query, text)
        if key in _logged:
            return
        if len(_logged) >= _MAX_REMEMBERED:
            _logged.clear()
        _logged.add(key)
        logger.warning("%s", text)


def reset() -> None:
    """Forget all logged warnings, as in a new process."""
    _logged.clear()


def log_with_time_and_level() -> None:
    """In a Python worker of Spark, add a handler with a format; elsewhere the application configures it."""
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
# Spark's Python workers run many tasks; this makes the later ones cheaper.
#
# Spark runs a full garbage collection after each task, and after each call of the driver's workers. It
# traverses everything that was ever imported: 90,000 objects, 20 to 30 ms, in two workers for each task of a
# micro-batch. Objects that exist when the second task begins stay for the worker's life, so `gc.freeze`
# exempts them; a collection then takes microseconds. Objects of later tasks are collected as before.


_tasks = itertools.count(1)


def prepare_worker() -> None:
    """Prepare the process for many tasks; called at the begin of each."""
    keep_freed_memory()
    if next(_tasks) == 2:  # the first task has imported all modules
        gc.freeze()
