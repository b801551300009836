"""Random schedules: whatever others commit, and whatever fails or is told late, nothing expires too early.

Whoever is acknowledged finds its commit in the log, and no tombstone is behind a value that it was not
planned by: that would be one that has not expired.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.format.consumer_offsets import OffsetKey, OffsetValue, decode_key, decode_offset_value
from sparklog_server.publish.parts import PartOutcome
from tests.server.groups.test_coordinator import WEEK_MS, busy, offsets, to_commit
from tests.server.groups.test_coordinator_tombstones import arrive, commit_elsewhere

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

STEPS = 100
GROUPS = ("g0", "g1")
Place = tuple[str, str, int]
SETTINGS = {"offsets.topic.num.partitions": "1", "offsets.retention.check.interval.ms": str(1 << 50)}


class Schedule:
    """A coordinator, what was asked of it, and what it has acknowledged."""

    def __init__(self, host: Host, roots: Roots, random: Random) -> None:
        self.host, self.roots, self.random = host, roots, random
        self.asked: list[asyncio.Task[Any]] = []
        self.acknowledged: set[tuple[Place, int]] = set()
        self.untold: list[tuple[asyncio.Future[list[PartOutcome]], int]] = []
        self.number = 0

    # What happens

    def commit(self) -> None:
        self.number += 1
        group, topic = self.random.choice(GROUPS), self.random.choice(["orders", "returns"])
        place, offset = (group, topic, self.random.randrange(2)), self.number

        async def commit() -> None:
            if await self.host.groups.commit(group, to_commit(offset, topic, place[2])) == ErrorCode.none:
                self.acknowledged.add((place, offset))

        self.asked.append(asyncio.ensure_future(commit()))

    def commit_elsewhere(self) -> None:
        self.number += 1
        place = (self.random.choice(GROUPS), "orders", 0)
        commit_elsewhere(self.roots, place[0], {place[1:]: self.number})
        self.acknowledged.add((place, self.number))

    def expire(self) -> None:
        self.asked.append(asyncio.ensure_future(self.host.groups.expire()))

    def look(self) -> None:
        self.asked.append(asyncio.ensure_future(self.host.look()))

    def hold(self) -> None:
        self.host.publisher.hold = True

    def release(self) -> None:
        publisher = self.host.publisher
        publisher.hold, publisher.error, publisher.loses_answers = False, None, False
        publisher.release()
        self.tell()

    def fail(self) -> None:
        self.host.publisher.error, self.host.publisher.loses_answers = busy(), self.random.random() < 0.5

    def make_durable(self) -> None:
        """One that is held, if it may be anywhere; it is told of later."""
        publisher = self.host.publisher
        if publisher.held and publisher.held[0][0][0].at_offset < 0:
            (part,), future = publisher.held.pop(0)
            self.untold.append((future, publisher.append_at_once(part)))

    def refuse(self) -> None:
        """One that is held, and as many of others in its place."""
        if self.host.publisher.held:
            _, future = self.host.publisher.held.pop(0)
            self.commit_elsewhere()
            if not future.done():
                future.set_result([PartOutcome(error=busy())])

    def tell(self) -> None:
        untold, self.untold = self.untold, []
        for future, base_offset in untold:
            if not future.done():
                future.set_result([PartOutcome(base_offset=base_offset)])

    def cancel(self) -> None:
        if waiting := [one for one in self.asked if not one.done()]:
            self.random.choice(waiting).cancel()

    async def run(self) -> None:
        often = [self.commit] * 5 + [self.expire] * 3 + [self.release] * 3 + [self.hold] * 2
        often += [self.commit_elsewhere] * 2 + [self.make_durable] * 2 + [self.refuse] * 3
        steps = [*often, self.look, self.fail, self.tell, self.cancel]
        for _ in range(STEPS):
            if self.random.random() < 0.2:
                await self.host.advance(self.random.choice([WEEK_MS // 2, WEEK_MS]))
            else:
                self.random.choice(steps)()
            for _ in range(self.random.choice([0, 1, 3, 30])):
                await asyncio.sleep(0)
        self.release()
        await arrive(self.host)
        await self.host.look()
        await self.host.settle()
        await asyncio.wait(self.asked)


def check(schedule: Schedule) -> None:
    """The log, record by record."""
    latest: dict[Place, OffsetValue] = {}
    written: set[tuple[Place, int]] = set()
    with sparklog.open(schedule.roots.url, clock=schedule.roots.clock) as log:
        rows = log.read(OFFSETS_TOPIC, 0, 0).select(["key", "value", "timestamp"]).to_pylist()
    for row in rows:
        key = decode_key(row["key"], where="key")
        if not isinstance(key, OffsetKey):
            continue
        place = (key.group, key.topic, key.partition)
        if row["value"] is None:
            age_ms = int(row["timestamp"].timestamp() * 1000) - latest.pop(place).commit_timestamp_ms
            assert age_ms >= WEEK_MS, place
        else:
            latest[place] = decode_offset_value(row["value"], where="value")
            written.add((place, latest[place].offset))
    assert schedule.acknowledged <= written
    for group in GROUPS:
        found = {place[1:]: value.offset for place, value in latest.items() if place[0] == group}
        assert offsets(schedule.host, group) == found


@pytest.mark.parametrize("seed", range(16))
def test_nothing_goes_before_its_time(roots: Roots, seed: int) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        schedule = Schedule(host, roots, Random(seed))
        await schedule.run()
        check(schedule)

    roots.run(scenario, SETTINGS)
