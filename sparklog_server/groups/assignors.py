"""The server's assignors, `uniform` and `range`: which member is to have which partitions. Pure functions.

Both are sticky: what members are to have already stays where balance allows it.

    uniform  members with the same topics get equal numbers of partitions; with different topics, each
             partition goes to the member with fewest, and partitions move while that makes two members
             more equal. Of partitions that are free, members get those with a replica in their rack first.
    range    of each topic every member gets a run of neighbouring partitions. Members have the same order in
             all topics, so topics with equal numbers of partitions are assigned alike. The order stays while
             all members have the same topics.

Invariants: each partition of a subscribed topic has one member that subscribes to it; no other partition is
    assigned. The same input gives the same result. Time: proportional to partitions and subscriptions, times
    a logarithm; balancing stops after MOST_ROUNDS.
Not here: epochs, and when a member may have its partitions (consumer_group.py).
Concurrency: pure; for many partitions in a thread.
Sources: KIP-848; Kafka UniformAssignor, RangeAssignor.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_group_records import Partitions

MOST_ROUNDS: Final = 8
TopicPartition = tuple[str, int]
Assignment = dict[str, Partitions]  # by member id


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """A topic. `racks`: of each partition's replicas; empty if no broker has a rack."""

    topic_id: str
    partitions: int
    racks: Sequence[frozenset[str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedMember:
    """A member, as assignors see it.

    Fields:
        topics: ids of subscribed topics that exist.
        target: what it is to have up to now.
    """

    topics: frozenset[str]
    target: Partitions = field(default_factory=dict)
    rack_id: str | None = None
    instance_id: str | None = None


Members = Mapping[str, AssignedMember]
Topics = Mapping[str, TopicShape]  # by id
Assignor = Callable[[Members, Topics], Assignment]

# --- uniform -----------------------------------------------------------------------------------------


def assign_uniform(members: Members, topics: Topics) -> Assignment:
    """Return equal numbers of partitions for all members, as far as their topics allow."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _assign_alike(members, topics, next(iter(subscriptions)))
    return _Balancing(members, topics).assignment()


def _assign_alike(members: Members, topics: Topics, subscribed: frozenset[str]) -> Assignment:
    """All members have the same topics."""
    places = [(topic, p) for topic in sorted(subscribed) for p in range(topics[topic].partitions)]
    quota, extras = divmod(len(places), len(members))
    free = set(places)
    kept: dict[str, list[TopicPartition]] = {}
    for member_id in sorted(members):
        kept[member_id] = [place for place in _places(members[member_id].target) if place in free]
        free.difference_update(kept[member_id])
    wanted = {}
    # Those that have more than their share keep the extra ones.
    for number, member_id in enumerate(sorted(kept, key=lambda name: -len(kept[name]))):
        limit = quota + (number < extras)
        free.update(kept[member_id][limit:])
        del kept[member_id][limit:]
        if len(kept[member_id]) < limit:
            wanted[member_id] = limit - len(kept[member_id])
    for place, member_id in _handed_out(
        [place for place in places if place in free], wanted, members, topics
    ):
        kept[member_id].append(place)
    return {member_id: _by_topic(some) for member_id, some in kept.items()}


def _handed_out(
    free: Sequence[TopicPartition], wanted: dict[str, int], members: Members, topics: Topics
) -> Iterator[tuple[TopicPartition, str]]:
    """Give as many partitions to each member as it wants, of its rack first."""
    by_rack: dict[str, deque[str]] = {}
    for member_id in wanted:
        rack = members[member_id].rack_id
        if rack is not None:
            by_rack.setdefault(rack, deque()).append(member_id)
    left = []
    for place in free:
        near = _in_rack(_racks_of(place, topics), by_rack, wanted) if by_rack else None
        if near is None:
            left.append(place)
        else:
            wanted[near] -= 1
            yield place, near
    queue = deque(member_id for member_id, count in wanted.items() if count)
    for place in left:
        member_id = queue.popleft()
        wanted[member_id] -= 1
        if wanted[member_id]:
            queue.append(member_id)
        yield place, member_id


def _in_rack(racks: Iterable[str], by_rack: dict[str, deque[str]], wanted: Mapping[str, int]) -> str | None:
    """Return a member in one of these racks that wants a partition; members take turns."""
    for rack in sorted(racks):
        waiting = by_rack.get(rack)
        while waiting:
            member_id = waiting.popleft()
            if wanted[member_id]:
                waiting.append(member_id)
                return member_id
    return None


def _racks_of(place: TopicPartition, topics: Topics) -> frozenset[str]:
    racks = topics[place[0]].racks
    return racks[place[1]] if racks else frozenset()


class _Balancing:
    """Members with different topics.

    Members with the same topics are a class, with a heap by their numbers of partitions. Entries of a heap
    that are out of date are dropped when they come to its top.
    """

    def __init__(self, members: Members, topics: Topics) -> None:
        self._members = members
        self._topics = topics
        self._owners: dict[TopicPartition, str] = {}
        self._loads = dict.fromkeys(sorted(members), 0)
        self._heaps: dict[frozenset[str], list[tuple[int, str]]] = {}
        for member_id in self._loads:
            self._heaps.setdefault(members[member_id].topics, []).append((0, member_id))
        self._classes: dict[str, list[frozenset[str]]] = {}
        for one in self._heaps:
            for topic in one:
                self._classes.setdefault(topic, []).append(one)

    def assignment(self) -> Assignment:
        self._keep()
        # Topics with few subscribers first: the others have more choice.
        order = sorted(self._classes, key=lambda topic: (len(self._classes[topic]), topic))
        for topic in order:
            free = [p for p in range(self._topics[topic].partitions) if (topic, p) not in self._owners]
            self._hand_out(topic, free)
        for _ in range(MOST_ROUNDS):
            if not sum([self._balance(topic) for topic in order]):
                break
        owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in self._loads}
        for place, member_id in self._owners.items():
            owned[member_id].append(place)
        return {member_id: _by_topic(places) for member_id, places in owned.items()}

    def _keep(self) -> None:
        for member_id in self._loads:
            member = self._members[member_id]
            for topic, partition in _places(member.target):
                if (
                    topic in member.topics
                    and partition < self._topics[topic].partitions
                    and (topic, partition) not in self._owners
                ):
                    self._own((topic, partition), member_id)

    def _own(self, place: TopicPartition, member_id: str) -> None:
        before = self._owners.get(place)
        self._owners[place] = member_id
        if before is not None:
            self._count(before, -1)
        self._count(member_id, 1)

    def _count(self, member_id: str, difference: int) -> None:
        load = self._loads[member_id] = self._loads[member_id] + difference
        heapq.heappush(self._heaps[self._members[member_id].topics], (load, member_id))

    def _least(self, one: frozenset[str]) -> tuple[int, str]:
        """Return the member of a class with fewest partitions, and how many it has."""
        heap = self._heaps[one]
        while self._loads[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0]

    def _hand_out(self, topic: str, partitions: Sequence[int]) -> None:
        if not partitions:
            return
        classes = self._classes[topic]
        heap = [(*self._least(one), number) for number, one in enumerate(classes)]
        heapq.heapify(heap)
        for partition in partitions:
            _, member_id, number = heap[0]
            self._own((topic, partition), member_id)
            heapq.heapreplace(heap, (*self._least(classes[number]), number))

    def _balance(self, topic: str) -> int:
        """Move partitions of a topic from members with many to such with few; return how many."""
        moved = 0
        classes = self._classes[topic]
        heap = [(*self._least(one), number) for number, one in enumerate(classes)]
        heapq.heapify(heap)
        for partition in range(self._topics[topic].partitions):
            owner = self._owners[topic, partition]
            load, member_id, number = heap[0]
            if self._loads[member_id] != load:  # it gave some away in this round
                heapq.heapreplace(heap, (*self._least(classes[number]), number))
                load, member_id, number = heap[0]
            if self._loads[owner] - self._loads[member_id] > 1:
                self._own((topic, partition), member_id)
                heapq.heapreplace(heap, (*self._least(classes[number]), number))
                moved += 1
        return moved


# --- range -------------------------------------------------------------------------------------------


def assign_range(members: Members, topics: Topics) -> Assignment:
    """Return a run of neighbouring partitions of each topic for every member."""
    owned: dict[str, dict[str, frozenset[int]]] = {member_id: {} for member_id in members}
    subscribers: dict[str, list[str]] = {}
    for member_id in _in_order(members):
        for topic in members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    for topic, names in sorted(subscribers.items()):
        quota, extras = divmod(topics[topic].partitions, len(names))
        first = 0
        for number, member_id in enumerate(names):
            count = quota + (number < extras)
            if not count:
                break
            owned[member_id][topic] = frozenset(range(first, first + count))
            first += count
    return dict(owned)


def _in_order(members: Members) -> list[str]:
    """Return members in the order of the partitions that they have; those that have none come last.

    With different topics there is no such order that stays as it is: then by their ids, as in Kafka.
    """
    are_alike = len({member.topics for member in members.values()}) == 1

    def place(member_id: str) -> tuple[bool, int, str, str]:
        member = members[member_id]
        firsts = [min(some) for some in member.target.values() if some] if are_alike else [0]
        return (not firsts, min(firsts, default=0), member.instance_id or "", member_id)

    return sorted(members, key=place)


# --- places ------------------------------------------------------------------------------------------


def _places(partitions: Partitions) -> list[TopicPartition]:
    return [(topic, p) for topic in sorted(partitions) for p in sorted(partitions[topic])]


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, frozenset[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return {topic: frozenset(partitions) for topic, partitions in topics.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)
