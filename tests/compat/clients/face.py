"""Three Kafka clients behind one face, so that every test of the broker is run by each of them.

Each call makes its own client and closes it. What a client cannot do is in its `cannot`.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

DEADLINE_SECONDS = 60
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A record that was consumed."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """As the clients' settings of these names."""

    acks: int = -1
    compression: str = "none"
    idempotent: bool = True
    linger_ms: int = 5
    max_request_bytes: int = 1 << 20
    transactional_id: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


DEFAULTS = ProduceOptions()


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first record of this time or later."""

    timestamp_ms: int


Start = int | str | AtTime  # an offset, "earliest", "latest", a time


class Client(Protocol):
    """See the module's docstring."""

    name: str
    cannot: frozenset[str]

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], options: ProduceOptions = DEFAULTS
    ) -> list[tuple[int, int]]:
        """Produce all, wait for all; (partition, offset) of each. Raises the client's own error."""
        ...

    def consume(
        self, bootstrap: str, topic: str, partition: int, start: Start, count: int, **settings: Any
    ) -> list[Seen]:
        """At least `count` records of one assigned partition."""
        ...

    def consume_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Seen]:
        """At least `count` records as the only member of a group, committed before it leaves."""
        ...

    def committed(self, bootstrap: str, topic: str, group: str, partition: int) -> int | None:
        """A group's committed offset."""
        ...

    def offset_for_time(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Offset of the first record of this time or later."""
        ...

    def watermarks(self, bootstrap: str, topic: str, partition: int) -> tuple[int, int]:
        """Log start and log end."""
        ...


def later(seconds: float = DEADLINE_SECONDS) -> float:
    return time.monotonic() + seconds


def seen_in_record(record: Any) -> Seen:
    """kafka-python's and aiokafka's ConsumerRecord."""
    return Seen(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(tuple(header) for header in record.headers),
    )


def seek(consumer: Any, tp: Any, start: Start) -> Iterable[Any]:
    """Steps of seeking with kafka-python's and aiokafka's methods; the latter's must be awaited."""
    if isinstance(start, AtTime):
        raise TypeError("look the offset up first")
    if start == "earliest":
        yield consumer.seek_to_beginning(tp)
    elif start == "latest":
        yield consumer.seek_to_end(tp)
    else:
        consumer.seek(tp, start)
