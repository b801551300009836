"""Offsets of transactions at their coordinator: who may stage them, what they hold, and who has them next."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sparklog.metadata import plan_delete_topic
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.messages import GroupState
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.publish.parts import InTransaction
from tests.server.groups.test_coordinator import DAY_MS, WEEK_MS, offsets, to_commit
from tests.server.groups.test_coordinator_moving import identity, move
from tests.support.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from tests.server.coordination.controller import Controller
    from tests.server.groups.conftest import Host, Roots
else:
    Controller = Host = Roots = Any

ORDERS = ("orders", 0)


def by(producer: TransactionalProducer) -> StagedBy:
    """In the second protocol."""
    said = InTransaction(transactional_id=producer.transactional_id, opens_ms=1)
    return StagedBy(producer_id=producer.producer_id, producer_epoch=producer.epoch, transaction=said)


def begun(host: Host, name: str = "app") -> TransactionalProducer:
    return TransactionalProducer(host.log, name).begin()


def is_stable(host: Host, group: str = "g") -> bool:
    return ORDERS not in host.groups.table.unstable(group)


async def end(host: Host, producer: TransactionalProducer, *, commits: bool = True) -> None:
    producer.end(commits=commits, second=True)
    await host.look()


def test_they_are_unstable_until_they_are_committed(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        producer, groups = begun(host), host.groups
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        assert await groups.stage("g", to_commit(5), by(producer)) == ErrorCode.none
        assert not is_stable(host)
        assert ("orders", 1) not in groups.table.unstable("g")
        assert is_stable(host, "another")
        assert offsets(host, "g") == {ORDERS: 1}
        await end(host, producer)
        assert is_stable(host)
        assert offsets(host, "g") == {ORDERS: 5}

    roots.run(scenario)


def test_a_member_that_is_given_up_leaves_nothing_behind_that_nobody_sees(roots: Roots) -> None:
    """It was allowed to commit; its successor asks for stable offsets before that is durable."""

    async def scenario(host: Host) -> None:
        producer = begun(host)
        member = identity(await host.stable_member("g"))
        host.publisher.hold = True
        committing = asyncio.ensure_future(host.groups.stage("g", to_commit(5), by(producer), **member))
        await host.settle()
        assert not is_stable(host)
        host.publisher.release()
        assert await committing == ErrorCode.none
        assert not is_stable(host)

    roots.run(scenario)


def test_who_may_stage(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        producer = begun(host)

        async def told(group: str = "g", **said: Any) -> ErrorCode:
            return await host.groups.stage(group, to_commit(5), by(producer), **said)

        member = identity(await host.stable_member("g"))
        assert await told(**member) == ErrorCode.none
        assert await told(**{**member, "generation_id": 2}) == ErrorCode.illegal_generation
        assert await told(**{**member, "generation_id": -1}) == ErrorCode.illegal_generation
        assert await told(**{**member, "member_id": "x"}) == ErrorCode.unknown_member_id
        assert await told(**member, instance_id="x") == ErrorCode.unknown_member_id
        assert await told() == ErrorCode.none  # as in Kafka: older clients cannot say who they are
        assert await told("new", generation_id=0) == ErrorCode.illegal_generation
        # A rebalance has begun, and the member has not joined again yet: it may, as in Kafka.
        joining = host.joins("g")
        await host.settle()
        group = host.groups.find("g")
        assert group is not None
        assert group.state is GroupState.PREPARING_REBALANCE
        assert await told(**member) == ErrorCode.none
        joining.cancel()

    roots.run(scenario)


def test_what_they_hold_is_bounded(roots: Roots) -> None:
    note = "m" * 32_000

    async def scenario(host: Host) -> None:
        producer, groups = begun(host), host.groups

        async def stage(*partitions: int) -> ErrorCode:
            wanted = [one for number in partitions for one in to_commit(1, partition=number, metadata=note)]
            return await groups.stage("g", wanted, by(producer))

        before = host.groups.table.offsets_bytes
        assert await stage(*range(30)) == ErrorCode.none
        assert await stage(0, 1, 2) == ErrorCode.invalid_commit_offset_size
        wanted = to_commit(1, metadata=note)
        assert (
            await host.groups.commit("h", [*wanted, *to_commit(1, partition=1, metadata=note)])
            == ErrorCode.none
        )
        assert await host.groups.commit("h", to_commit(1, partition=2, metadata=note)) != ErrorCode.none
        await end(host, producer, commits=False)
        await host.delete_group("h")
        assert host.groups.table.offsets_bytes == before

    roots.run(scenario, {"sparklog.group.max.offset.bytes": str(1 << 20)})


def test_what_is_pending_does_not_expire_nor_does_its_group(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        producer, groups = begun(host), host.groups
        assert await host.groups.commit("g", to_commit(1) + to_commit(1, partition=1)) == ErrorCode.none
        assert await groups.stage("g", to_commit(5), by(producer)) == ErrorCode.none
        for _ in range(8):
            await host.advance(DAY_MS)
        assert 8 * DAY_MS > WEEK_MS
        await host.groups.expire()
        assert offsets(host, "g") == {ORDERS: 1}
        assert await host.delete_group("g") == ErrorCode.non_empty_group
        _, results = await host.groups.delete_offsets("g", [ORDERS])
        assert results == {ORDERS: ErrorCode.unstable_offset_commit}
        await end(host, producer, commits=False)
        await host.groups.expire()
        assert not host.groups.exists("g")

    roots.run(scenario)


def test_offsets_of_a_topic_that_was_deleted_before_they_were_committed(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        producer = begun(host)
        wanted = to_commit(5) + to_commit(6, topic="returns")
        assert await host.groups.stage("g", wanted, by(producer)) == ErrorCode.none
        host.log.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])
        await host.look()
        await end(host, producer)
        host.log.create_topic("news", 1)  # the next image
        await host.look()
        assert offsets(host, "g") == {("returns", 0): 6}

    roots.run(scenario)


def test_while_what_is_staged_is_not_known_everything_is_unstable(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        assert is_stable(host)
        monkeypatch.setattr(type(host.groups.shards.of("g")), "is_unsure", True)
        assert not is_stable(host)
        assert not host.groups.table.is_stable("g")

    roots.run(scenario)


def test_the_next_coordinator_knows_what_is_staged(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        producer = begun(first)
        assert await first.groups.stage("g", to_commit(5), by(producer)) == ErrorCode.none
        await move(controller, "g", second, first)
        assert not is_stable(second)
        assert is_stable(second, "another")
        # Whoever it is that stages there without being its coordinator:
        assert await second.groups.stage("g", to_commit(6), by(producer)) == ErrorCode.none
        await end(second, producer)
        assert is_stable(second)
        assert offsets(second, "g") == {ORDERS: 6}
        await first.look()
        assert await first.groups.stage("g", to_commit(7), by(producer)) == ErrorCode.not_coordinator

    roots.run_two(scenario)


def test_what_was_on_its_way_when_the_coordinator_moved_is_not_staged(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        producer = begun(first)
        first.publisher.hold = True
        late = asyncio.ensure_future(first.groups.stage("g", to_commit(5), by(producer)))
        await first.settle()
        await move(controller, "g", second, second)
        first.publisher.hold = False
        first.publisher.release()
        (outcome,) = await asyncio.gather(late, return_exceptions=True)
        assert getattr(outcome, "code", "") == "NOT_LEADER"
        await second.look()
        assert is_stable(second)
        assert producer.known.staged_extents == 0

    roots.run_two(scenario)


def test_who_waits_for_what_was_committed_gives_way_before(roots: Roots) -> None:
    """And who has nothing to wait for does not."""

    async def scenario(host: Host) -> None:
        producer, gave_way = begun(host), asyncio.Event()
        assert await host.groups.stage("g", to_commit(5), by(producer)) == ErrorCode.none
        await host.groups.settled(["g", "h"], gave_way.set)
        assert not gave_way.is_set()
        host.root.reads = asyncio.Event()
        await end(host, producer)
        settled = asyncio.ensure_future(host.groups.settled(["h", "g"], gave_way.set))
        await host.settle()
        assert (gave_way.is_set(), settled.done()) == (True, False)
        host.root.reads.set()
        await settled
        assert offsets(host, "g") == {ORDERS: 5}

    roots.run(scenario)
