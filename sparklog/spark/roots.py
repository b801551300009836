"""Opened roots, one per process and directory, kept between the calls that Spark makes.

Spark's Python workers serve many micro-batches, and opening a root means reading its metadata; so
each process keeps what it opened. A directory may be removed and made anew under the same path
while a worker lives (tests and notebooks do it); then the kept state would be that of another log,
and the next commit would land in the wrong one. Hence every use compares the cluster id on storage;
readers of a remote one, where that is a request, do so once in a while. Whether the new one is meant is for
the caller to know (sink_root.py).

A broker's root is asked for whenever a plan is made, on the driver's side only: what reaches executors
and checkpoints is the root. The broker that was there before may be gone without need, so a process that
has learned the root goes on with it.

Concurrency: Spark's workers are single-threaded; a forked child starts with an empty table.
"""

import logging
import os
from typing import TYPE_CHECKING

from sparklog.errors import RetriableError
from sparklog.spark.storage_options import NO_STORAGE_OPTIONS, StorageOptions
from sparklog.storage.root_rules import ANY_ROOT, RootRules

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.broker_root import BrokerRoot

logger = logging.getLogger("sparklog.spark")
_Key = tuple[int, str, StorageOptions]
_CHECK_REMOTE_MS = 5_000
_opened: "dict[_Key, SparkLog]" = {}
_checked_ms: dict[_Key, int] = {}
_told: "dict[str, BrokerRoot]" = {}  # bootstrap servers -> their last answer


def root_of_broker(bootstrap_servers: str, rules: RootRules = ANY_ROOT) -> str:
    """The URL of a broker's root; the last answer when no server answers now.

    Raises:
        InvalidRequestError: the servers are no sparklog brokers, or their root is not visible here, or not
            one that the rules accept.
        RetriableError: BROKER_UNREACHABLE.
    """
    from sparklog.client.broker_root import find_broker_root  # noqa: PLC0415 - few queries need it

    try:
        found = _told[bootstrap_servers] = find_broker_root(bootstrap_servers, rules=rules)
    except RetriableError as error:
        known = _told.get(bootstrap_servers)
        if known is None:
            raise
        rules.validate_cluster_id(known.cluster_id, f"broker {known.server}")
        rules.validate_place(known.root)
        logger.warning("%s; going on with its root %s", error, known.root)
        return known.root
    return found.root


def open_root(
    root: str,
    *,
    create: bool,
    refresh: bool = True,
    storage: StorageOptions = NO_STORAGE_OPTIONS,
    rules: RootRules = ANY_ROOT,
    writing: bool | None = None,
) -> "SparkLog":
    """The log under `root`, its image as of now (or as of the last call without `refresh`).

    Args:
        root: directory or URL.
        create: make an empty root where there is none; else that is an error.
        writing: look whether it is the same root every time; as `create` if None.
        storage: how to reach it.
        rules: where it may be, and which it is; looked at with every call, since a link or a mount may
            change. With a cluster id no root is made.
    """
    rules.validate_place(root)
    writing = create if writing is None else writing
    create = create and rules.cluster_id is None
    key = (os.getpid(), root, storage)
    log = _opened.get(key)
    if log is None or (refresh and _is_due(key, log, writing=writing) and not log.is_same_root()):
        from sparklog.client import open_log  # noqa: PLC0415 - options are parsed without the engine

        log = _opened[key] = open_log(
            root, create=create, storage_options=storage.to_dict(), cluster_id=rules.cluster_id
        )
    elif refresh:
        log.refresh()
    rules.validate_cluster_id(log.cluster_id, f"root {log.url}")
    return log


def start_anew() -> None:
    """As a process that has opened no root, and has asked no broker."""
    _opened.clear()
    _checked_ms.clear()
    _told.clear()


def _is_due(key: _Key, log: "SparkLog", *, writing: bool) -> bool:
    if writing or not log.store.traits.is_remote:
        return True
    now_ms = log.clock.monotonic_ms()
    if now_ms - _checked_ms.get(key, -_CHECK_REMOTE_MS) < _CHECK_REMOTE_MS:
        return False
    _checked_ms[key] = now_ms
    return True
