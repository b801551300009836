"""The root that a sink writes to: made by a batch write, and by micro-batch 0 of a query, but not later.

A volume that is not mounted looks like a directory where nothing has ever been. A query that has written
before must not go on in a new, empty root there: from micro-batch 1 on a missing root is an error, and so is
one that has become another since this process wrote to it for the query.

Invariants: which root a query writes to is remembered per process, and in the checkpoint where that can be
    reached (pinned_root.py). Without it a new process takes the root that it finds; where that has never seen
    the query, it says so (`warn_of_first_write`). Option clusterId beats both.
Not here: keeping roots open (roots.py).
Concurrency: as roots.py.
"""

import logging
import os

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, NotFoundError
from sparklog.spark.options import SinkOptions
from sparklog.spark.roots import open_root

logger = logging.getLogger("sparklog.spark")
_cluster_ids: dict[tuple[int, str, str], str] = {}  # process, root, query -> the root that it wrote to


def open_sink_root(options: SinkOptions, query_id: str | None, batch_id: int | None) -> SparkLog:
    """The root to write to, now.

    Args:
        query_id, batch_id: of the micro-batch; not looked at in batch writes, also within a foreachBatch.

    Raises:
        NotFoundError: ROOT_NOT_FOUND, and this is not the first micro-batch.
        InvalidRequestError: WRONG_ROOT, it is not the one that this process wrote the query's last rows to.
    """
    if not options.streaming or query_id is None or not batch_id:
        log = open_root(options.root, create=True, storage=options.storage, rules=options.rules)
        if options.streaming and query_id is not None:
            _cluster_ids[os.getpid(), options.root, query_id] = log.cluster_id
        return log
    try:
        log = open_root(
            options.root, create=False, writing=True, storage=options.storage, rules=options.rules
        )
    except (NotFoundError, InvalidRequestError) as error:
        if error.code != "ROOT_NOT_FOUND":
            raise
        raise NotFoundError(
            "ROOT_NOT_FOUND",
            f"found no root at {options.root}, expected the one that the earlier micro-batches of query "
            f"{query_id} went to: this is micro-batch {batch_id} ({error.message})",
            fix="mount or restore what was there; to go on in a new place on purpose, make an empty root "
            "there first (sparklog.open) and set option clusterId to its cluster id, or start the query with "
            "a new checkpointLocation",
        ) from None
    key = (os.getpid(), options.root, query_id)
    if options.rules.cluster_id is not None:
        _cluster_ids[key] = log.cluster_id  # which is the one that it names
    expected = _cluster_ids.setdefault(key, log.cluster_id)
    if log.cluster_id != expected:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"found the root with cluster id {log.cluster_id} at {options.root}, expected {expected}, which "
            f"the earlier micro-batches of query {query_id} went to: this is micro-batch {batch_id}",
            fix="mount or restore what was there; to write to the new root on purpose, set option clusterId "
            f"to {log.cluster_id}, or start the query with a new checkpointLocation",
        )
    return log


def start_anew() -> None:
    """As a process that has written for no query."""
    _cluster_ids.clear()


def warn_of_first_write(log: SparkLog, query_id: str, application: str, batch_id: int) -> None:
    """Say it when a query that has run for a while has never written to this root: was it replaced?"""
    image = log.image
    known = any(application in topic.writer_txns for topic in image.topics.values())
    if batch_id and not known:
        logger.warning(
            "micro-batch %d of query %s is the first that writes to the root %s (cluster id %s). If earlier "
            "ones had rows, they went to another root, or to topics that were deleted: was it replaced?",
            batch_id,
            query_id,
            log.url,
            log.cluster_id,
        )
