"""Offsets that have been handed to the log and are not applied yet: for what is planned next, they count.

What is appended later is later in the log. So who plans what to delete by what is applied alone, deletes a
commit that it has not seen:
1. a group's offset 10 has expired, and its commit of 20 is on its way to the log;
2. the tombstone for the offset is planned by the 10, and appended after the 20;
3. the commit of 20 is acknowledged, and gone.

Invariants: one is here from the call of `append` on, until it is applied or known not to be; `held_bytes` is
    by how much all of them may let what is held grow.
Not here: what is applied (committed_offsets.py), what transactions have staged (pending_offsets.py).
Concurrency: none; owned by one shard.
Sources: Kafka CoordinatorRuntime, where a write counts for those behind it before it is durable.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_offsets import OffsetKey, OffsetValue
from sparklog_server.groups.committed_offsets import TopicPartition

_Coming = list[
    tuple[OffsetValue | None, int]
]  # in the order of the calls, with the bytes that are kept for it

_NONE: Final[Mapping[TopicPartition, _Coming]] = MappingProxyType({})


class OffsetsOnTheirWay:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Coming]] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        """Of how many groups there are any."""
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        """The groups."""
        return iter(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def add(self, key: OffsetKey, value: OffsetValue | None, growth: int) -> None:
        """One more, by which so many bytes more will be held."""
        kept = max(0, growth)
        of_group = self._groups.setdefault(key.group, {})
        of_group.setdefault((key.topic, key.partition), []).append((value, kept))
        self.held_bytes += kept

    def remove(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One that was added: it is applied, or not appended."""
        of_group = self._groups[key.group]
        coming = of_group[key.topic, key.partition]
        number = next(number for number, (one, _) in enumerate(coming) if one is value)
        self.held_bytes -= coming.pop(number)[1]
        if not coming:
            del of_group[key.topic, key.partition]
        if not of_group:
            del self._groups[key.group]

    def of_topics(self, topics: Iterable[str]) -> list[OffsetKey]:
        """The keys of those for these topics."""
        names = set(topics)
        return [
            OffsetKey(group=group_id, topic=topic, partition=partition)
            for group_id, of_group in self._groups.items()
            for topic, partition in of_group
            if topic in names
        ]

    def values(self, key: OffsetKey) -> list[OffsetValue]:
        """All of them, in their order, without tombstones."""
        coming = self._groups.get(key.group, _NONE).get((key.topic, key.partition), [])
        return [value for value, _ in coming if value is not None]

    def latest(self, key: OffsetKey, applied: OffsetValue | None) -> OffsetValue | None:
        """One of them, once all of these are applied, too."""
        coming = self._groups.get(key.group, _NONE).get((key.topic, key.partition))
        return coming[-1][0] if coming else applied

    def over(
        self, group_id: str, applied: Mapping[TopicPartition, OffsetValue]
    ) -> Mapping[TopicPartition, OffsetValue]:
        """What a group has committed once all of these are applied, too."""
        of_group = self._groups.get(group_id)
        if of_group is None:
            return applied
        latest = {**applied, **{one: coming[-1][0] for one, coming in of_group.items()}}
        return {one: value for one, value in latest.items() if value is not None}
