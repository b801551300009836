"""Who has written to a partition of late: the producers that it remembers, and those that have staged
something.

Invariants: pure; as of one image. A time is that of the last extent that a producer has there: where extents
    were merged it may be another's, and later; -1 where there is none any more.
Not here: bytes (sparklog_server/api).
Concurrency: pure functions; in a storage thread, since a partition may remember thousands.
Sources: Kafka ReplicaManager.activeProducerState, ProducerStateEntry; KIP-664.
"""

from dataclasses import dataclass

import numpy as np

from sparklog.metadata import Image, PartitionState

_UNKNOWN_MS = -1


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer, as a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int


def active_producers(image: Image, state: PartitionState) -> list[ActiveProducer]:
    """The least recent first."""
    offsets = np.array([one.last_offset for one in state.producers.values()], np.int64)
    times = _times(state, offsets)
    places = {producer_id: place for place, producer_id in enumerate(state.producers)}
    for producer_id in image.transactions.staging_in(state.topic_id, state.partition):
        transaction = image.transactions.of_producer(producer_id)
        if transaction is not None and producer_id in places:
            newest = transaction.staged_in(state.topic_id, state.partition)[-1]
            times[places[producer_id]] = newest.max_timestamp_ms
    return [
        ActiveProducer(producer_id, known.producer_epoch, known.last_sequence, time)
        for (producer_id, known), time in zip(state.producers.items(), times, strict=True)
    ]


def _times(state: PartitionState, offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[int]:
    """Of the extents in which these offsets are."""
    if not len(offsets) or not len(state.extents):
        return [_UNKNOWN_MS] * len(offsets)
    columns = state.extents.columns()
    index = np.searchsorted(columns.end_offset, offsets, side="right")
    known = (index < len(columns)) & (offsets >= 0)
    inside = np.minimum(index, len(columns) - 1)
    known &= columns.base_offset[inside] <= offsets
    found: list[int] = np.where(known, columns.column("max_timestamp_ms")[inside], _UNKNOWN_MS).tolist()
    return found
