"""A turn of reading from storage, for consumers: some partitions of a fetch, one after the other.

Invariants: a turn ends when enough is read, or READ_SECONDS after it began, but for what is in memory by
    then: the consumer asks again for the rest. A partition whose bytes are damaged or gone is answered with
    an error and logged, and harms no other. A file that is missing has been merged or has expired, as the
    newest image shows; what was fetched of the partition by then is of no use.
Memory: MAX_STORAGE_ROUND_BYTES, and one batch more, however large.
Not here: what is in memory already, and for how much there is room (service.py).
Concurrency: a storage thread for each turn.
"""

import logging
from collections.abc import Sequence
from time import monotonic

from sparklog.errors import OffsetOutOfRangeError, SparklogError, UnknownTopicError
from sparklog.log.missing_segment import SegmentMissingError
from sparklog.log.partition_reader import validate_missing
from sparklog.log.read_plan import validate_range
from sparklog.metadata import PartitionState
from sparklog_server.fetch.batches import FetchedBatches
from sparklog_server.fetch.cache import TailCache
from sparklog_server.fetch.checking import Wanted
from sparklog_server.fetch.gathered import Gathered
from sparklog_server.fetch.reader import READ_SECONDS, Place, StoredReader
from sparklog_server.protocol.errors import error_code
from sparklog_server.root.live_root import LiveRoot

FRESH_BYTES = 8 << 20  # reads that end this close to the log's end are kept for the next consumer
MAX_STORAGE_ROUND_BYTES = 4 << 20
_log = logging.getLogger("sparklog_server.fetch")
Round = list[tuple[Wanted, FetchedBatches | None]]


class Rounds:
    """See the module's docstring."""

    def __init__(self, root: LiveRoot, reader: StoredReader, cache: TailCache) -> None:
        self._root = root
        self._reader = reader
        self._cache = cache

    def read(self, todo: Sequence[Wanted], left: int, at_least_one: bool) -> Round:
        """Of some partitions, in their order, what is enough for one turn."""
        end = monotonic() + READ_SECONDS
        try:
            gathered = self._gather(todo, left)
        except SparklogError as error:
            _log.error("fetch of %d partitions: %s", len(todo), error)
            for one in todo:
                one.answer.error_code = error_code(error).value
            return [(one, None) for one in todo]
        results: Round = []
        size = 0
        for number, one in enumerate(todo):
            limit = min(left - size, one.fetch.max_bytes)
            if results and (limit <= 0 or size >= MAX_STORAGE_ROUND_BYTES):
                break
            if results and monotonic() >= end:
                if gathered is None:
                    break
                if not gathered.has_any(number):
                    results.append((one, None))
                    continue
            batches = self._read_one(
                one, limit, at_least_one, None if gathered is None else (gathered, number)
            )
            results.append((one, batches))
            if batches is not None and batches.size:
                at_least_one = False
                size += batches.size
        return results

    def _gather(self, todo: Sequence[Wanted], left: int) -> Gathered | None:
        places = []
        for one in todo:
            assert one.state is not None
            places.append(
                Place(
                    topic=one.answer.topic,
                    state=one.state,
                    offset=one.fetch.offset,
                    max_bytes=one.fetch.max_bytes,
                )
            )
        return self._reader.gather(places, max_bytes=min(left, MAX_STORAGE_ROUND_BYTES))

    def _read_one(
        self, one: Wanted, limit: int, at_least_one: bool, gathered: tuple[Gathered, int] | None
    ) -> FetchedBatches | None:
        assert one.state is not None
        topic, state, offset = one.answer.topic, one.state, one.fetch.offset
        misses = 0
        try:
            while True:
                try:
                    return self._read_stored(topic, state, offset, limit, at_least_one, gathered)
                except SegmentMissingError as error:  # merged or expired since, or lost
                    gathered = None
                    misses += 1
                    state = self._root.newest(state.topic_id, state.partition)
                    validate_missing(error, state, offset, misses=misses, topic=topic)
                    validate_range(topic, state, offset, state.log_end_offset)
                    one.answer.tell(state)  # what is read now may go beyond what was told
        except (OffsetOutOfRangeError, UnknownTopicError) as error:
            one.answer.error_code = error_code(error).value
        except SparklogError as error:
            _log.error("fetch of %s-%d from offset %d: %s", topic, one.fetch.partition, offset, error)
            one.answer.error_code = error_code(error).value
        return None

    def _read_stored(
        self,
        topic: str,
        state: PartitionState,
        offset: int,
        limit: int,
        at_least_one: bool,
        gathered: tuple[Gathered, int] | None,
    ) -> FetchedBatches:
        found, block = self._reader.read(
            topic, state, offset, max_bytes=limit, at_least_one=at_least_one, gathered=gathered
        )
        is_dirty = found.next_offset > state.cleaned.first_dirty_offset  # the rest is never looked for there
        is_fresh = is_dirty and state.extents.bytes_from(found.next_offset, FRESH_BYTES) < FRESH_BYTES
        if block is not None and is_fresh:
            self._cache.insert(state.topic_id, state.partition, block)
        return found
