"""The topics in a consumer's subscription: all that a coordinator reads of what members send.

A group's subscriptions may be megabytes, and tens of thousands of names that differ, and 35 bytes may ask for
them. So each is walked over once, when it comes; what is kept of that is where its topics end: a set of them
would take ten times the bytes. Members with the same topics are looked at together.
Invariants: bytes from clients are hostile: None for whatever is not a subscription, never an exception, and
    no more work than there are bytes.
Not here: who is subscribed (group.py); assignments, which only clients read.
Sources: Kafka ConsumerProtocolSubscription.json (versions 0 to 3 begin alike).
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
MOST_TOPICS: Final = 100_000  # of all members of a group that differ: some 50 ms to go through
_BEGINNING = struct.Struct(">hi")  # version, how many topics
_VERSION_BYTES, _COUNT_BYTES = 2, 4
_LARGEST_HIGH_BYTE = 0x7F  # of a size; above it is negative


def topics_of(metadata: bytes, end: int | None = None) -> bytes | None:
    """The bytes that name the topics, to be compared and gone through; None if this is no subscription.

    Args:
        end: where they end, if that is known.
    """
    end = topics_end(metadata) if end is None else end
    return None if end is None else metadata[_VERSION_BYTES:end]


def topics_end(metadata: bytes) -> int | None:
    """Where the bytes end that name the topics; None if this is no subscription."""
    at, size = _BEGINNING.size, len(metadata)
    if size < at:
        return None
    version, count = _BEGINNING.unpack_from(metadata)
    if version < 0 or not 0 <= 2 * count <= size - at:
        return None
    for _ in range(count):
        if at + 2 > size or metadata[at] > _LARGEST_HIGH_BYTE:
            return None
        at += 2 + (metadata[at] << 8) + metadata[at + 1]
    return at if at <= size else None


def names_in(topics: bytes) -> Iterator[bytes]:
    """The names in what `topics_of` has found."""
    at, end = _COUNT_BYTES, len(topics)
    while at < end:
        first = at + 2
        at = first + (topics[at] << 8) + topics[at + 1]
        yield topics[first:at]


def named_among(subscriptions: Collection[bytes], topics: Collection[str]) -> frozenset[str] | None:
    """Which of these topics any of them (`topics_of`) names; None: they are too many to go through."""
    if sum(int.from_bytes(one[:_COUNT_BYTES]) for one in subscriptions) > MOST_TOPICS:
        return None
    wanted = {topic.encode(): topic for topic in topics}
    found: set[bytes] = set()
    for one in subscriptions:
        found.update(name for name in names_in(one) if name in wanted)
    return frozenset(wanted[name] for name in found)
