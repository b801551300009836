"""Offsets by time, and the record with the largest timestamp.

Not here: offsets that need no look at records (api/list_offsets.py).
Concurrency: storage threads; reads only.
Sources: log/time_lookup.py; Kafka UnifiedLog.fetchOffsetByTimestamp; KIP-734 (max timestamp).
"""

import numpy as np

from sparklog.log.reader import plan_read, read_ranges
from sparklog.log.time_lookup import offset_for_time
from sparklog.metadata import NUMBER_COLUMNS, PartitionState
from sparklog.storage import Store

_MAX_TIMESTAMP = NUMBER_COLUMNS.index("max_timestamp_ms")


def offset_of_max_timestamp(store: Store, state: PartitionState, topic: str) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that has the partition's largest timestamp; None: no record.

    Extents know their largest timestamp. The first may begin before the log's start, where its largest may
    lie: what is left of it is read.
    """
    if not len(state.extents):
        return None
    log_start, largest = state.log_start_offset, largest_of_whole_extents(state)
    cut = state.extents[0]
    if cut.base_offset < log_start and (largest is None or cut.max_timestamp_ms > largest):
        ranges = plan_read(store, state, log_start, cut.end_offset, topic=topic)
        for records in read_ranges(store, ranges):
            found = int(np.max(records.timestamp_ms))
            largest = found if largest is None else max(largest, found)
    return None if largest is None else offset_for_time(store, state, largest, topic=topic)


def largest_of_whole_extents(state: PartitionState) -> int | None:
    """The largest timestamp in the extents that begin at the log's start or after it; None: there is none."""
    largest: int | None = None
    for _, block in state.extents.column_blocks():
        whole = block.numbers[_MAX_TIMESTAMP][block.base_offset >= state.log_start_offset]
        if len(whole):
            newest = int(whole.max())
            largest = newest if largest is None else max(largest, newest)
    return largest
