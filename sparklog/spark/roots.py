"""Opened roots, one per process and directory, kept between the calls that Spark makes.

Spark's Python workers serve many micro-batches, and opening a root means reading its metadata; so
each process keeps what it opened. A directory may be removed and made anew under the same path
while a worker lives (tests and notebooks do it); then the kept state would be that of another log,
and the next commit would land in the wrong one. Hence every use compares the cluster id on storage.

Concurrency: Spark's workers are single-threaded; a forked child starts with an empty table.
"""

import os

import sparklog
from sparklog.client import SparkLog

_opened: dict[tuple[int, str], SparkLog] = {}


def open_root(root: str, *, create: bool, refresh: bool = True) -> SparkLog:
    """The log under `root`, its image as of now (or as of the last call without `refresh`).

    Args:
        root: directory or URL.
        create: make an empty root where there is none (writers); else that is an error (readers).
    """
    key = (os.getpid(), root)
    log = _opened.get(key)
    if log is None or (refresh and not log.is_same_root()):
        log = _opened[key] = sparklog.open(root, create=create)
    elif refresh:
        log.refresh()
    return log
