"""What is deleted while others commit: what is acknowledged later stays, and nothing is deleted by halves."""

import asyncio
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

import sparklog
from sparklog.metadata import plan_delete_topic
from sparklog_server.groups import expiry
from tests.foreign_records import damage
from tests.server.groups.test_coordinator import WEEK_MS, busy, offsets, to_commit
from tests.support.told import Told

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

_BY_HAND = {"offsets.retention.check.interval.ms": str(1 << 50)}
ORDERS = ("orders", 0)


async def committing(host: Host, group: str, *args: Any, **fields: Any) -> "asyncio.Task[ErrorCode]":
    """A commit that is on its way until `arrive`."""
    host.publisher.hold = True
    task = asyncio.ensure_future(host.groups.commit(group, to_commit(*args, **fields)))
    await host.settle()
    assert not task.done()
    return task


async def arrive(host: Host) -> None:
    """Everything that is on its way."""
    host.publisher.hold = False
    host.publisher.release()
    await host.settle()


async def delete(host: Host, topic: str = "orders", *, made_anew: int = 0) -> None:
    """As brokers do, and clients that leave the offsets there; and show it."""
    host.log.metadata.publish(lambda image: [plan_delete_topic(image, topic)])
    host.root.show()
    await host.settle()
    if made_anew:
        host.log.create_topic(topic, made_anew)
        host.root.show()
        await host.settle()


def test_a_group_that_is_back_when_its_offsets_expire_keeps_what_it_commits(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        await host.advance(WEEK_MS)
        back = await committing(host, "g", 77)
        expiring = asyncio.ensure_future(host.groups.expire())
        await host.settle()
        await arrive(host)
        await expiring
        assert await back == ErrorCode.none
        assert offsets(host, "g") == {ORDERS: 77}

    roots.run(scenario, _BY_HAND)


def test_what_others_have_committed_is_looked_for_before_anything_expires(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        await host.advance(WEEK_MS)
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.commit_offsets("g", {ORDERS: 77})
            await host.groups.expire()
            other.refresh(force=True)
            assert other.committed_offsets("g") == {ORDERS: 77}
        assert offsets(host, "g") == {ORDERS: 77}

    roots.run(scenario, _BY_HAND)


def test_nothing_expires_while_the_root_cannot_be_asked(roots: Roots, monkeypatch: Any) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        await host.advance(WEEK_MS)
        with monkeypatch.context() as patched:

            def refuse(**_: Any) -> None:
                raise busy()

            patched.setattr(host.log, "refresh", refuse)
            await host.groups.expire()
        assert offsets(host, "g") == {ORDERS: 1}
        await host.groups.expire()
        assert offsets(host, "g") == {}

    roots.run(scenario, _BY_HAND)


def test_a_topic_made_anew_keeps_what_is_committed_while_the_old_one_is_forgotten(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        of_partition = {host.groups.shards.partition_of(name): name for name in map(str, range(20))}
        assert len(of_partition) == 3
        for group in of_partition.values():
            assert await host.groups.commit(group, to_commit(5)) == ErrorCode.none
        host.publisher.hold = True
        await delete(host, made_anew=4)
        fresh = [await committing(host, group, 9) for group in of_partition.values()]
        await arrive(host)
        assert [await task for task in fresh] == [ErrorCode.none] * 3
        assert [offsets(host, group) for group in of_partition.values()] == [{ORDERS: 9}] * 3

    roots.run(scenario)


def commit_elsewhere(roots: Roots, group: str, found: dict[tuple[str, int], int]) -> None:
    """As Spark does, and whoever else needs no broker."""
    with sparklog.open(roots.url, clock=roots.clock) as other:
        other.commit_offsets(group, found)


def test_what_others_commit_while_offsets_expire_is_kept(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1) + to_commit(2, topic="returns")) == ErrorCode.none
        await host.advance(WEEK_MS)
        host.publisher.hold = True
        expiring = asyncio.ensure_future(host.groups.expire())
        await host.settle()
        commit_elsewhere(roots, "g", {ORDERS: 77})
        await arrive(host)
        await expiring
        both = {ORDERS: 77, ("returns", 0): 2}  # a group's offsets go together
        with sparklog.open(roots.url, clock=roots.clock) as other:
            assert other.committed_offsets("g") == both
        assert offsets(host, "g") == both

    roots.run(scenario, _BY_HAND)


def test_a_group_that_others_commit_for_while_it_is_deleted_goes_whole(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.delete_group("g"))
        await host.settle()
        commit_elsewhere(roots, "g", {ORDERS: 5, ("returns", 0): 6})
        await arrive(host)
        assert await deleting == ErrorCode.none
        with sparklog.open(roots.url, clock=roots.clock) as other:
            assert other.committed_offsets("g") == {}

    roots.run(scenario)


def test_a_group_that_somebody_joins_while_its_deletion_is_planned_anew_stays(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.delete_group("g"))
        await host.settle()
        commit_elsewhere(roots, "g", {ORDERS: 5})
        joining = host.joins("g")
        await host.advance(0)
        await arrive(host)
        assert await deleting == ErrorCode.non_empty_group
        assert not (await joining).error
        assert offsets(host, "g") == {ORDERS: 5}

    roots.run(scenario)


def test_who_commits_all_the_time_puts_a_deletion_off(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.delete_group("g"))
        for offset in range(2, 20):
            await host.settle()
            if deleting.done():
                break
            commit_elsewhere(roots, "g", {ORDERS: offset})
            host.publisher.release()
        assert await deleting == ErrorCode.coordinator_not_available
        await arrive(host)
        assert offsets(host, "g") == {ORDERS: offset - 1}

    roots.run(scenario)


def test_offsets_that_are_deleted_while_others_commit_go(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1) + to_commit(2, topic="returns")) == ErrorCode.none
        host.publisher.hold = True
        both = [ORDERS, ("returns", 1)]
        deleting = asyncio.ensure_future(host.groups.delete_offsets("g", both))
        await host.settle()
        commit_elsewhere(roots, "g", {("returns", 1): 6})
        await arrive(host)
        assert await deleting == (ErrorCode.none, dict.fromkeys(both, ErrorCode.none))
        assert offsets(host, "g") == {("returns", 0): 2}

    roots.run(scenario)


def test_what_others_commit_for_a_topic_made_anew_is_kept(roots: Roots) -> None:
    """All of it within one look of the broker."""

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(5)) == ErrorCode.none
        with sparklog.open(roots.url, clock=roots.clock) as other:
            # As by a client that leaves the offsets there.
            other.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])
            other.create_topic("orders", 4)
            other.commit_offsets("g", {ORDERS: 9})
        await host.look()
        assert offsets(host, "g") == {ORDERS: 9}

    roots.run(scenario)


def test_what_others_commit_for_a_topic_that_is_gone_goes_with_it(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(5)) == ErrorCode.none
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])
            other.commit_offsets("g", {ORDERS: 9})
        await host.look()
        assert offsets(host, "g") == {}

    roots.run(scenario)


def test_commits_wait_for_no_deletion_but_for_what_it_was_planned_by(roots: Roots) -> None:
    """It is handed over when what was before has arrived; what is behind goes with it, or without."""

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        host.publisher.hold = True
        before = asyncio.ensure_future(host.groups.commit("g", to_commit(2, partition=1)))
        deleting = asyncio.ensure_future(host.groups.delete_offsets("g", [ORDERS]))
        behind = asyncio.ensure_future(host.groups.commit("g", to_commit(3, partition=2)))
        await host.settle()
        assert host.publisher.submissions == [1, 1]  # the first of all, and `before`
        commit_elsewhere(roots, "g", {ORDERS: 77})
        host.publisher.release()
        await host.settle()
        assert before.done()
        assert not deleting.done()
        assert host.publisher.submissions == [1, 1, 1]  # `behind`, for which the next plan waits
        await arrive(host)
        assert host.publisher.submissions == [1, 1, 1, 1]
        assert (await before, await behind) == (ErrorCode.none, ErrorCode.none)
        assert await deleting == (ErrorCode.none, {ORDERS: ErrorCode.none})
        assert offsets(host, "g") == {("orders", 1): 2, ("orders", 2): 3}

    roots.run(scenario)


def test_a_first_commit_on_its_way_goes_with_its_topic(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        late = await committing(host, "g", 1000)
        await delete(host, made_anew=4)
        await arrive(host)
        assert await late == ErrorCode.none
        assert offsets(host, "g") == {}

    roots.run(scenario)


def test_a_group_that_is_deleted_while_it_commits_has_all_of_it_or_nothing(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        host.publisher.hold = True
        both = to_commit(5) + to_commit(6, topic="returns")
        late = asyncio.ensure_future(host.groups.commit("g", both))
        await host.settle()
        deleting = asyncio.ensure_future(host.delete_group("g"))
        await host.settle()
        await arrive(host)
        assert (await late, await deleting) == (ErrorCode.none, ErrorCode.none)
        assert offsets(host, "g") == {}

    roots.run(scenario)


def test_an_offset_on_its_way_can_be_deleted(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        late = await committing(host, "g", 6, partition=1)
        deleting = asyncio.ensure_future(host.groups.delete_offsets("g", [("orders", 1)]))
        await host.settle()
        await arrive(host)
        assert await late == ErrorCode.none
        assert await deleting == (ErrorCode.none, {("orders", 1): ErrorCode.none})
        assert offsets(host, "g") == {ORDERS: 1}
        assert host.publisher.submissions == [1, 1, 1]

    roots.run(scenario)


def test_a_commit_that_failed_is_on_its_way_no_more(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == ErrorCode.none
        held = host.groups.table.offsets_bytes
        host.publisher.error = busy()
        failed = await host.groups.commit("g", to_commit(2, partition=1))
        assert failed == ErrorCode.coordinator_not_available
        await host.settle()
        assert host.groups.table.offsets_bytes == held
        host.publisher.error = None
        gone = asyncio.ensure_future(host.groups.commit("g", to_commit(2, partition=1)))
        await asyncio.sleep(0)
        gone.cancel()  # the connection is
        await host.settle()
        assert host.groups.table.offsets_bytes == held
        submitted = len(host.publisher.submissions)
        assert await host.delete_group("g") == ErrorCode.none
        assert host.publisher.submissions[submitted:] == [1]

    roots.run(scenario)


def test_a_topic_deleted_while_its_offsets_are_loaded_leaves_none(roots: Roots) -> None:
    async def fill(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1000)) == ErrorCode.none

    async def scenario(host: Host) -> None:
        host.root.reads = asyncio.Event()
        await host.groups.start()
        await host.settle()
        await delete(host, made_anew=4)
        host.root.reads.set()
        await host.settle()
        assert offsets(host, "g") == {}

    roots.run(fill)
    roots.run(scenario, start=False)


def test_what_a_damaged_partition_has_of_a_deleted_topic_is_told_of(roots: Roots, told: Told) -> None:
    async def fill(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1000)) == ErrorCode.none
        partition = host.groups.shards.of("g").partition
        await host.groups.stop()
        damage(host.log, "__consumer_offsets", partition)

    async def scenario(host: Host) -> None:
        await delete(host)
        assert "orders" not in host.root.image.topics
        shard = host.groups.shards.of("g").name
        (line,) = [line for line in told("sparklog_server.coordinator") if "restore" in line.lower()]
        assert line.startswith(
            f"what groups have committed for orders, which is deleted, stays where {shard} "
        )

    roots.run(fill)
    roots.run(scenario)


def test_what_could_not_be_deleted_with_its_topic_is_deleted_later(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1000) + to_commit(1000, partition=1)) == ErrorCode.none
        host.publisher.error = busy()
        await delete(host, made_anew=4)
        await host.advance(1_000)  # in vain
        host.publisher.error = None
        assert await host.groups.commit("g", to_commit(7)) == ErrorCode.none  # of the topic that there is now
        await host.advance(1_000)
        assert offsets(host, "g") == {ORDERS: 7}
        submitted = len(host.publisher.submissions)
        await host.advance(10_000)
        assert len(host.publisher.submissions) == submitted

    roots.run(scenario)


def test_many_offsets_go_with_their_topic_in_parts(roots: Roots, monkeypatch: Any) -> None:
    """Nobody else is answered in the turn in which tombstones are made: of 36,000 that took long."""
    monkeypatch.setattr(expiry, "DELETED_AT_ONCE", 3)

    async def scenario(host: Host) -> None:
        for partition in range(8):
            committed = await host.groups.commit("g", to_commit(1, partition=partition))
            assert committed == ErrorCode.none
        before = len(host.publisher.submissions)
        host.publisher.hold = True
        await delete(host)
        assert len(host.publisher.submissions) == before + 1
        await arrive(host)
        assert not offsets(host, "g")
        assert host.publisher.submissions[before:] == [3, 3, 2]

    roots.run(scenario)
