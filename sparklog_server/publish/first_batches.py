"""Refused first batches of idempotent producers: no other batch may take their place.

A partition that does not know a producer accepts any first sequence, as in Kafka. So:
1. broker B creates a topic that broker A leads; a producer learns it from B, and sends five batches to A;
2. A's image is older: it refuses the first batch, which the producer will repeat;
3. the image arrives, and the second batch is accepted as the first;
4. librdkafka (2.16) takes the success of the second batch as success of all before it, and reports the first
   one as delivered: it is acknowledged, and lost. Other clients repeat it, always out of order.

So a refused batch is remembered, and later batches are refused like it, until it is sent again. The publisher
remembers the batches that it refuses itself (`FailedFirstBatches`).

Invariants: only producers that the partition does not know are refused; MAX_REMEMBERED are remembered,
    shared among clients, for REMEMBERED_MS: by then a client has repeated, given up, or found another
    leader.
Not here: which errors are retriable for clients (api/produce.py).
Concurrency: FirstBatches: event loop; FailedFirstBatches: the publisher's thread.
Sources: Kafka ProducerAppendInfo.checkSequence, which has this gap.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from sparklog.format.record_batch import NO_PRODUCER_ID
from sparklog.metadata import NO_NUMBER, Image, PartitionState
from sparklog_server.publish.parts import AppendPart
from sparklog_server.publish.produced_batches import UncheckedPart, producer_of

# --- remembered --------------------------------------------------------------------------------------
#
# A bounded mapping that many clients share, in which no client evicts the entries that others need.
#
# A request may name ten thousand partitions, or invent as many producer ids. So without room, the oldest
# entry is evicted: of this client, if it has its share already, or else of the client with the most entries.
#
# Invariants: `most` entries at most. A client with less than an equal share loses no entry to others.
# Concurrency: none; it has one owner.


K = TypeVar("K")
V = TypeVar("V")


class Remembered(Mapping[K, V]):
    """A mapping in insertion order. A client is an address."""

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
        """Set or replace the entry of this key."""
        self.forget(key)
        own = self._keys_of.setdefault(client, {})
        if len(self._entries) >= self._most:
            self._make_room(own)
        self._entries[key] = (value, client)
        self._keys_of.setdefault(client, own)[key] = None

    def forget(self, key: K) -> None:
        """Remove the entry, if it exists."""
        known = self._entries.pop(key, None)
        if known is not None:
            keys = self._keys_of[known[1]]
            del keys[key]
            if not keys:
                del self._keys_of[known[1]]

    def _make_room(self, own: dict[K, None]) -> None:
        """Evict an entry. `own`: the keys of the client that needs the room."""
        has_its_share = len(own) * len(self._keys_of) >= self._most
        keys = own if own and has_its_share else max(self._keys_of.values(), key=len)
        self.forget(next(iter(keys)))


# --- first batches -----------------------------------------------------------------------------------


MAX_REMEMBERED = 10_000
REMEMBERED_MS = 30_000
_MAX_NAME_LENGTH = 249  # of a topic
Key = tuple[str | bytes, int]  # a topic as requests name it, partition
ProducerKey = tuple[str, int, int]  # topic id, partition, producer id


class FirstBatches:
    """See the module's docstring."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: a monotonic clock."""
        self._now_ms = now_ms
        # (epoch, sequence, expiry time)
        self._refused: Remembered[tuple[str | bytes, int, int], tuple[int, int, int]] = Remembered(
            MAX_REMEMBERED
        )

    def __len__(self) -> int:
        """Return the number of remembered batches."""
        return len(self._refused)

    def refuse(self, key: Key, records: bytes | None, client: str) -> None:
        """Record a refused batch that will be sent again. Each refusal restarts REMEMBERED_MS.

        Args:
            client: the address of its connection.
        """
        producer_id, epoch, sequence = producer_of(records)
        if producer_id <= NO_PRODUCER_ID or len(key[0]) > _MAX_NAME_LENGTH:
            return
        known, now_ms = self._refused.get((*key, producer_id)), self._now_ms()
        if known is not None and known[0] == epoch and known[1] < sequence and now_ms < known[2]:
            return
        self._refused.remember((*key, producer_id), (epoch, sequence, now_ms + REMEMBERED_MS), client)

    def is_behind(self, key: Key, records: bytes | None, state: PartitionState) -> bool:
        """True if a batch must wait for a refused one. Cheap while there are none."""
        if not self._refused:
            return False
        producer_id, epoch, sequence = producer_of(records)
        full_key = (*key, producer_id)
        refused = self._refused.get(full_key)
        if refused is None:
            return False
        is_over = self._now_ms() >= refused[2] or producer_id in state.producers
        if not is_over and epoch == refused[0] and sequence > refused[1]:
            return True
        self._refused.forget(full_key)
        return False


# --- failed first batches ----------------------------------------------------------------------------


MAX_FLOORS = 10_000
_FIRST_NUMBER = 1  # of a transactional id


class Floor(NamedTuple):
    """The first batch of a producer that failed.

    Fields:
        transaction: the number of its transaction, as far as known; NO_NUMBER: none.
    """

    producer_epoch: int
    base_sequence: int
    transaction: int = NO_NUMBER


Floors = Mapping[ProducerKey, Floor]
NO_FLOORS: Floors = {}


class FailedFirstBatches(Remembered[ProducerKey, Floor]):
    """First batches of producers that could not be appended, until they are sent again: `floors`.

    Invariants: only of producers that the partition does not know; MAX_FLOORS, shared among clients.
    """

    def __init__(self) -> None:
        super().__init__(MAX_FLOORS)

    def note(self, image: Image, part: AppendPart | UncheckedPart, *, failed: bool) -> None:
        """Record the outcome of a part."""
        producer_id, producer_epoch, base_sequence = part.producer
        if producer_id < 0 or base_sequence < 0:  # else it takes the next sequence
            return
        key = part.topic_id, part.partition, producer_id
        if not failed:
            self.forget(key)
        elif not _is_known(image, key):
            new = Floor(producer_epoch, base_sequence, number_of(image, part))
            known = self.get(key)
            if known is None or (known.producer_epoch, known.transaction) != (
                new.producer_epoch,
                new.transaction,
            ):
                self.remember(key, new, part.client)


def producer_key(part: AppendPart) -> ProducerKey:
    """Return the key of the producer's sequence in the partition."""
    return part.topic_id, part.partition, part.producer_id


def number_of(image: Image, part: AppendPart | UncheckedPart) -> int:
    """Return the number of its transaction, which another broker may have opened after this image."""
    if part.transaction is None:
        return NO_NUMBER
    found = image.transactions.of_producer(part.producer[0])
    if found is None:
        return _FIRST_NUMBER
    return found.number if found.is_ongoing else found.number + 1


def _is_known(image: Image, key: ProducerKey) -> bool:
    topic_id, partition, producer_id = key
    topic = image.topic_by_id.get(topic_id)
    return topic is None or producer_id in topic.partitions[partition].producers
