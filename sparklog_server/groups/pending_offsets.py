"""Offsets that open transactions may be about to commit: which of a group's are not stable.

Who asks for stable offsets is to wait for these (KIP-447): the records up to which they tell may be processed
by somebody who is about to commit that.

Invariants: an offset is pending as often as it was added and not removed; a group without any is not listed;
    `held_bytes` is about what all of them take.
Not here: what is staged, and when that is over (coordination/staging.py), offsets that are committed
    (committed_offsets.py).
Concurrency: none; owned by one shard.
Sources: Kafka OffsetMetadataManager.hasPendingTransactionalOffsets; KIP-447.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_offsets import OffsetKey, OffsetValue
from sparklog_server.groups.committed_offsets import TopicPartition

_OFFSET_BYTES: Final = 512  # as objects: the record, and what is counted here
_NOTHING: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class PendingOffsets:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._groups: dict[str, Counter[TopicPartition]] = {}
        self.held_bytes = 0
        self.over_topics: set[str] = set()  # of which some were pending, for whoever looks after them

    def __len__(self) -> int:
        """How many groups have any."""
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        """The groups."""
        return iter(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def of(self, group_id: str) -> Mapping[TopicPartition, int]:
        """What is pending of a group, and how many times."""
        return self._groups.get(group_id, _NOTHING)

    def add(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One more."""
        self._groups.setdefault(key.group, Counter())[key.topic, key.partition] += 1
        self.held_bytes += pending_bytes(key, value)

    def remove(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One that was added: it is committed, or never will be."""
        of_group = self._groups[key.group]
        of_group[key.topic, key.partition] -= 1
        if not of_group[key.topic, key.partition]:
            del of_group[key.topic, key.partition]
        if not of_group:
            del self._groups[key.group]
        self.held_bytes -= pending_bytes(key, value)
        self.over_topics.add(key.topic)

    def take_over_topics(self) -> Iterable[str]:
        """The topics of those that are over, once."""
        topics, self.over_topics = self.over_topics, set()
        return topics


def pending_bytes(key: OffsetKey, value: OffsetValue | None) -> int:
    """About what one takes."""
    metadata = 0 if value is None else len(value.metadata)
    return _OFFSET_BYTES + len(key.group) + len(key.topic) + metadata
