"""Groups whose coordinator changes among several brokers: who has been told what still holds."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.metadata import NO_NODE
from sparklog_server.coordination.shards import LEADER_WAIT_MS
from sparklog_server.groups.messages import GroupState, Leaving
from tests.server.coordination.controller import Controller
from tests.server.groups.test_coordinator import offsets, state, to_commit

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any


async def move(controller: Controller, group: str, taker: Host, *others: Host) -> None:
    """The group's partition is led by `taker` from now on; it sees so first."""
    controller.elect(taker.leadership.node_id, [partition_of(taker, group)])
    for host in (taker, *others):
        await host.look()


def partition_of(host: Host, group: str) -> int:
    return host.groups.shards.partition_of(group)


def identity(member: Any) -> dict[str, Any]:
    return {"member_id": member.member_id, "generation_id": member.generation_id}


def test_members_go_on_at_the_next_coordinator_as_who_they_were(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        me = identity(await first.stable_member("g"))
        assert await first.groups.commit("g", to_commit(5), **me) == ErrorCode.none
        assert second.groups.heartbeat("g", me["member_id"], None, 1) == ErrorCode.not_coordinator
        await move(controller, "g", second, first)
        assert first.groups.heartbeat("g", me["member_id"], None, 1) == ErrorCode.not_coordinator
        assert first.groups.fetch("g") == (ErrorCode.not_coordinator, {})
        assert second.groups.heartbeat("g", me["member_id"], None, 1) == ErrorCode.none
        assert (state(second, "g"), offsets(second, "g")) == (GroupState.STABLE, {("orders", 0): 5})
        assert await second.groups.commit("g", to_commit(6), **me) == ErrorCode.none
        await move(controller, "g", first, second)
        assert offsets(first, "g") == {("orders", 0): 6}
        assert first.groups.heartbeat("g", me["member_id"], None, 1) == ErrorCode.none

    roots.run_two(scenario)


def test_a_commit_that_was_on_its_way_never_takes_a_later_one_back(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        me = identity(await first.stable_member("g"))
        first.publisher.hold = True
        late = asyncio.ensure_future(first.groups.commit("g", to_commit(5), **me))
        await first.settle()
        controller.elect(2, [partition_of(first, "g")])
        await second.look()
        assert await second.groups.commit("g", to_commit(7), **me) == ErrorCode.none
        await move(controller, "g", second, second)
        controller.elect(1, [partition_of(first, "g")])
        first.publisher.hold = False
        first.publisher.release()
        assert await late == ErrorCode.not_coordinator
        await first.settle()
        assert offsets(first, "g") == {("orders", 0): 7}

    roots.run_two(scenario)


def test_who_waits_is_sent_away_at_once(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        await first.stable_member("g")
        joining = first.joins("g")
        leading = await first.join("h")
        first.publisher.hold = True
        syncing = first.syncs("h", leading, a0=b"mine")
        await first.settle()
        controller.elect(2)
        await first.look()
        assert joining.done()
        assert syncing.done()
        assert (await joining).error == ErrorCode.not_coordinator
        assert (await syncing).error == ErrorCode.not_coordinator
        assert (first.groups.table.groups, first.groups.table.held_bytes) == ({}, 0)
        first.publisher.release()
        await first.settle()
        await second.look()
        assert state(second, "h") is None  # no assignment of its generation ever counts
        rejoined = second.joins("h", leading.member_id)
        await second.settle()
        assert (await rejoined).error == ErrorCode.unknown_member_id

    roots.run_two(scenario)


def test_who_waited_is_refused_once_a_newer_image_is_known(roots: Roots) -> None:
    async def scenario(first: Host, _second: Host, controller: Controller) -> None:
        joining = first.joins("g")
        await first.settle()
        controller.elect(2)
        first.log.refresh(force=True)  # known, and not shown yet
        assert not joining.done()
        await first.advance(101)
        assert (await joining).error == ErrorCode.not_coordinator

    roots.run_two(scenario, {"group.initial.rebalance.delay.ms": "100"})


def test_static_members_stay(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        member = await first.stable_member("g", instance_id="i")
        await move(controller, "g", second, first)
        assert second.groups.heartbeat("g", member.member_id, "i", 1) == ErrorCode.none
        again = await second.joins("g", instance_id="i", can_skip_assignment=True)
        assert (again.error, again.generation_id) == (ErrorCode.none, 1)
        assert second.groups.heartbeat("g", member.member_id, "i", 1) == ErrorCode.fenced_instance_id

    roots.run_two(scenario)


def test_sessions_begin_anew(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        me = identity(await first.stable_member("g", session_timeout_ms=500))
        roots.clock.advance_ms(450)
        await move(controller, "g", second, first)
        await second.advance(499)
        assert state(second, "g") is GroupState.STABLE
        await second.advance(2)
        assert state(second, "g") is GroupState.EMPTY
        assert second.groups.heartbeat("g", me["member_id"], None, 1) == ErrorCode.unknown_member_id

    roots.run_two(scenario)


def test_they_begin_when_all_groups_are_loaded_and_the_loop_has_its_turns_meanwhile(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklog_server.groups.table.RESTORED_AT_ONCE", 1)
    monkeypatch.setattr("sparklog_server.groups.table.WOKEN_AT_ONCE", 1)

    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        names = [f"g{number}" for number in range(4)]
        members = {name: await first.stable_member(name, session_timeout_ms=500) for name in names}
        controller.elect(2)
        second.log.refresh(force=True)
        second.root.show()
        loading, taken_up = ErrorCode.coordinator_load_in_progress, set[int]()
        while second.groups.describe_error("g0") == loading:
            taken_up.add(len(second.groups.table.groups))
            roots.clock.advance_ms(200)
            second.timer.run_due()
            await asyncio.sleep(0)
        assert taken_up >= {1, 2, 3}
        await second.settle()
        await second.advance(450)
        for name, member in members.items():
            assert second.groups.heartbeat(name, member.member_id, None, 1) == ErrorCode.none
        await second.advance(501)
        assert [state(second, name) for name in names] == [GroupState.EMPTY] * 4

    roots.run_two(scenario, {"offsets.topic.num.partitions": "1"})


def test_each_broker_lists_and_forgets_its_own(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        names = [f"g{number}" for number in range(6)]
        for name in names:
            assert await first.groups.commit(name, to_commit(1)) == ErrorCode.none
        controller.elect(2, [0])
        await first.look()
        await second.look()
        theirs = [name for name in names if partition_of(first, name) == 0]
        ours = [name for name in names if name not in theirs]
        assert theirs
        assert ours
        assert sorted(one.group_id for one in first.groups.list_groups()[1]) == ours
        assert sorted(one.group_id for one in second.groups.list_groups()[1]) == theirs
        second.log.delete_topic("returns")  # of which nobody has committed anything
        roots.clock.advance_ms(8 * 86_400_000)
        await first.groups.expire()
        await second.look()
        assert first.groups.list_groups()[1] == []
        assert sorted(one.group_id for one in second.groups.list_groups()[1]) == theirs
        for name in theirs:
            assert await first.delete_group(name) == ErrorCode.not_coordinator
            assert await second.delete_group(name) == ErrorCode.none

    roots.run_two(scenario)


def test_offsets_of_a_deleted_topic_go_at_whoever_coordinates_them(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        assert await first.groups.commit("g", to_commit(1) + to_commit(2, "returns")) == ErrorCode.none
        await move(controller, "g", second)
        first.log.delete_topic("returns")
        await first.look()
        await second.look()
        assert offsets(second, "g") == {("orders", 0): 1}
        await move(controller, "g", first, second)
        assert offsets(first, "g") == {("orders", 0): 1}

    roots.run_two(scenario)


def test_offsets_that_were_committed_without_a_broker_are_everybodys(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        me = identity(await first.stable_member("g"))
        assert await first.groups.commit("g", to_commit(1), **me) == ErrorCode.none
        first.log.commit_offsets("g", {("orders", 1): 2})
        await first.look()
        assert offsets(first, "g") == {("orders", 0): 1, ("orders", 1): 2}
        controller.elect(2)
        second.log.commit_offsets("g", {("orders", 2): 3})
        await second.look()
        assert offsets(second, "g") == {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 3}
        assert (await second.groups.leave("g", [Leaving(member_id=me["member_id"])]))[0] == ErrorCode.none

    roots.run_two(scenario)


class TestFinding:
    def test_each_group_is_where_its_partition_is_led(self, roots: Roots) -> None:
        async def scenario(first: Host, second: Host, controller: Controller) -> None:
            names = [f"g{number}" for number in range(9)]
            controller.elect(2, [0])
            for host in (first, second):
                await host.look()
                found = await host.groups.shards.coordinators_of(names)
                assert found == [2 if partition_of(host, name) == 0 else 1 for name in names]
                assert set(found) == {1, 2}

        roots.run_two(scenario)

    def test_a_partition_without_a_leader_is_waited_for(self, roots: Roots) -> None:
        async def scenario(_first: Host, second: Host, controller: Controller) -> None:
            controller.elect(NO_NODE)
            await second.look()
            finding = asyncio.ensure_future(second.groups.shards.coordinators_of(["g"]))
            await second.settle()
            second.log.create_topic("news", 1)  # of something else
            await second.advance(LEADER_WAIT_MS - 1)
            assert not finding.done()
            controller.elect(1)
            await second.look()
            assert await finding == [1]

        roots.run_two(scenario)

    def test_but_not_for_long(self, roots: Roots) -> None:
        async def scenario(_first: Host, second: Host, controller: Controller) -> None:
            controller.elect(NO_NODE, [partition_of(second, "g")])
            await second.look()
            finding = asyncio.ensure_future(second.groups.shards.coordinators_of(["g"]))
            await second.settle()
            await second.advance(LEADER_WAIT_MS - 1)
            assert not finding.done()
            await second.advance(20)
            assert finding.done()
            assert await finding == [NO_NODE]

        roots.run_two(scenario)

    def test_others_need_not_wait(self, roots: Roots) -> None:
        async def scenario(_first: Host, second: Host, controller: Controller) -> None:
            controller.elect(NO_NODE, [partition_of(second, "g0")])
            await second.look()
            other = next(
                name
                for name in (f"g{number}" for number in range(9))
                if partition_of(second, name) != partition_of(second, "g0")
            )
            assert await second.groups.shards.coordinators_of([other]) == [1]

        roots.run_two(scenario)

    def test_who_gives_up_leaves_nothing_behind(self, roots: Roots) -> None:
        async def scenario(_first: Host, second: Host, controller: Controller) -> None:
            controller.elect(NO_NODE)
            await second.look()
            finding = asyncio.ensure_future(second.groups.shards.coordinators_of(["g"]))
            await second.settle()
            finding.cancel()
            await second.settle()
            assert finding.cancelled()
            assert not second.groups.shards.wanting_news

        roots.run_two(scenario)

    def test_without_the_topic_there_is_nobody(self, roots: Roots) -> None:
        async def scenario(host: Host) -> None:
            assert await host.groups.shards.coordinators_of(["g", "h"]) == [NO_NODE, NO_NODE]
            assert not await host.groups.ensure_topic()
            assert await host.groups.shards.coordinators_of(["g", "h"]) == [1, 1]

        roots.run(scenario)
