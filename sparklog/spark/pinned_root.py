"""Which root a query writes to, remembered in its checkpoint: what is found there later must be the same.

    <checkpoint>/sparklog-sink     {"version": 1, "query_id": "...", "cluster_id": "..."}

A process remembers it by itself (sink_root.py), and a query that is restarted runs in new ones. Meanwhile a
volume may have been lost, a path may have come to mean another place, or a broker's answer may have changed.

Invariants: written by the driver after the first micro-batch with rows was published, and again only where
    option clusterId names another root: that is how a user says that the new place is meant. What cannot be
    read or written is nothing: the checkpoint may be where only Spark can reach it.
Not here: where a checkpoint is (stream_writer.py), reaching it (checkpoint.py); the source's own memory,
    which is in its offsets (stream_offset.py).
Concurrency: one driver a checkpoint, as for everything in it.
"""

import json
import logging
import os

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.checkpoint import read_files, write_file
from sparklog.spark.options import SinkOptions

logger = logging.getLogger("sparklog.spark")
NAME = "sparklog-sink"
VERSION = 1
# process, checkpoint, query -> the root that is written there; None: it could not be, and is not tried again
_known: dict[tuple[int, str, str], str | None] = {}


def validate_pinned(
    place: str | None, query_id: str, batch_id: int, log: SparkLog, options: SinkOptions
) -> None:
    """Refuse a root that is another than the checkpoint says, unless clusterId names it.

    Raises:
        InvalidRequestError: WRONG_ROOT.
    """
    if not place or options.rules.cluster_id is not None:
        return
    expected = _pinned(place, query_id, options)
    if expected is not None and expected != log.cluster_id:
        _known.pop((os.getpid(), place, query_id))  # another process may have written it since
        expected = _pinned(place, query_id, options)
    if expected is not None and expected != log.cluster_id:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"found the root with cluster id {log.cluster_id} at {log.url}, expected {expected}, which the "
            f"checkpoint {place} says that query {query_id} writes to: this is micro-batch {batch_id}",
            fix="mount or restore what was there, or name it; to go on in this root on purpose, set option "
            f"clusterId to {log.cluster_id}",
        )


def pin_root(place: str | None, query_id: str, log: SparkLog, options: SinkOptions) -> None:
    """Remember the root, now that something of the query is in it."""
    if not place or _pinned(place, query_id, options) == log.cluster_id:
        return
    key = (os.getpid(), place, query_id)
    if key in _known and _known[key] is None:
        return
    document = {"version": VERSION, "query_id": query_id, "cluster_id": log.cluster_id}
    written = False
    try:
        written = write_file(place, NAME, json.dumps(document).encode(), options)
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("the checkpoint %s cannot hold which root the query writes to: %s", place, problem)
    _known[key] = log.cluster_id if written else None  # a failure is not tried again with every micro-batch


def start_anew() -> None:
    """As a process that has looked at no checkpoint."""
    _known.clear()


def _pinned(place: str, query_id: str, options: SinkOptions) -> str | None:
    key = (os.getpid(), place, query_id)
    if key not in _known:
        found = _read(place, query_id, options)
        if found is None:
            return None
        _known[key] = found
    return _known[key]


def _read(place: str, query_id: str, options: SinkOptions) -> str | None:
    try:
        (data,) = read_files(place, [NAME], options)
        document = {} if data is None else json.loads(data)
    except (OSError, SparklogError, ValueError) as problem:
        logger.info("the checkpoint %s does not say which root the query writes to: %s", place, problem)
        return None
    if not isinstance(document, dict) or document.get("query_id") != query_id:
        return None  # of a checkpoint that was here before
    found = document.get("cluster_id")
    return found if isinstance(found, str) else None
