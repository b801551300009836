"""What is remembered of many clients, in so much room, so that none of them pushes out what others need.

A request may name ten thousand partitions, or make as many producer ids up. So where there is no room, what
goes is the oldest of whoever has its share of it already, or else of whoever has most.

Invariants: `most` entries at most. A client that has less than an equal share of the room loses nothing to
    others.
Concurrency: none; owned by whoever remembers.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Mapping[K, V]):
    """A mapping in the order in which entries came. A client is the address that it comes from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[K, tuple[V, str]] = {}
        self._keys_of: dict[str, dict[K, None]] = {}

    def __getitem__(self, key: K) -> V:
        return self._entries[key][0]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, key: K, value: V, client: str) -> None:
        """Instead of what there is of this key."""
        self.forget(key)
        own = self._keys_of.setdefault(client, {})
        if len(self._entries) >= self._most:
            self._make_room(own)
        self._entries[key] = (value, client)
        self._keys_of.setdefault(client, own)[key] = None

    def forget(self, key: K) -> None:
        """If it is there."""
        known = self._entries.pop(key, None)
        if known is not None:
            keys = self._keys_of[known[1]]
            del keys[key]
            if not keys:
                del self._keys_of[known[1]]

    def _make_room(self, own: dict[K, None]) -> None:
        """`own`: the keys of whoever needs it."""
        has_its_share = len(own) * len(self._keys_of) >= self._most
        keys = own if own and has_its_share else max(self._keys_of.values(), key=len)
        self.forget(next(iter(keys)))
