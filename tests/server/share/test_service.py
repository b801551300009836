"""Share fetches that wait: what wakes them, what they look at then, and what ends them."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import group_key
from sparklog.metadata import PartitionState, plan_set_configs
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.service import FetchService
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.wire import SLICE
from sparklog_server.runtime.timing import Timer
from sparklog_server.settings.config import ServerConfig
from sparklog_server.share.partition import AckBatch, AcknowledgeType
from sparklog_server.share.service import PartitionShare, ShareFetchRequest, ShareService
from sparklog_server.share.sessions import ShareSession
from sparklog_server.share.writer import ShareWriter
from tests.server.publish.batches import part
from tests.server.publish.surroundings import Surroundings

WIDE = 500
Fetching = asyncio.Task[list[PartitionShare]]
Scenario = Callable[["World"], Coroutine[Any, Any, None]]


class CountedLeadership(Leadership):
    """Counts how often a partition is looked at."""

    looks = 0

    def leads(self, partition: PartitionState) -> bool:
        self.looks += 1
        return super().leads(partition)


class World:
    """Group `workers` has begun in all partitions of the topics `wide` and `orders`."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings, self.root = surroundings, surroundings.root
        config, clock = ServerConfig.parse({}), self.root.log.clock
        self.leadership = CountedLeadership(7, self.root)
        timer = self.timer = Timer(clock)
        fetches = FetchService(
            self.root,
            surroundings.membership,
            self.leadership,
            config.fetch,
            timer=timer,
            clock=clock,
            metrics=surroundings.metrics,
        )
        writer = ShareWriter(surroundings.publisher, lambda: self.root.image, 7)
        self.service = ShareService(
            self.root,
            surroundings.membership,
            self.leadership,
            fetches,
            writer,
            config.share,
            timer=timer,
            clock=clock,
        )

    async def begin(self) -> None:
        states = [one for name in ("wide", "orders") for one in self.root.image.topic(name).partitions]
        while not all(self.leadership.leads(one) for one in states):
            await self.root.look(force=True)
            states = [one for name in ("wide", "orders") for one in self.root.image.topic(name).partitions]
        await self.service.start()
        assert await self.service.fetch(self.session("first"), request(max_wait_ms=0)) == []

    def session(self, member: str) -> ShareSession:
        session = self.service.sessions.begin(("workers", member), 1)
        assert isinstance(session, ShareSession)
        topics = [self.root.image.topic(name) for name in ("wide", "orders")]
        places = [(topic.topic_id, number) for topic in topics for number in range(len(topic.partitions))]
        assert self.service.sessions.change(session, places, ())
        return session

    async def waiting(self, session: ShareSession) -> Fetching:
        """A fetch that has looked at everything, and waits."""
        task = asyncio.ensure_future(self.service.fetch(session, request()))
        for _ in range(4 + 3 * WIDE // SLICE):  # turns of the loop
            await asyncio.sleep(0)
        assert not task.done()
        return task

    async def append(self, topic: str = "wide", partition: int = 0) -> None:
        """Two records."""
        found = self.root.image.topic(topic)
        epoch = found.partitions[partition].leadership.leader_epoch
        one = part(topic_id=found.topic_id, topic=topic, partition=partition, leader_epoch=epoch)
        await self.surroundings.publisher.submit([one])


def request(max_wait_ms: int = 60_000) -> ShareFetchRequest:
    return ShareFetchRequest(max_wait_ms=max_wait_ms, max_bytes=1 << 20, max_records=500)


def run(log: SparkLog, scenario: Scenario) -> None:
    log.create_topic("wide", WIDE)
    surroundings = Surroundings(log)

    async def main() -> None:
        async with surroundings.running():
            world = World(surroundings)
            await world.begin()
            await asyncio.wait_for(scenario(world), 50)
            await world.service.stop()

    asyncio.run(main())


def places_of(shares: list[PartitionShare]) -> list[int]:
    assert all(not one.error for one in shares)
    return [one.place[1] for one in shares]


def test_a_fetch_that_is_woken_looks_at_what_has_changed(log: SparkLog) -> None:
    """It looked at all partitions of its session: 20 ms for a thousand, with each commit."""

    async def scenario(world: World) -> None:
        fetching = [await world.waiting(world.session(member)) for member in ("a", "b")]
        world.leadership.looks = 0
        await world.append("wide", 3)
        done, left = await asyncio.wait(fetching, return_when=asyncio.FIRST_COMPLETED)
        assert [places_of(one.result()) for one in done] == [[3]]
        await world.append("wide", 499)
        assert [places_of(await one) for one in left] == [[499]]
        assert world.leadership.looks < WIDE / 10

    run(log, scenario)


def test_a_fetch_of_many_partitions_lets_others_go_on(log: SparkLog) -> None:
    """A session may have 20,000, and a request of 50 bytes looks at all of them: a second."""

    async def scenario(world: World) -> None:
        session = world.session("a")
        turns = []

        async def others() -> None:
            while True:
                turns.append(world.leadership.looks)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        assert await world.service.fetch(session, request(max_wait_ms=0)) == []
        task.cancel()
        looks = [later - before for before, later in itertools.pairwise(turns)]
        assert sum(looks) > WIDE
        assert max(looks) <= SLICE

    run(log, scenario)


def test_commits_elsewhere_wake_nobody(log: SparkLog) -> None:
    async def scenario(world: World) -> None:
        session = world.session("a")
        topic_id = world.root.image.topic("wide").topic_id
        world.service.sessions.change(session, (), [(topic_id, 3)])
        await world.service.fetch(world.session("other"), request(max_wait_ms=0))
        fetching = await world.waiting(session)
        world.leadership.looks = 0
        await world.append("wide", 3)
        await asyncio.sleep(0)
        assert (world.leadership.looks, fetching.done()) == (0, False)
        await world.append("orders", 1)
        assert places_of(await fetching) == [1]

    run(log, scenario)


def test_the_next_fetch_of_a_session_ends_the_one_that_waits(log: SparkLog) -> None:
    """Through another connection: a client could have each of its connections wait for the whole session."""

    async def scenario(world: World) -> None:
        session = world.session("a")
        first = await world.waiting(session)
        second = await world.waiting(session)
        assert await first == []
        await world.append()
        assert places_of(await second) == [0]

    run(log, scenario)


def test_the_end_of_a_session_ends_its_fetch(log: SparkLog) -> None:
    """Else it would acquire records for a member that has left."""

    async def scenario(world: World) -> None:
        fetching = await world.waiting(world.session("a"))
        world.service.end_session(world.service.sessions.end(("workers", "a")), is_counted=False)
        assert await fetching == []

    run(log, scenario)


def test_records_beyond_a_limit_that_was_lowered_end_also_without_any_lock(
    log: SparkLog, clock: ManualClock
) -> None:
    """Where a group is as far ahead as it may be, it would get no record any more."""

    async def scenario(world: World) -> None:
        await world.append()
        place = world.root.image.topic("wide").topic_id, 0
        session = world.session("a")
        for deliveries in (1, 2):
            (share,) = await world.service.fetch(session, request())
            world.service.give_back([share])
            assert [one.deliveries for one in share.acquired] == [deliveries]
            released = {place: [AckBatch(0, 1, [AcknowledgeType.RELEASE])]}
            errors = await world.service.acknowledge("workers", "a", released, may_renew=False)
            assert errors == {place: ErrorCode.none}
        clock.advance_ms(60_000)
        world.timer.run_due()
        limit = {group_key("workers", "share.delivery.count.limit"): "2"}
        await world.root.run(log.metadata.publish, lambda image: [plan_set_configs(image, None, limit)])
        await world.root.look(force=True)
        shown = asyncio.Event()
        world.root.on_image(lambda _old, _new: shown.set())
        assert await world.service.fetch(session, request(max_wait_ms=0)) == []
        await shown.wait()
        assert world.root.image.shares["workers"][place].start_offset == 2

    run(log, scenario)


def test_partitions_that_were_dropped_are_served_again_or_are_errors(log: SparkLog) -> None:
    async def scenario(world: World) -> None:
        fetching = await world.waiting(world.session("a"))
        world.service.release()
        await asyncio.sleep(0)
        await world.append("orders", 1)
        assert places_of(await fetching) == [1]
        fetching = await world.waiting(world.session("b"))
        await world.root.run(log.delete_topic, "orders")
        await world.root.look(force=True)
        answers = await fetching
        assert {one.error for one in answers} == {ErrorCode.unknown_topic_id}
        assert sorted(one.place[1] for one in answers) == [0, 1, 2]

    run(log, scenario)
