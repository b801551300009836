"""Producer ids for idempotent producers: taken from the metadata log in blocks, handed out one by one.

Invariants: an id is handed out once, over all brokers and restarts: a block is taken by a commit, and what
    a broker had left of its block when it ended is never used.
Concurrency: event loop; whoever comes while a block is being taken waits for it.
After a crash: the next broker takes a new block.
Sources: Kafka RPCProducerIdManager, ProducerIdsBlock (1000 ids).
"""

import asyncio

from sparklog.metadata import AllocateProducerIds, plan_allocate_producer_ids
from sparklog_server.publish.publisher import Publisher

BLOCK_IDS = 1000


class ProducerIds:
    """See the module's docstring."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """An id that nobody has had. Raises what submit_plan raises."""
        async with self._lock:
            if self._next >= self._end:
                result = await self._publisher.submit_plan(
                    lambda image: [plan_allocate_producer_ids(image, BLOCK_IDS)]
                )
                (block,) = (one for one in result.actions if isinstance(one, AllocateProducerIds))
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
