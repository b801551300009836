"""Drafts: where batches that were just appended lie in their segment.

Not here: appending (writer.py), what a draft is (metadata/model/extent.py).
Concurrency: pure functions.
"""

from collections.abc import Sequence

import msgspec

from sparklog.format.encode_partitions import EncodedPartitions
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.metadata import DraftExtent


class Append(msgspec.Struct, frozen=True):
    """Batches of one partition, which count their offsets from 0, and its topic's settings."""

    topic_id: str
    partition: int
    encoded: EncodedBatches
    config: TopicConfig


def draft_of(
    topic_id: str,
    partition: int,
    segment: str,
    position: int,
    encoded: EncodedBatches,
    extends: DraftExtent | None,
) -> DraftExtent:
    """The batches at `position`, together with those of the draft that they continue."""
    first = extends.position if extends else position
    count = encoded.record_count + (extends.record_count if extends else 0)
    newest = max(encoded.max_timestamp_ms, extends.max_timestamp_ms if extends else -1)
    return DraftExtent(
        topic_id=topic_id,
        partition=partition,
        segment=segment,
        position=first,
        size=position + encoded.size_bytes - first,
        record_count=count,
        max_timestamp_ms=newest,
    )


def drafts_of(
    topic_id: str, partitions: Sequence[int], segment: str, position: int, encoded: EncodedPartitions
) -> list[DraftExtent]:
    """The batches of these partitions, one after the other from `position` on."""
    columns = (
        partitions,
        (encoded.position + position).tolist(),
        encoded.size_bytes.tolist(),
        encoded.record_count.tolist(),
        encoded.max_timestamp_ms.tolist(),
    )
    return [
        DraftExtent(
            topic_id=topic_id,
            partition=partition,
            segment=segment,
            position=start,
            size=size,
            record_count=count,
            max_timestamp_ms=newest,
        )
        for partition, start, size, count, newest in zip(*columns, strict=True)
    ]


def drafts_together(appends: Sequence[Append], segment: str, position: int) -> list[DraftExtent]:
    """What was appended, one after the other from `position` on."""
    drafts = []
    for one in appends:
        drafts.append(draft_of(one.topic_id, one.partition, segment, position, one.encoded, None))
        position += one.encoded.size_bytes
    return drafts
