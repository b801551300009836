"""Which topics' batches may share a segment: those of one lane.

A file goes when nothing in it is live any more. Committed offsets are kept, and compacted now and then,
beside data that expires: in one segment, each would keep the other's bytes on the disk. So internal topics
have segments of their own. Where each flush makes a file anyway (object stores) they share it: another object
for each flush would cost more than it frees, and merging takes them apart.
By sparklog.segment.apart a topic shares segments only with those that keep their records for as long.

Not here: the segments (writer.py).
Concurrency: a pure function.
"""

from sparklog.log.config import TopicConfig
from sparklog.metadata import is_internal
from sparklog.storage import StoreTraits

SHARED = ""
INTERNAL = "internal"
MAX_LANES = 16  # segments that a process has open; further lanes share the first


def lane_of(topic: str, config: TopicConfig, traits: StoreTraits) -> str:
    """The lane of a topic of this name and these settings."""
    if is_internal(topic):
        return INTERNAL if traits.appends_after_sync else SHARED
    if not config.segment_apart:
        return SHARED
    policy = ",".join(sorted(config.cleanup_policy))
    return f"{policy} {config.retention_ms} {config.retention_bytes}"
