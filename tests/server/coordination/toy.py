"""A coordinator of nothing in particular: named amounts, in an internal topic of their own.

It stands for all coordinators that are not groups', and imports nothing of theirs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog_server.coordination.internal_topic import InternalTopic, LogStatus
from sparklog_server.coordination.shards import Shards
from sparklog_server.coordination.state_log import StateLog
from tests.foreign_records import append_foreign
from tests.server.coordination.surroundings import Surroundings

TOPIC = "__ledger"
PARTITIONS = 3


class Entry(NamedTuple):
    """An amount, under a name whose last digit chooses the partition; None: the name is gone."""

    name: str
    amount: int | None


class Ledger:
    """What a partition's entries add up to, and the order in which they came."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.history: list[Entry] = []
        self.begun: Counter[Entry] = Counter()
        self.staged: Counter[Entry] = Counter()

    def clear(self) -> None:
        self.amounts.clear()

    def begin(self, record: Entry, /) -> None:
        self.begun[record] += 1

    def end(self, record: Entry, /) -> None:
        assert self.begun[record] > 0
        self.begun[record] -= 1

    def stage(self, record: Entry, /) -> None:
        self.staged[record] += 1

    def unstage(self, record: Entry, /) -> None:
        assert self.staged[record] > 0
        self.staged[record] -= 1
        if not self.staged[record]:
            del self.staged[record]

    def apply(self, record: Entry, /) -> None:
        self.history.append(record)
        if record.amount is None:
            self.amounts.pop(record.name, None)
        else:
            self.amounts[record.name] = record.amount


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    if not entry.name[-1:].isdigit():
        raise InvalidRequestError("INVALID_OPTION", f"found {entry.name!r}, expected a digit", fix="add one")
    return entry.name.encode(), None if entry.amount is None else b"%d" % entry.amount


def decode(key: bytes, value: bytes | None, where: str) -> Entry:
    if value is not None and not value.isdigit():
        raise CorruptLogError("CORRUPT_BATCH", f"{where}: found {value!r}, expected digits", fix="repair it")
    return Entry(key.decode(), None if value is None else int(value))


LEDGER: Final[InternalTopic[Entry]] = InternalTopic(
    name=TOPIC,
    partition_of=lambda name, count: int(name[-1]) % count,
    partitions=lambda _: PARTITIONS,
    configs={"cleanup.policy": "compact"},
    encode=encode,
    decode=decode,
    too_large_fix="use shorter names",
)


class Toy(Surroundings):
    """A broker's ledgers, and what its coordinator was told of them."""

    def __init__(self, url: str, clock: ManualClock, *, joins_as: int | None = None) -> None:
        super().__init__(url, clock, {}, joins_as=joins_as)
        self.loaded: list[int] = []
        self.resigned: list[int] = []
        self.resigned_as: list[LogStatus] = []  # how the logs were then
        self.shards: Shards[Entry, Ledger] = Shards(
            self.host,
            LEDGER,
            Ledger,
            on_loading=lambda log: self.load_more(log),
            on_loaded=lambda log: self.loaded.append(log.partition),
            on_resigned=self._resigned,
        )
        self.root.on_image(self.shards.follow)

    def load_more(self, _log: StateLog[Entry, Ledger]) -> Iterable[None]:
        """What else is to be done before a log is ready."""
        return ()

    def _resigned(self, logs: Collection[StateLog[Entry, Ledger]]) -> None:
        self.resigned += [log.partition for log in logs]
        self.resigned_as += [log.status for log in logs]

    async def open(self) -> None:
        self.shards.open()
        assert not await self.shards.ensure_topic()
        await self.settle()

    def log_of(self, partition: int) -> StateLog[Entry, Ledger]:
        return self.shards.of(f"x{partition}")

    def amounts(self, partition: int = 0) -> dict[str, int]:
        return self.log_of(partition).state.amounts

    def append(self, *entries: Entry) -> asyncio.Future[None]:
        """To the partition of the first one."""
        return self.shards.of(entries[0].name).append(entries)

    def append_foreign(self, *entries: Entry) -> None:
        """By somebody who is no coordinator, and whom this broker has to follow."""
        append_foreign(self.log, TOPIC, int(entries[0].name[-1]), [encode(entry) for entry in entries])


class Toys:
    """Runs scenarios, one after the other, on the same root, each with brokers of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()

    def run(
        self,
        scenario: Callable[..., Coroutine[Any, Any, None]],
        *,
        brokers: int = 1,
        opened: bool = True,
        joined: bool = False,
    ) -> None:
        """`joined`: as nodes 1 to `brokers`; somebody has to be their controller."""

        async def main() -> None:
            nodes = range(1, brokers + 1)
            toys = [Toy(self.url, self.clock, joins_as=node if joined else None) for node in nodes]
            try:
                for toy in toys if opened else ():
                    await toy.open()
                await scenario(*toys)
            finally:
                for toy in toys:
                    toy.shards.close()
                    await toy.close()

        asyncio.run(main())
