"""Deletions are planned by what is in the log and on its way to it: neither more nor less, nor twice."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.metadata import plan_delete_topic
from sparklog_server.groups.messages import GroupState, Leaving
from sparklog_server.publish.parts import PartOutcome
from tests.server.groups.test_coordinator import WEEK_MS, busy, offsets, to_commit
from tests.server.groups.test_coordinator_tombstones import ORDERS, arrive, commit_elsewhere, delete
from tests.support.told import Told

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

IN_ONE = {"offsets.topic.num.partitions": "1", "offsets.retention.check.interval.ms": str(1 << 50)}
NONE = ErrorCode.none
RETRIES_MS = 2_000


def in_the_log(roots: Roots, group: str = "g") -> dict[tuple[str, int], int]:
    with sparklog.open(roots.url, clock=roots.clock) as other:
        return dict(other.committed_offsets(group))


async def begin_anew(host: Host, topic: str = "orders") -> None:
    """The same name, and time for whatever is still to be done."""
    await host.advance(RETRIES_MS)
    host.log.create_topic(topic, 4)
    host.root.show()
    await host.settle()
    await host.advance(RETRIES_MS)


# --- where it is planned for --------------------------------------------------------------------------


def test_what_was_read_before_it_was_told_of_is_not_counted_twice(roots: Roots) -> None:
    """The deletion was planned one offset too far behind, and took what others had committed there."""

    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.advance(WEEK_MS)
        publisher = host.publisher
        publisher.hold = True
        own = asyncio.ensure_future(host.groups.commit("h", to_commit(5, "returns")))
        await host.settle()
        ((parts, told),), publisher.held = publisher.held, []
        base_offset = publisher.append_at_once(parts[0])  # durable, and its outcome on its way
        expiring = asyncio.ensure_future(host.groups.expire())
        await host.settle()
        early = [part.at_offset for parts, _ in publisher.held for part in parts]
        told.set_result([PartOutcome(base_offset=base_offset)])
        await host.settle()
        commit_elsewhere(roots, "g", {ORDERS: 77})
        await arrive(host)
        await expiring
        await host.look()
        assert await own == NONE
        assert early in ([], [base_offset + 1])
        assert in_the_log(roots) == offsets(host, "g") == {ORDERS: 77}

    roots.run(scenario, IN_ONE)


def test_nor_is_what_is_told_of_while_the_log_is_read(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.advance(WEEK_MS)
        publisher = host.publisher
        publisher.hold = True
        expiring = asyncio.ensure_future(host.groups.expire())
        await host.settle()
        ((planned, planned_told),), publisher.held = publisher.held, []
        commit_elsewhere(roots, "x", {("returns", 0): 3})  # overtakes the plan
        own = asyncio.ensure_future(host.groups.commit("h", to_commit(5, "returns")))
        await host.settle()
        ((parts, told),), publisher.held = publisher.held, []
        refused = publisher.stage_at_once(planned[0])
        base_offset = publisher.append_at_once(parts[0])
        host.root.reads = asyncio.Event()  # storage takes a moment
        planned_told.set_result([refused])
        host.root.show()
        await host.settle()
        told.set_result([PartOutcome(base_offset=base_offset)])
        await host.settle()
        host.root.reads.set()
        await host.settle()
        commit_elsewhere(roots, "g", {ORDERS: 77})
        await arrive(host)
        await expiring
        await host.look()
        assert await own == NONE
        assert in_the_log(roots) == offsets(host, "g") == {ORDERS: 77}

    roots.run(scenario, IN_ONE)


@pytest.mark.parametrize("is_read", [False, True])
def test_what_fails_is_not_made_up_for_by_as_many_records_of_others(roots: Roots, is_read: bool) -> None:
    """A deletion was planned behind a commit of ours that failed, and was in its place behind Spark's."""

    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.advance(WEEK_MS)
        publisher = host.publisher
        publisher.hold = True
        own = asyncio.ensure_future(host.groups.commit("h", to_commit(5, "returns")))
        await host.settle()
        expiring = asyncio.ensure_future(host.groups.expire())
        await host.settle()
        (_, told), *publisher.held = publisher.held
        commit_elsewhere(roots, "g", {ORDERS: 77})
        if is_read:
            host.log.refresh()
            assert await host.groups.shards.of("g").catch_up()
        told.set_result([PartOutcome(error=busy())])
        await host.settle()
        await arrive(host)
        await expiring
        await host.look()
        assert await own == ErrorCode.coordinator_not_available
        assert in_the_log(roots) == offsets(host, "g") == {ORDERS: 77}

    roots.run(scenario, IN_ONE)


def test_who_commits_all_the_time_does_not_put_a_deletion_off(roots: Roots, told: Told) -> None:
    """What is on its way is counted on: it is planned once."""

    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        host.publisher.hold = True
        own = asyncio.ensure_future(host.groups.commit("h", to_commit(5, "returns")))
        await host.settle()
        deleting = asyncio.ensure_future(host.delete_group("g"))
        await host.settle()
        await arrive(host)
        assert (await own, await deleting) == (NONE, NONE)

    roots.run(scenario, IN_ONE)
    assert told("sparklog_server.coordinator") == []


# --- what is told -------------------------------------------------------------------------------------


def test_nobody_is_told_of_a_deletion_before_it_is_durable(roots: Roots) -> None:
    """Who came second found nothing to delete, and was told so; then the first one's tombstones failed."""

    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        host.publisher.hold = True
        first = asyncio.ensure_future(host.groups.delete_groups(["g"]))
        await host.settle()
        others = [
            asyncio.ensure_future(host.groups.delete_groups(["g"])),
            asyncio.ensure_future(host.groups.delete_offsets("g", [ORDERS])),
        ]
        await host.settle()
        assert not any(one.done() for one in others)
        host.publisher.error = busy()
        host.publisher.release()
        await host.settle()
        host.publisher.error = None
        await arrive(host)
        assert await first == {"g": ErrorCode.coordinator_not_available}
        assert [await one for one in others] == [{"g": NONE}, (NONE, {ORDERS: NONE})]
        assert in_the_log(roots) == offsets(host, "g") == {}

    roots.run(scenario, IN_ONE)


def test_an_empty_deletion_does_not_wait_for_who_comes_later(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1, partition=1))
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.groups.delete_offsets("g", [ORDERS]))
        await host.settle()
        assert deleting.done()
        assert await deleting == (NONE, {ORDERS: NONE})
        await arrive(host)

    roots.run(scenario, IN_ONE)


# --- topics that are deleted --------------------------------------------------------------------------


def test_what_was_not_read_when_a_topic_was_deleted_goes_with_it(roots: Roots) -> None:
    """A Spark query commits, and the topic is deleted, between two looks: 49 of 60 such offsets stayed, and
    the group began the next topic of that name at 1,000.
    """

    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        await host.settle()
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.commit_offsets("g", {ORDERS: 1000, ("returns", 0): 5})
            other.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])
        await host.look()
        await begin_anew(host)
        assert in_the_log(roots) == offsets(host, "g") == {("returns", 0): 5}

    roots.run(scenario, IN_ONE)


def test_and_what_is_committed_for_the_next_one_stays(roots: Roots) -> None:
    """Although all of it is read together."""

    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        await host.settle()
        host.root.reads = asyncio.Event()  # storage takes a moment
        with sparklog.open(roots.url, clock=roots.clock) as other:
            other.commit_offsets("g", {ORDERS: 1000, ("orders", 1): 6})
            other.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])
        host.log.refresh()
        host.root.show()
        await host.settle()
        host.log.create_topic("orders", 4)
        host.root.show()
        commit_elsewhere(roots, "g", {ORDERS: 7})
        host.log.refresh()
        host.root.show()
        await host.settle()
        host.root.reads.set()
        await host.settle()
        await host.advance(RETRIES_MS)
        assert in_the_log(roots) == offsets(host, "g") == {ORDERS: 7}

    roots.run(scenario, IN_ONE)


def test_so_it_is_where_a_partition_was_being_loaded(roots: Roots) -> None:
    async def first(host: Host) -> None:
        await host.groups.commit("g", [*to_commit(1000), *to_commit(6, partition=1)])

    async def scenario(host: Host) -> None:
        host.root.reads = asyncio.Event()
        await host.groups.start()
        await host.settle()
        assert host.groups.fetch("g")[0] == ErrorCode.coordinator_load_in_progress
        await delete(host, "orders", made_anew=4)
        commit_elsewhere(roots, "g", {ORDERS: 7})
        await host.look()
        host.root.reads.set()
        await host.settle()
        await host.advance(RETRIES_MS)
        assert in_the_log(roots) == offsets(host, "g") == {ORDERS: 7}

    roots.run(first, IN_ONE)
    roots.run(scenario, IN_ONE, start=False)


def test_a_topics_offsets_go_though_a_deletion_of_them_has_failed(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1000))
        host.publisher.hold = True
        deleting = asyncio.ensure_future(host.groups.delete_groups(["g"]))
        await host.settle()
        await delete(host, "orders")
        host.publisher.error = busy()
        await arrive(host)
        host.publisher.error = None
        assert await deleting == {"g": ErrorCode.coordinator_not_available}
        await begin_anew(host)
        assert in_the_log(roots) == offsets(host, "g") == {}

    roots.run(scenario, IN_ONE)


# --- groups that are deleted --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_who_comes_and_goes_while_a_group_goes_leaves_one(roots: Roots, how: str) -> None:
    """It was gone until the next start, and then there again: its last generation is behind the tombstone."""

    async def scenario(host: Host) -> None:
        member = await host.stable_member("g")
        await host.groups.leave("g", [Leaving(member_id=member.member_id)])
        await host.settle()
        host.publisher.hold = True
        goes = host.groups.delete_groups(["g"]) if how == "deleted" else host.groups.expire()
        going = asyncio.ensure_future(goes)
        await host.settle()
        joining = host.joins("g")
        await host.advance(0)
        await host.advance(1)
        await host.groups.leave("g", [Leaving(member_id=(await joining).member_id)])
        await host.settle()
        await arrive(host)
        await going
        listed(host)

    async def after_restart(host: Host) -> None:
        listed(host)

    def listed(host: Host) -> None:
        error, (group,) = host.groups.list_groups()
        assert (error, group.group_id, group.state) == (NONE, "g", GroupState.EMPTY)

    roots.run(scenario, IN_ONE)
    roots.run(after_restart, IN_ONE)


def test_a_group_in_which_an_id_was_given_out_is_deleted(roots: Roots) -> None:
    """It was answered as deleted, and stayed."""

    async def scenario(host: Host) -> None:
        member = await host.stable_member("g")
        await host.groups.leave("g", [Leaving(member_id=member.member_id)])
        await host.settle()
        given = await host.joins("g", needs_member_id=True)
        assert given.error == ErrorCode.member_id_required
        assert await host.groups.delete_groups(["g"]) == {"g": NONE}
        assert host.groups.list_groups() == (NONE, [])
        assert (await host.join("g", given.member_id)).error == ErrorCode.unknown_member_id

    roots.run(scenario, IN_ONE)


# --- room ---------------------------------------------------------------------------------------------

SMALL = IN_ONE | {"sparklog.group.max.record.bytes": str(64 << 10), "group.max.size": "2"}


def test_a_static_members_new_client_id_counts(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.join("g", instance_id="i", client_id="")
        group = host.groups.find("g")
        assert group is not None
        before = group.members.record_bytes
        await host.join("g", instance_id="i", client_id="\u4e16" * 255)
        assert group.members.record_bytes >= before + 3 * 255

    roots.run(scenario, SMALL)


def test_an_assignment_that_is_too_large_is_an_end_for_all_who_wait_for_it(roots: Roots) -> None:
    """Followers waited for as long as a rebalance may take."""

    async def scenario(host: Host) -> None:
        joins = [host.joins("g", rebalance_timeout_ms=300_000) for _ in range(2)]
        await host.advance(0)
        await host.advance(1)
        leader, follower = sorted([await one for one in joins], key=lambda one: one.member_id != one.leader)
        waiting = host.syncs("g", follower, a0=bytes(70_000))  # what it assigns is nothing
        await host.settle()
        assert not waiting.done()
        too_large = await host.syncs("g", leader, a0=bytes(40_000), a1=bytes(40_000))
        assert too_large.error == (await waiting).error == ErrorCode.unknown_server_error
        group = host.groups.find("g")
        assert group is not None
        assert group.state is GroupState.PREPARING_REBALANCE

    roots.run(scenario, SMALL)


def test_a_static_member_comes_back_to_a_group_that_is_full(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        joins = [host.joins("g", instance_id=f"i{number}") for number in range(2)]
        await host.advance(0)
        await host.advance(1)
        joined = [await one for one in joins]
        leader = next(one for one in joined if one.member_id == one.leader)
        syncs = [host.syncs("g", one) for one in joined]
        await host.settle()
        assert [(await one).error for one in syncs] == [NONE, NONE]
        assert (await host.join("g", instance_id="i2")).error == ErrorCode.group_max_size_reached
        back = host.joins("g", instance_id="i0" if joined[0] is not leader else "i1")
        await host.settle()
        assert (await back).error == NONE

    roots.run(scenario, SMALL)


def test_who_is_nobody_is_told_so_whatever_room_there_is(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        protocols: dict[str, Any] = {"protocols": (("range", bytes(40_000)),)}
        await host.join("g", instance_id="i", **protocols)
        too_much: dict[str, Any] = {"protocols": (("range", bytes(70_000)),)}
        fenced = await host.join("g", "an older id", instance_id="i", **too_much)
        assert fenced.error == ErrorCode.fenced_instance_id
        unknown = await host.join("g", "nobody", **too_much)
        assert unknown.error == ErrorCode.unknown_member_id

    roots.run(scenario, SMALL)
