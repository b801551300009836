"""Reading state logs: what is wanted in one turn of the loop together, in threads of their own.

A coordinator that takes partitions over reads them all from their start. One after the other, in the threads
that serve consumers, each would ask for every small commit by itself, behind consumers that do the same for
records, while the members of its groups wait.

Invariants: whoever asks is told of its own stretch, records or error, as soon as that is read.
Not here: when to read, and what becomes of the records (state_log.py).
Concurrency: `read` on the event loop; reading in threads that nobody else uses.
After a crash: nothing stays.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from sparklog.errors import SparklogError
from sparklog.log.missing_segment import SegmentMissingError
from sparklog.log.read_together import Stretch
from sparklog.metadata import PartitionState
from sparklog_server.coordination.internal_topic import InternalTopic, RecordT
from sparklog_server.coordination.records import Replayed, replay, replay_together
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.background import Background


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted(Generic[RecordT]):
    """One call of `read`."""

    stretch: Stretch
    future: "asyncio.Future[Replayed[RecordT]]"


class Reading(Generic[RecordT]):
    """See the module's docstring."""

    def __init__(self, root: LiveRoot, topic: InternalTopic[RecordT]) -> None:
        self._root = root
        self._topic = topic
        self._wanted: list[_Wanted[RecordT]] = []
        self._background = Background()

    async def read(self, state: PartitionState, start_offset: int, end_offset: int) -> Replayed[RecordT]:
        """What the records of [start_offset, end_offset) say.

        Raises:
            CorruptLogError, DataLossError, UnsupportedVersionError: the partition cannot be served.
            StorageError: perhaps later.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Replayed[RecordT]] = loop.create_future()
        if not self._wanted:
            loop.call_soon(self._begin)
        stretch = Stretch(topic=self._topic.name, state=state, start=start_offset, end=end_offset)
        self._wanted.append(_Wanted(stretch, future))
        try:
            return await future
        finally:
            del future  # it may hold the exception that holds this frame

    def _begin(self) -> None:
        wanted, self._wanted = self._wanted, []
        wanted = [one for one in wanted if not one.future.done()]
        if wanted:
            self._background.spawn(self._read_all(wanted))

    async def _read_all(self, wanted: Sequence[_Wanted[RecordT]]) -> None:
        try:
            await self._root.run_apart(self._work, asyncio.get_running_loop(), wanted)
            await asyncio.sleep(0)  # who was told last hears it before this goes on
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            for one in wanted:
                _tell(one.future, error)
        finally:
            for one in wanted:
                one.future.cancel()  # the broker stops

    def _work(self, loop: asyncio.AbstractEventLoop, wanted: Sequence[_Wanted[RecordT]]) -> None:
        """In a thread."""
        outcomes = replay_together(
            self._root.store,
            self._topic,
            [one.stretch for one in wanted],
            is_wanted=lambda: not all(one.future.done() for one in wanted),
        )
        for number, outcome in outcomes:
            one = wanted[number]
            if isinstance(outcome, SegmentMissingError):  # merged or compacted since; or lost
                outcome = self._read_alone(one.stretch)  # noqa: PLW2901
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_tell, one.future, outcome)

    def _read_alone(self, one: Stretch) -> Replayed[RecordT] | SparklogError:
        root = self._root
        try:
            return replay(root.metadata, root.image, self._topic, one.state.partition, one.start, one.end)
        except SparklogError as error:
            return error


def _tell(future: "asyncio.Future[Replayed[RecordT]]", outcome: Replayed[RecordT] | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
