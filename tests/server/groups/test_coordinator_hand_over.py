"""Groups whose partition of __consumer_offsets another broker leads, or comes to lead."""

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog_server.groups.messages import Leaving
from tests.foreign_records import append_foreign
from tests.server.groups.test_coordinator import offsets, to_commit

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

TOPIC = "__consumer_offsets"


def two_groups(host: Host) -> tuple[str, str]:
    """Two that do not share a partition."""
    first, *others = (f"g{number}" for number in range(9))
    partition = host.groups.shards.of(first).partition
    return first, next(one for one in others if host.groups.shards.of(one).partition != partition)


async def hand_over(host: Host, group: str) -> None:
    """A commit says that another broker leads the group's partition."""
    partition = host.groups.shards.of(group).partition
    host.leadership.led_by_others.add(partition)
    append_foreign(host.log, TOPIC, partition, [(None, b"changes the partition, and nothing else")])
    host.root.show()
    await host.settle()


def test_requests_about_a_group_of_another_broker_are_sent_there(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        theirs, ours = two_groups(host)
        members = {group: await host.stable_member(group) for group in (theirs, ours)}
        await hand_over(host, theirs)
        elsewhere = ErrorCode.not_coordinator
        me = members[theirs].member_id
        assert (await host.join(theirs)).error == elsewhere
        assert (await host.syncs(theirs, members[theirs])).error == elsewhere
        assert host.groups.heartbeat(theirs, me, None, 1) == elsewhere
        assert await host.groups.leave(theirs, [Leaving(member_id=me)]) == (elsewhere, [])
        assert await host.groups.commit(theirs, to_commit(1), member_id=me, generation_id=1) == elsewhere
        assert host.groups.fetch(theirs) == (elsewhere, {})
        assert await host.groups.delete_offsets(theirs, [("orders", 0)]) == (elsewhere, {})
        assert await host.delete_group(theirs) == elsewhere
        assert host.groups.describe_error(theirs) == elsewhere
        assert [one.group_id for one in host.groups.list_groups()[1]] == [ours]
        assert not host.groups.exists(theirs)
        assert host.groups.heartbeat(ours, members[ours].member_id, None, 1) == ErrorCode.none
        assert host.groups.table.held_bytes == host.groups.table.groups[ours].held_bytes

    roots.run(scenario)


def test_who_waits_is_sent_to_the_next_coordinator(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        theirs, ours = two_groups(host)
        await host.stable_member(theirs)
        await host.stable_member(ours)
        joins = [host.joins(theirs), host.joins(ours)]
        await host.settle()
        await hand_over(host, theirs)
        assert joins[0].done()
        assert (await joins[0]).error == ErrorCode.not_coordinator
        assert not joins[1].done()
        joins[1].cancel()

    roots.run(scenario)


def test_a_group_that_comes_back_is_as_the_log_has_it(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        member = await host.stable_member("g")
        me: dict[str, Any] = {"member_id": member.member_id, "generation_id": 1}
        assert await host.groups.commit("g", to_commit(1), **me) == ErrorCode.none
        await hand_over(host, "g")
        host.log.commit_offsets("g", {("orders", 1): 5})
        host.leadership.led_by_others.clear()
        host.log.commit_offsets("g", {("orders", 2): 6})
        host.root.show()
        assert host.groups.fetch("g")[0] == ErrorCode.coordinator_load_in_progress
        await host.settle()
        assert offsets(host, "g") == {("orders", 0): 1, ("orders", 1): 5, ("orders", 2): 6}
        assert host.groups.heartbeat("g", member.member_id, None, 1) == ErrorCode.none

    roots.run(scenario)
