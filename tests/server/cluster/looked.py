"""Looks at heartbeats, one by one, and what came of them."""

import asyncio
from collections.abc import Callable, Container, Mapping
from typing import Any

from sparklog.clock import ManualClock
from sparklog.metadata import RegisteredBroker
from sparklog.storage import MemoryStore
from sparklog_server.cluster.liveness import Beat, Looking, Observer

INTERVAL_MS, LOOKS, SILENT, UNREAD = 1_000, 3, 8, 9
PATIENCE_MS = 10  # real ones; the observer's are of its clock


class Looked:
    """What came of it. Heartbeats of its own arrive with each look, unless they are told not to."""

    def __init__(self, store: MemoryStore, clock: ManualClock, *, patience_ms: int = PATIENCE_MS) -> None:
        self.beats = 0
        self.has_ended = asyncio.Event()
        self.watched = [SILENT]
        self.dead: list[int] = []
        self.problems: list[str] = []
        self.fatal: list[BaseException] = []
        self._clock = clock
        self.looking = Looking(
            store,
            _Telling(self.has_ended.set),
            clock=clock,
            interval_ms=patience_ms,
            beats=lambda: self.beats,
            on_dead=lambda dead: self.dead.extend(one.node_id for one in dead),
            on_problem=self.problems.append,
            on_fatal=self.fatal.append,
        )

    async def look(self, *, beats: bool = True) -> None:
        """After an interval, until the look has ended, or hangs."""
        self.begin(beats=beats)
        for _ in range(20):
            await asyncio.sleep(0.002)

    async def look_to_its_end(self) -> None:
        """However slow the machine is; for one that counts."""
        self.has_ended.clear()
        self.begin()
        await self.until_ended()

    async def look_and_hear(self, *, beats: bool = True) -> None:
        """Until a problem was told, or what must stop the broker."""
        before = len(self.problems)
        self.begin(beats=beats)
        await until(lambda: len(self.problems) > before or bool(self.fatal))

    async def look_until_the_dead_are_due(self) -> None:
        """And not before."""
        for _ in range(LOOKS + 1):
            assert self.dead == []
            await self.look_to_its_end()
        self.looking.stop()

    async def until_ended(self) -> None:
        async with asyncio.timeout(20):
            await self.has_ended.wait()

    def begin(self, *, beats: bool = True) -> None:
        self._clock.advance_ms(INTERVAL_MS)
        self.beats += beats
        self.looking.begin({one: registered(one) for one in self.watched})


class _Telling(Observer):
    """Tells of each look that reaches it."""

    def __init__(self, on_look: Callable[[], None]) -> None:
        super().__init__(interval_ms=INTERVAL_MS, looks=LOOKS)
        self._on_look = on_look

    def look(
        self,
        brokers: Mapping[int, RegisteredBroker],
        found: Mapping[int, Beat],
        *,
        unread: Container[int] = (),
        **times: Any,
    ) -> list[int]:
        self._on_look()
        return super().look(brokers, found, unread=unread, **times)


def registered(node_id: int) -> RegisteredBroker:
    return RegisteredBroker(node_id=node_id, broker_epoch=0, incarnation_id="I" * 22)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.002)
