"""Reading a stretch of a partition of __consumer_offsets: the latest record of each key, decoded.

Invariants: per key the last record counts; only those are decoded, so that a long history costs little more
    than its bytes. Whatever is not Kafka's schema is an error that names the offset's partition; what has no
    key at all is skipped and counted, as by the embedded client: whoever wrote it must not close the groups.
Not here: when to read (shard.py).
Concurrency: pure reading, in a storage thread.
Sources: FORMAT.md#consumer-offsets; Kafka GroupMetadataManager.loadGroupsAndOffsets.
"""

from dataclasses import dataclass, field

from sparklog.client.consumer import read_batches
from sparklog.client.groups import OFFSETS_TOPIC
from sparklog.format.consumer_offsets import OffsetKey, OffsetValue, decode_key, decode_offset_value
from sparklog.format.group_metadata import GroupValue, decode_group_value
from sparklog.metadata import Image
from sparklog.storage import Store


@dataclass(slots=True)
class Replayed:
    """What the records of a stretch say; None: a tombstone."""

    offsets: dict[OffsetKey, OffsetValue | None] = field(default_factory=dict)
    groups: dict[str, GroupValue | None] = field(default_factory=dict)
    skipped: int = 0  # records without a key


def replay(store: Store, image: Image, partition: int, start_offset: int, end_offset: int) -> Replayed:
    """The records of [start_offset, end_offset) of a partition.

    Raises:
        CorruptLogError, DataLossError, UnsupportedVersionError: the partition cannot be served.
        StorageError: perhaps later.
    """
    latest: dict[bytes | None, bytes | None] = {}
    replayed = Replayed()
    for arrow_batch in read_batches(
        store, image, OFFSETS_TOPIC, partition, start_offset=start_offset, end_offset=end_offset
    ):
        keys, values = arrow_batch.column("key").to_pylist(), arrow_batch.column("value").to_pylist()
        latest.update(zip(keys, values, strict=True))
        replayed.skipped += arrow_batch.column("key").null_count
    latest.pop(None, None)
    where = f"{OFFSETS_TOPIC}-{partition}"
    for data, value in latest.items():
        assert data is not None
        key = decode_key(data, where=where)
        if isinstance(key, OffsetKey):
            replayed.offsets[key] = None if value is None else decode_offset_value(value, where=where)
        else:
            of_group = None if value is None else decode_group_value(value, where=f"{where}, {key.group!r}")
            replayed.groups[key.group] = of_group
    return replayed
