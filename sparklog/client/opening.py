"""Opening a root: which one is meant, whether it may be used, and its log.

Not here: what can be done with it (log.py).
Concurrency: any thread.
After a crash: open it again; there is nothing to repair.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sparklog.client.log import SparkLog
from sparklog.clock import Clock, SystemClock
from sparklog.metadata import Background, MetadataLog
from sparklog.metadata.documents.properties import open_properties
from sparklog.storage import open_store
from sparklog.storage.root_rules import root_rules


def open_log(
    root: str | os.PathLike[str],
    *,
    create: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    cluster_id: str | None = None,
    allowed_roots: str | Iterable[str] | None = None,
) -> SparkLog:
    """Open the log under a root.

    Args:
        root: a directory, file:///directory, s3://bucket/prefix, or memory://name (this process only).
        create: make an empty log where there is none; False makes that an error.
        storage_options: how to reach an object store, under s3fs's names: key, secret, endpoint_url, profile
            ...; what is not given comes from the environment (AWS_ACCESS_KEY_ID ...). See docs/s3.md. For a
            directory allow_unsafe_filesystem, see docs/filesystems.md.
        clock: for tests.
        cluster_id: of the root that is meant: another one is refused, and none is made.
        allowed_roots: the root must lie under one of these paths and URLs (a list, or text with commas);
            and under one of those in the environment's SPARKLOG_ALLOWED_ROOTS, if that is set.

    Raises:
        NotFoundError, InvalidRequestError: no root there, or not one that can be opened, or may be.
        CorruptLogError, UnsupportedVersionError: its metadata cannot be used.
    """
    clock = clock or SystemClock()
    rules = root_rules(cluster_id, allowed_roots, os.environ)
    rules.validate_place(root)
    create = create and rules.cluster_id is None
    store = open_store(root, create=create, storage_options=storage_options, clock=clock)
    if rules.cluster_id is not None:
        found = open_properties(store, create=False, new_cluster_id="")
        rules.validate_cluster_id(found, f"root {store.url}")
    upkeep = Background("sparklog upkeep")
    metadata = MetadataLog.open(store, clock, create=create, upkeep=upkeep)
    return SparkLog(store, metadata, clock)
