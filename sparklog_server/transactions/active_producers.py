"""Who has written to a partition of late: the producers that it remembers, and those that have staged
something.

Invariants: pure; as of one image. A time is that of the last extent that a producer has there: where extents
    were merged it may be another's, and later; -1 where there is none any more.
Cost: half a microsecond for each producer, and a search in the partition's extents, which are not copied.
Not here: bytes (sparklog_server/api).
Concurrency: pure functions; in a storage thread, since a partition may remember thousands.
Sources: Kafka ReplicaManager.activeProducerState, ProducerStateEntry; KIP-664.
"""

from operator import attrgetter

import numpy as np
import numpy.typing as npt

from sparklog.metadata import Image, PartitionState
from sparklog_server.protocol.producers_response import Producers

_UNKNOWN_MS = -1


def active_producers(image: Image, state: PartitionState) -> Producers:
    """The least recent first."""
    producers = state.producers
    times = _times(state, _column(state, "last_offset"))
    staging = image.transactions.staging_in(state.topic_id, state.partition)
    places = {producer_id: place for place, producer_id in enumerate(producers)} if staging else {}
    for producer_id in staging:
        transaction = image.transactions.of_producer(producer_id)
        if transaction is not None and producer_id in places:
            newest = transaction.staged_in(state.topic_id, state.partition)[-1]
            times[places[producer_id]] = newest.max_timestamp_ms
    return Producers(
        producer_id=np.fromiter(producers, np.int64, len(producers)),
        producer_epoch=_column(state, "producer_epoch"),
        last_sequence=_column(state, "last_sequence"),
        last_timestamp_ms=times,
    )


def _column(state: PartitionState, name: str) -> npt.NDArray[np.int64]:
    producers = state.producers
    return np.fromiter(map(attrgetter(name), producers.values()), np.int64, len(producers))


def _times(state: PartitionState, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of the extents in which these offsets are."""
    times = np.full(len(offsets), _UNKNOWN_MS, np.int64)
    for _, block in state.extents.column_blocks():
        index = np.searchsorted(block.base_offset, offsets, side="right") - 1
        length = block.column("record_count")[index]
        inside = (index >= 0) & (offsets - block.base_offset[index] < length)
        times[inside] = block.column("max_timestamp_ms")[index[inside]]
    return times
