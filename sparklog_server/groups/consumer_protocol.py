"""The consumer protocol embedded in JoinGroup and SyncGroup: subscriptions and assignments as bytes.

In groups of one protocol only clients read them. A coordinator reads them where members of the classic
protocol are in a consumer group, or on their way into one: it assigns for them.

    subscription  version, topics, user data; 1: owned partitions; 2: generation; 3: rack
    assignment    version, partitions by topic, user data

Invariants: bytes from clients are hostile: None for whatever is not of the protocol, never an exception, and
    no more work than there are bytes. Later versions are read as the last one that is known, as in Kafka.
Not here: the topics of a subscription alone (messages.py).
Concurrency: pure functions.
Sources: Kafka ConsumerProtocol, ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json (0 to 3).
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

LATEST: Final = 3
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NULL: Final = b"\xff\xff\xff\xff"
_LEAST_TOPIC_BYTES: Final = _INT16.size + _INT32.size  # with its partitions

NamedPartitions = Mapping[str, frozenset[int]]  # by topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSubscription:
    """What a consumer joins with. `owned`: partitions that it keeps while it joins."""

    topics: tuple[str, ...]
    owned: NamedPartitions
    rack_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAssignment:
    """What a leader has assigned to a consumer. `user_data`: of an assignor of the client's own."""

    partitions: NamedPartitions
    user_data: bytes


def version_of(data: bytes) -> int | None:
    """Return the version in which to answer who sent this; None if it is of no version."""
    if len(data) < _INT16.size:
        return None
    (version,) = _INT16.unpack_from(data)
    return None if version < 0 else min(version, LATEST)


def decode_subscription(data: bytes) -> ConsumerSubscription | None:
    """Return the subscription; None if this is none."""
    version = version_of(data)
    if version is None:
        return None
    fields = _Fields(data)
    try:
        topics = tuple(fields.text() for _ in range(fields.count(_INT16.size)))
        fields.blob()  # user data
        owned = fields.partitions() if version >= _OWNED_SINCE else {}
        if version >= _GENERATION_SINCE:
            fields.number(_INT32)
        rack_id = fields.nullable_text() if version >= _RACK_SINCE else None
    except ValueError:
        return None
    return ConsumerSubscription(topics=topics, owned=owned, rack_id=rack_id or None)


def decode_assignment(data: bytes) -> ConsumerAssignment | None:
    """Return the assignment; None if this is none. No bytes are an empty one."""
    if not data:
        return ConsumerAssignment(partitions={}, user_data=b"")
    if version_of(data) is None:
        return None
    fields = _Fields(data)
    try:
        partitions = fields.partitions()
        user_data = fields.blob()
    except ValueError:
        return None
    return ConsumerAssignment(partitions=partitions, user_data=user_data)


def encode_assignment(partitions: NamedPartitions, version: int) -> bytes:
    """Encode an assignment without user data."""
    parts = [_INT16.pack(version), _INT32.pack(len(partitions))]
    for topic, some in sorted(partitions.items()):
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">i{len(some)}i", len(some), *sorted(some)))
    return b"".join((*parts, _NULL))


def gathered(named: Iterable[tuple[str, Iterable[int]]]) -> dict[str, frozenset[int]]:
    """Return partitions by topic, or topic id, which may be named any number of times."""
    found: dict[str, set[int]] = {}
    for topic, some in named:
        found.setdefault(topic, set()).update(some)
    return {topic: frozenset(some) for topic, some in found.items()}


class _Fields:
    """Reads the fields after the version in order; ValueError where there is none."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, _INT16.size

    def number(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def count(self, least_bytes: int) -> int:
        """Read the size of an array whose elements take at least this many bytes each."""
        count = self.number(_INT32)
        if not 0 <= count * least_bytes <= len(self._data) - self._at:
            raise ValueError(count)
        return count

    def text(self) -> str:
        return self._take(self.number(_INT16)).decode()

    def nullable_text(self) -> str | None:
        size = self.number(_INT16)
        return None if size == -1 else self._take(size).decode()

    def blob(self) -> bytes:
        """Read bytes; null are none."""
        size = self.number(_INT32)
        return b"" if size == -1 else self._take(size)

    def partitions(self) -> dict[str, frozenset[int]]:
        return gathered(self._of_topic() for _ in range(self.count(_LEAST_TOPIC_BYTES)))

    def _of_topic(self) -> tuple[str, tuple[int, ...]]:
        topic, count = self.text(), self.count(_INT32.size)
        return topic, struct.unpack(f">{count}i", self._take(count * _INT32.size))

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(size)
        self._at += size
        return self._data[self._at - size : self._at]
