"""Requests that wait until something happens to one of their partitions, or until their time is over.

Invariants: an operation completes exactly once: by `check`, by its deadline or by `cancel`, and from then on
    nothing here refers to it. That is why a key's watchers are a dictionary: Kafka's watcher lists keep
    completed operations until a purge, which hot keys with many partitions per request outgrew.
Cost: constant per key of an operation, for adding and for completing.
Concurrency: event loop only.
Sources: Kafka DelayedOperationPurgatory, DelayedFetch.
"""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

WatchKey = tuple[str, int]  # topic id, partition


class TimerHandle(Protocol):
    """What a timer hands out."""

    def cancel(self) -> object: ...


class Schedule(Protocol):
    """runtime/timer.py, `schedule`."""

    def __call__(self, delay_ms: int, callback: Callable[[], None], /) -> TimerHandle: ...


class DelayedOperation(abc.ABC):
    """Something that waits.

    try_complete is asked whether the wait is over, whenever a key that is watched changed; on_complete is
    called once when it is, or when the time is over; not after `cancel`.
    """

    __slots__ = ("_handle", "_keys", "_purgatory")

    def __init__(self) -> None:
        self._keys: Sequence[WatchKey] = ()
        self._handle: TimerHandle | None = None
        self._purgatory: Purgatory | None = None

    @abc.abstractmethod
    def try_complete(self, key: WatchKey) -> bool: ...

    @abc.abstractmethod
    def on_complete(self, *, expired: bool) -> None: ...

    def cancel(self) -> None:
        """Stop waiting: the client is gone."""
        if self._purgatory is not None:
            self._purgatory._release(self)

    def _expire(self) -> None:
        if self._purgatory is not None:
            self._purgatory._release(self)
            self.on_complete(expired=True)


class Purgatory:
    """The operations that wait, by key."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        # topic id -> partition -> operations; by topic, so that a changed topic is looked up once
        self._watchers: dict[str, dict[int, dict[DelayedOperation, None]]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Operations that wait."""
        return self._waiting

    def watch(self, operation: DelayedOperation, keys: Iterable[WatchKey], delay_ms: int) -> None:
        """Let it wait. The caller has found that it cannot be completed yet, without awaiting since."""
        assert operation._purgatory is None
        operation._keys = tuple(dict.fromkeys(keys))
        operation._purgatory = self
        self._waiting += 1
        for topic_id, partition in operation._keys:
            partitions = self._watchers.get(topic_id)
            if partitions is None:
                partitions = self._watchers[topic_id] = {}
            operations = partitions.get(partition)
            if operations is None:
                operations = partitions[partition] = {}
            operations[operation] = None
        operation._handle = self._schedule(delay_ms, operation._expire)

    def topics(self) -> list[str]:
        """Ids of the topics that anybody waits for."""
        return list(self._watchers)

    def partitions(self, topic_id: str) -> list[int]:
        """Partitions of a topic that anybody waits for."""
        return list(self._watchers.get(topic_id, ()))

    def check(self, topic_id: str, partition: int) -> int:
        """The partition changed: complete what can be; returns how many were."""
        operations = self._watchers.get(topic_id, {}).get(partition)
        if not operations:
            return 0
        key = (topic_id, partition)
        completed = 0
        for operation in list(operations):
            # An earlier one's on_complete may have cancelled this one.
            if operation._purgatory is self and operation.try_complete(key):
                self._release(operation)
                operation.on_complete(expired=False)
                completed += 1
        return completed

    def _release(self, operation: DelayedOperation) -> None:
        """Forget the operation everywhere."""
        operation._purgatory = None
        self._waiting -= 1
        for topic_id, partition in operation._keys:
            partitions = self._watchers[topic_id]
            operations = partitions[partition]
            del operations[operation]
            if not operations:
                del partitions[partition]
                if not partitions:
                    del self._watchers[topic_id]
        operation._keys = ()
        if operation._handle is not None:
            operation._handle.cancel()
            operation._handle = None
