"""A dictionary of which a changed copy shares what did not change: it is in buckets, by key.

For what images hold much of and commits change little of: a change copies the list of buckets and one bucket,
not all entries.
Invariants: which bucket a key is in depends on the key alone, and so does the order of iteration on the keys
    and, within a bucket, the order in which they came: the same in all processes. A map is never changed.
Not here: what is in it.
Concurrency: a map is immutable; a draft belongs to one thread.
"""

import zlib
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Final, Generic, TypeVar, overload

K = TypeVar("K", bound=str | int)
V = TypeVar("V")
D = TypeVar("D")
BUCKETS: Final = 256  # of 256 entries each where there are 65,536
_MASK: Final = BUCKETS - 1


def _bucket_of(key: str | int) -> int:
    """Not by `hash`, which is another one in each process."""
    number = key if isinstance(key, int) else zlib.crc32(key.encode("utf-8", "surrogatepass"))
    return number & _MASK


class SharedMap(Mapping[K, V]):
    """See the module's docstring."""

    __slots__ = ("_buckets", "_length")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        nothing: dict[K, V] = {}
        self._buckets: list[dict[K, V]] = [nothing] * BUCKETS
        for key, value in items:
            number = _bucket_of(key)
            if self._buckets[number] is nothing:
                self._buckets[number] = {}
            self._buckets[number][key] = value
        self._length = sum(map(len, self._buckets))

    @classmethod
    def _of(cls, buckets: list[dict[K, V]], length: int) -> "SharedMap[K, V]":
        found: SharedMap[K, V] = cls.__new__(cls)
        found._buckets, found._length = buckets, length
        return found

    def __getitem__(self, key: K) -> V:
        return self._buckets[_bucket_of(key)][key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        """As of a dictionary."""
        return self._buckets[_bucket_of(key)].get(key, default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int) and key in self._buckets[_bucket_of(key)]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._length

    def values(self) -> ValuesView[V]:
        """As fast as a dictionary's."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """As fast as a dictionary's."""
        return _Items(self)


class _Values(ValuesView[V]):
    _mapping: SharedMap[str | int, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping._buckets)


class _Items(ItemsView[K, V], Generic[K, V]):
    _mapping: SharedMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping._buckets)


class SharedMapDraft(Generic[K, V]):
    """A map that is being changed; after `done` it is of no more use."""

    __slots__ = ("_before", "_buckets", "_length", "_own")

    def __init__(self, before: SharedMap[K, V]) -> None:
        self._before = before
        self._buckets = before._buckets
        self._length = len(before)
        self._own: set[int] = set()

    def get(self, key: K) -> V | None:
        """As of what has been changed so far."""
        return self._buckets[_bucket_of(key)].get(key)

    def __setitem__(self, key: K, value: V) -> None:
        bucket = self._own_bucket(key)
        self._length += key not in bucket
        bucket[key] = value

    def remove(self, key: K) -> None:
        """KeyError if it is not there."""
        del self._own_bucket(key)[key]
        self._length -= 1

    def done(self) -> SharedMap[K, V]:
        """The map; the one before, if nothing was changed."""
        return SharedMap._of(self._buckets, self._length) if self._own else self._before

    def _own_bucket(self, key: K) -> dict[K, V]:
        number = _bucket_of(key)
        if number not in self._own:
            if not self._own:
                self._buckets = list(self._buckets)
            self._own.add(number)
            self._buckets[number] = dict(self._buckets[number])
        return self._buckets[number]
