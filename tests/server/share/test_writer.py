"""Writing what becomes of records: gathered, refused one by one, and with dead letters in one commit."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.errors import FencedError, InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.metadata import DeliveryState, ShareRange, ShareRecords, ShareState
from sparklog_server.publish.parts import AppendPart
from sparklog_server.share.writer import ShareWriter
from tests.server.publish.batches import part
from tests.server.publish.surroundings import Surroundings

Scenario = Callable[["Group"], Coroutine[Any, Any, None]]
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED


class Group:
    """Share group `workers`, in partitions 0 and 1 of topic orders, which have six records each."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self.root = surroundings.root
        self.writer = ShareWriter(surroundings.publisher, lambda: self.root.image, 7)
        self.topic_id = self.root.image.topic("orders").topic_id

    async def begin(self) -> None:
        await self.surroundings.publisher.submit([self.batch("orders", number) for number in (0, 1)] * 3)
        await self.writer.begin("workers", {(self.topic_id, number): 0 for number in range(2)})

    def batch(self, topic: str, partition: int = 0) -> AppendPart:
        """Two records."""
        found = self.root.image.topic(topic)
        epoch = found.partitions[partition].leadership.leader_epoch
        return part(topic_id=found.topic_id, topic=topic, partition=partition, leader_epoch=epoch)

    def state(self, partition: int = 0) -> ShareState:
        return self.root.image.shares["workers"][self.topic_id, partition]

    def action(
        self, *ranges: ShareRange, partition: int = 0, leader_epoch: int = -1, state_epoch: int = -1
    ) -> ShareRecords:
        led = self.root.image.topic("orders").partitions[partition].leadership
        return ShareRecords(
            group="workers",
            topic_id=self.topic_id,
            partition=partition,
            leader_epoch=led.leader_epoch if leader_epoch < 0 else leader_epoch,
            state_epoch=self.state(partition).state_epoch if state_epoch < 0 else state_epoch,
            ranges=ranges,
        )


def run(log: SparkLog, scenario: Scenario) -> None:
    surroundings = Surroundings(log)

    async def main() -> None:
        async with surroundings.running():
            group = Group(surroundings)
            await group.begin()
            await asyncio.wait_for(scenario(group), 60)
            group.writer.stop()

    asyncio.run(main())


def accepted(first: int, last: int) -> ShareRange:
    return ShareRange(first, last, ACKNOWLEDGED, 1)


async def error_of(future: "asyncio.Future[ShareState]") -> SparklogError:
    with pytest.raises(SparklogError) as raised:
        await future
    return raised.value


def test_what_is_said_in_one_turn_is_one_commit(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        before = group.root.image.commit
        states = await asyncio.gather(
            group.writer.write(group.action(accepted(3, 3))),
            group.writer.write(group.action(accepted(0, 1))),
            group.writer.write(group.action(accepted(0, 0), partition=1)),
        )
        assert group.root.image.commit == before + 1
        assert states[0] == states[1] == group.state()
        assert (group.state().start_offset, group.state(1).start_offset) == (2, 1)

    run(log, scenario)


def test_what_is_refused_harms_no_other(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        old = group.writer.write(group.action(accepted(0, 0), leader_epoch=9))
        other = group.writer.write(group.action(accepted(0, 0), state_epoch=99))
        good = group.writer.write(group.action(accepted(0, 0), partition=1))
        assert (await good).start_offset == 1
        assert [(await error_of(one)).code for one in (old, other)] == ["NOT_LEADER", "SHARE_STATE_CHANGED"]
        assert group.state().start_offset == 0

    run(log, scenario)


def test_a_record_ends_once(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        await group.writer.write(group.action(accepted(1, 1)))
        assert isinstance(
            await error_of(group.writer.write(group.action(accepted(1, 1)))), InvalidRequestError
        )

    run(log, scenario)


def test_a_dead_letter_is_in_the_commit_that_archives_its_record(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        before = group.root.image
        rejected = ShareRange(0, 0, ARCHIVED, 1)
        await group.writer.write(group.action(rejected), [group.batch("clicks", 1)])
        after = group.root.image
        assert after.commit == before.commit + 1
        assert after.topic("clicks").partitions[1].log_end_offset == 2
        assert group.state().start_offset == 1

    run(log, scenario)


def test_no_dead_letter_without_its_record(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        late = group.action(ShareRange(0, 0, ARCHIVED, 1), leader_epoch=9)
        error = await error_of(group.writer.write(late, [group.batch("clicks")]))
        assert isinstance(error, FencedError)
        assert group.root.image.topic("clicks").partitions[0].log_end_offset == 0

    run(log, scenario)


def test_no_record_is_archived_without_its_dead_letter(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        letter = group.batch("clicks")
        log.delete_topic("clicks")
        await group.root.look(force=True)
        error = await error_of(group.writer.write(group.action(ShareRange(0, 0, ARCHIVED, 1)), [letter]))
        assert isinstance(error, UnknownTopicError)
        assert group.state().start_offset == 0

    run(log, scenario)


def test_what_waits_fails_when_the_broker_stops(log: SparkLog) -> None:
    async def scenario(group: Group) -> None:
        waiting = group.writer.write(group.action(accepted(0, 0)))
        group.writer.stop()
        assert "stopping" in str(await error_of(waiting))

    run(log, scenario)
