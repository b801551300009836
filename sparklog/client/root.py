"""OpenedRoot: the metadata of a root, its topics and settings. SparkLog (log.py) adds records and groups.

Apart from it, so that a command that lists topics need not import what reads and writes records.
Invariants: reading calls refresh first; `image` is as of the last refresh.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sparklog.client import admin
from sparklog.client.admin import TopicDescription
from sparklog.clock import Clock, SystemClock
from sparklog.closing import Closing
from sparklog.errors import NotFoundError
from sparklog.metadata import Background, Image, MetadataLog, is_internal
from sparklog.metadata.documents.properties import META_PROPERTIES, decode_properties, open_properties
from sparklog.storage import Store, open_store
from sparklog.storage.root_rules import root_rules


class OpenedRoot(Closing):
    """A root whose metadata is open."""

    def __init__(self, store: Store, metadata: MetadataLog, clock: Clock) -> None:
        self.store = store
        self.metadata = metadata
        self.clock = clock

    def close(self) -> None:
        """Finish a snapshot that is due."""
        self.metadata.finish_upkeep()

    # The root

    @property
    def url(self) -> str:
        """The URL of the root, as for `open`."""
        return self.store.url

    @property
    def cluster_id(self) -> str:
        """The root's identity; it never changes."""
        return self.image.cluster_id

    @property
    def image(self) -> Image:
        """Topics, partitions and extents, as of the last refresh. Immutable."""
        return self.metadata.image

    def refresh(self, *, force: bool = False) -> Image:
        """Follow new commits; cheap when there are none.

        Args:
            force: refresh even if the refresh interval of an object store is not over.
        """
        return self.metadata.refresh(force=force)

    def is_same_root(self) -> bool:
        """True if the root at the URL is still this one, and was not removed or replaced by another."""
        try:
            data = self.store.read(META_PROPERTIES, 0, 4096)
        except NotFoundError:
            return False
        return decode_properties(data, f"{self.url}/{META_PROPERTIES}") == self.cluster_id

    # Topics and settings

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> bool:
        """Create a topic (None partitions: the root's num.partitions); return False if it existed."""
        return admin.create_topic(
            self.metadata, name, partitions=partitions, configs=configs, if_not_exists=if_not_exists
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions; it cannot shrink."""
        admin.add_partitions(self.metadata, name, total)

    def alter_topic(
        self,
        name: str,
        set: Mapping[str, str] | None = None,  # noqa: A002 - reads well at the call: set={...}
        delete: Iterable[str] = (),
    ) -> None:
        """Set overrides of a topic, or delete them (back to the default)."""
        admin.alter_topic(self.metadata, name, set or {}, delete)

    def alter_root(
        self,
        set: Mapping[str, str] | None = None,  # noqa: A002 - as above
        delete: Iterable[str] = (),
    ) -> None:
        """Set the root's settings, among them the defaults of its topics, or delete them."""
        admin.alter_root(self.metadata, set or {}, delete)

    def topics(self, *, include_internal: bool = False) -> list[str]:
        """Names of the topics, sorted."""
        return sorted(name for name in self.refresh().topics if include_internal or not is_internal(name))

    def describe_topic(self, name: str) -> TopicDescription:
        """Settings, partitions, offsets and sizes of a topic."""
        return admin.describe_topic(self.refresh(), name)

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions."""
        return len(self.refresh().topic(topic).partitions)

    # Offsets

    def log_start_offset(self, topic: str, partition: int) -> int:
        """Return the first offset that is kept."""
        return self.refresh().partition(topic, partition).log_start_offset

    def log_end_offset(self, topic: str, partition: int) -> int:
        """Return the next offset to be assigned."""
        return self.refresh().partition(topic, partition).log_end_offset


# --- opening -----------------------------------------------------------------------------------------
#
# Opening a root: which one is meant, whether it may be used, and its log.
#
# Concurrency: any thread.
# After a crash: open it again; there is nothing to repair.


def open_root(
    root: str | os.PathLike[str],
    *,
    create: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    cluster_id: str | None = None,
    allowed_roots: str | Iterable[str] | None = None,
) -> OpenedRoot:
    """Open a root.

    Args and Raises: as for `open_log` (log.py).
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
    return OpenedRoot(store, metadata, clock)
