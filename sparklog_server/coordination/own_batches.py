"""What this broker appends to one log, until its outcome is told: what waits, and batches at the publisher.

What is planned by what is on its way holds only if that arrives: a second deletion finds nothing to delete,
and must not be told so before the first one is durable.
Invariants: a batch is here until it is applied, or known not to be, or the log is closed. What is planned by
    what is on its way is handed over when nothing is any more, and what came after it, after it.
Concurrency: event loop.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

from sparklog_server.coordination.appends import Waiting, has_failed
from sparklog_server.coordination.internal_topic import RecordT


@dataclass(slots=True, eq=False)
class OwnBatch(Generic[RecordT]):
    """One of them.

    Fields:
        waiting: whose records it has.
        ended: whether they are in the log, and applied.
    """

    waiting: list[Waiting[RecordT]]
    ended: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OwnBatches(Generic[RecordT]):
    """See the module's docstring. Its length: of the batches."""

    def __init__(self) -> None:
        self.waiting: list[Waiting[RecordT]] = []
        self._batches: list[OwnBatch[RecordT]] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[OwnBatch[RecordT]]:
        return iter(self._batches)

    def take_cancelled(self) -> list[Waiting[RecordT]]:
        """Those of which nobody wants to know any more, and which are not handed over."""
        gone = [one for one in self.waiting if one.future.done()]
        self.waiting = [one for one in self.waiting if not one.future.done()]
        return gone

    def take_ready(self) -> Iterator[list[Waiting[RecordT]]]:
        """What is to be handed over now, in batches; `add` each before the next is asked for."""
        waiting, self.waiting = self.waiting, []
        runs = itertools.groupby(waiting, key=lambda one: one.is_planned)
        for is_planned, run in runs:
            if is_planned and self._batches:
                self.waiting += [*run, *(one for _, later in runs for one in later)]
                return
            yield list(run)

    def add(self, waiting: list[Waiting[RecordT]]) -> OwnBatch[RecordT]:
        """One that is handed over now."""
        batch = OwnBatch(waiting)
        self._batches.append(batch)
        return batch

    def end(self, batch: OwnBatch[RecordT], *, is_applied: bool) -> None:
        """Its outcome is told."""
        self._batches.remove(batch)
        if not batch.ended.done():
            batch.ended.set_result(is_applied)

    def close(self) -> None:
        """Of those that are left nobody will hear."""
        for batch in self._batches:
            if not batch.ended.done():
                batch.ended.set_result(False)

    async def arrived(self) -> bool:
        """Wait for all that there are now. False: some are not in the log, or perhaps not."""
        ended, waiting = [one.ended for one in self._batches], [one.future for one in self.waiting]
        futures: list[asyncio.Future[Any]] = [*ended, *waiting]
        if futures:
            await asyncio.wait(futures)
        return all(one.result() for one in ended) and not any(map(has_failed, waiting))
