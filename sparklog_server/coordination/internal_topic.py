"""What a coordinator says of the topic that holds its state: how it is made, and how its records are written.

Invariants: a record is a key and what is said of it, or that it is gone (a tombstone); of a key the last
    record counts, so that compaction takes nothing away; keys say nothing of each other.
Not here: its partitions (shards.py) and what is in them (state_log.py).
Concurrency: immutable. `encode` is called on the event loop, `decode` in storage threads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sparklog.log.root_config import RootConfig
from sparklog.metadata import Image, PartitionState

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition of an internal topic, while this broker leads it: another epoch is another one."""

    topic_id: str
    partition: int
    leader_epoch: int

    def state_in(self, image: Image) -> PartitionState | None:
        """The partition as of an image; None if there is none."""
        topic = image.topic_by_id.get(self.topic_id)
        if topic is None or self.partition >= len(topic.partitions):
            return None
        return topic.partitions[self.partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic(Generic[RecordT]):
    """One topic, for records of one type.

    Fields:
        partition_of: which of so many partitions a name belongs to; all that is said of it is there.
        partitions: how many it is made with.
        configs: its settings when it is made.
        encode: key and value of a record, None for a tombstone. Raises InvalidRequestError for what no record
            can hold.
        decode: the record of a key and a value; `where` is for errors. Raises CorruptLogError,
            UnsupportedVersionError.
        too_large_fix: what to do about a record that is too large (records.py), for its error.
    """

    name: str
    partition_of: Callable[[str, int], int]
    partitions: Callable[[RootConfig], int]
    configs: Mapping[str, str]
    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None, str], RecordT]
    too_large_fix: str
