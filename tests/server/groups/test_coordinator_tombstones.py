"""What is deleted while others commit: what is acknowledged later stays, and nothing is deleted by halves."""

import asyncio
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

import sparklog
from tests.foreign_records import append_foreign
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
    """And show it."""
    host.log.delete_topic(topic)
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
        deleting = asyncio.ensure_future(host.groups.delete_group("g"))
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
        assert await host.groups.delete_group("g") == ErrorCode.none
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
        append_foreign(host.log, "__consumer_offsets", partition, [(b"\x00\x63", b"x")])

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
