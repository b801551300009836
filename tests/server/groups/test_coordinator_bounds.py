"""What a coordinator holds is bounded, and given back."""

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import GroupValue, encode_group_value
from sparklog.log.setting import declared_settings
from sparklog_server.groups.coordinator import MAX_PROTOCOLS
from sparklog_server.groups.members import MEMBER_BYTES, PENDING_BYTES, protocols_bytes, record_bytes
from sparklog_server.groups.messages import GroupState, Leaving, SyncRequest
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.settings.groups import GroupSettings
from tests.server.groups.test_coordinator import to_commit
from tests.server.groups.test_offsets_staged import begun, by, end

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any


def test_refused_joins(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert (await host.join("")).error == ErrorCode.invalid_group_id
        assert (await host.join("g", session_timeout_ms=9)).error == ErrorCode.invalid_session_timeout
        assert (await host.join("g", session_timeout_ms=2**31)).error == ErrorCode.invalid_session_timeout
        assert (await host.join("g", "stranger")).error == ErrorCode.unknown_member_id
        assert (await host.join("g", instance_id="")).error == ErrorCode.invalid_request
        assert (await host.join("g", instance_id="i" * 250)).error == ErrorCode.invalid_request
        long = (("r" * 32_768, b""),)
        assert (await host.join("g", protocols=long)).error == ErrorCode.invalid_request
        assert (await host.join("g", protocol_type="c" * 32_768)).error == ErrorCode.invalid_request
        assert (await host.join("g" * 32_768)).error == ErrorCode.invalid_group_id
        assert await host.groups.commit("ö" * 16_384, to_commit(1)) == ErrorCode.invalid_group_id
        assert (await host.join("g", protocols=())).error == ErrorCode.inconsistent_group_protocol
        assert host.groups.list_groups() == (ErrorCode.none, [])  # nothing is left of them

    roots.run(scenario)


def test_a_member_has_a_hundred_protocols_at_most(roots: Roots) -> None:
    """A hundred members with 7,000 empty ones each took 91 MiB, of which the bytes of names were a fifth."""

    async def scenario(host: Host) -> None:
        def protocols(count: int) -> tuple[tuple[str, bytes], ...]:
            return tuple((f"p{number}", b"") for number in range(count))

        refused = await host.join("g", protocols=protocols(MAX_PROTOCOLS + 1))
        assert refused.error == ErrorCode.inconsistent_group_protocol
        assert host.groups.find("g") is None
        assert not (await host.join("g", protocols=protocols(MAX_PROTOCOLS))).error

    roots.run(scenario)


def test_the_number_of_groups_is_bounded(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.stable_member("g1")
        assert await host.groups.commit("g2", to_commit(1)) == ErrorCode.none
        assert (await host.join("g3")).error == ErrorCode.group_max_size_reached
        assert await host.groups.commit("g3", to_commit(1)) == ErrorCode.group_max_size_reached
        assert await host.groups.commit("g2", to_commit(2)) == ErrorCode.none
        second = host.joins("g1")  # a group that is there takes members
        await host.settle()
        assert not second.done()

    roots.run(scenario, {"sparklog.group.max.groups": "2"})


def test_what_committed_offsets_hold_is_bounded(roots: Roots) -> None:
    """Of all groups together, whoever commits: notes and names count as well."""

    note = "m" * 32_000

    def commit(*partitions: int, metadata: str = note) -> list[OffsetToCommit]:
        return [
            OffsetToCommit(topic="orders", partition=number, offset=1, metadata=metadata)
            for number in partitions
        ]

    async def scenario(host: Host) -> None:
        table = host.groups.table
        assert await host.groups.commit("g1", commit(*range(30))) == ErrorCode.none
        assert await host.groups.commit("g1", commit(30, 31, 32)) == ErrorCode.invalid_commit_offset_size
        assert await host.groups.commit("g2", commit(0, 1, 2)) == ErrorCode.invalid_commit_offset_size
        # Whoever is there goes on, as long as that takes no more.
        assert await host.groups.commit("g1", commit(*range(30))) == ErrorCode.none
        assert await host.groups.commit("g2", commit(0, metadata="")) == ErrorCode.none
        held = table.offsets_bytes
        assert await host.groups.commit("g1", commit(0, 1, metadata="")) == ErrorCode.none
        assert table.offsets_bytes == held - 64_000
        assert await host.groups.commit("g2", commit(1, 2)) == ErrorCode.none
        for group in ("g1", "g2"):
            assert not await host.delete_group(group)
        assert table.offsets_bytes == 0

    roots.run(scenario, {"sparklog.group.max.offset.bytes": str(1 << 20)})


async def _at_once(host: Host, groups: int, **fields: Any) -> list[ErrorCode]:
    """First commits of many groups, all of which are on their way together."""
    await host.groups.ensure_topic()
    host.publisher.hold = True
    tasks = [
        asyncio.ensure_future(host.groups.commit(f"g{number}", to_commit(1, **fields)))
        for number in range(groups)
    ]
    await host.settle()
    host.publisher.hold = False
    host.publisher.release()
    return [await task for task in tasks]


def test_groups_whose_commits_are_on_their_way_count(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        errors = await _at_once(host, 50)
        assert errors == [ErrorCode.none] * 10 + [ErrorCode.group_max_size_reached] * 40
        assert len(host.groups.list_groups()[1]) == 10

    roots.run(scenario, {"sparklog.group.max.groups": "10"})


def test_a_group_counts_once_while_it_commits(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await _at_once(host, 9) == [ErrorCode.none] * 9
        assert await _at_once(host, 10) == [ErrorCode.none] * 10

    roots.run(scenario, {"sparklog.group.max.groups": "10"})


def test_groups_that_have_only_staged_count(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        producer = begun(host)

        async def staged(group: str) -> ErrorCode:
            return await host.groups.stage(group, to_commit(5), by(producer))

        assert [await staged(f"g{number}") for number in range(2)] == [ErrorCode.none] * 2
        assert await staged("g2") == ErrorCode.group_max_size_reached
        assert await host.groups.commit("g2", to_commit(1)) == ErrorCode.group_max_size_reached
        assert await host.groups.commit("g1", to_commit(1)) == ErrorCode.none
        assert await staged("g1") == ErrorCode.none
        await end(host, producer)
        assert len(host.groups.list_groups()[1]) == 2

    roots.run(scenario, {"sparklog.group.max.groups": "2"})


def test_offsets_that_are_on_their_way_count(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        errors = await _at_once(host, 500, metadata="x" * 4_000)
        assert set(errors) == {ErrorCode.none, ErrorCode.invalid_commit_offset_size}
        most = 1 << 20
        assert most - 5_000 < host.groups.table.offsets_bytes <= most

    roots.run(scenario, {"sparklog.group.max.offset.bytes": str(1 << 20)})


def test_what_members_hold_is_bounded(roots: Roots) -> None:
    def protocols(size: int) -> dict[str, Any]:
        return {"protocols": (("range", bytes(size)),)}

    async def scenario(host: Host) -> None:
        table = host.groups.table
        first = await host.join("g1", **protocols(400_000))
        assert not (await host.syncs("g1", first, a0=bytes(200_000))).error
        of_member = protocols_bytes((("range", bytes(400_000)),))
        assert table.held_bytes == of_member + 200_000
        assert (await host.join("g2", **protocols(500_000))).error == ErrorCode.group_max_size_reached
        second = await host.join("g2", **protocols(400_000))
        assert not second.error
        too_much = await host.syncs("g2", second, a0=bytes(200_000))
        assert too_much.error == ErrorCode.unknown_server_error
        # Who is there may go on as before, but not grow.
        assert not (await host.join("g1", first.member_id, **protocols(400_000))).error
        grown = await host.join("g1", first.member_id, **protocols(500_000))
        assert grown.error == ErrorCode.group_max_size_reached
        for group, member in (("g1", first), ("g2", second)):
            await host.groups.leave(group, [Leaving(member_id=member.member_id)])
        assert table.held_bytes == 0

    roots.run(scenario, {"sparklog.group.max.bytes": str(1 << 20)})


def test_what_one_group_holds_fits_its_record(roots: Roots) -> None:
    """All of it is written, and told to its leader, together: of 69 MB each answer took 132 MiB."""

    def protocols(size: int) -> dict[str, Any]:
        return {"protocols": (("range", bytes(size)), ("sticky", bytes(10))), "instance_id": "i"}

    async def scenario(host: Host) -> None:
        first = await host.join("g", **protocols(40_000))
        assert not (await host.syncs("g", first, a0=bytes(20_000))).error
        refused = host.joins("g", protocols=(("range", bytes(10_000)),))
        await host.settle()
        assert refused.done()  # else it would wait for the other one
        assert (await refused).error == ErrorCode.group_max_size_reached
        assert not (await host.join("other", protocols=(("range", bytes(60_000)),))).error
        # Who is there may go on as before, but not grow.
        again = await host.join("g", **protocols(40_000))
        assert not again.error
        grown = await host.join("g", again.member_id, **protocols(50_000))
        assert grown.error == ErrorCode.group_max_size_reached
        assert not (await host.join("g", again.member_id, **protocols(40_000))).error
        rejoined = await host.join("g", again.member_id, **protocols(30_000))
        assert not rejoined.error
        too_much = await host.syncs("g", rejoined, a0=bytes(40_000))
        assert too_much.error == ErrorCode.unknown_server_error
        rejoined = await host.join("g", rejoined.member_id, **protocols(30_000))
        assert not (await host.syncs("g", rejoined, a0=bytes(30_000))).error
        await host.groups.leave("g", [Leaving(member_id=rejoined.member_id)])
        group = host.groups.find("g")
        assert group is not None
        assert (group.members.record_bytes, group.members.assignment_bytes) == (0, 0)

    roots.run(scenario, {"sparklog.group.max.record.bytes": str(64 << 10)})


def test_a_groups_record_is_no_longer_than_was_counted(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        tasks = [host.joins("g", instance_id=f"ö{number}", client_id="ä") for number in range(3)]
        await host.advance(0)
        await host.advance(1)
        joined = [await task for task in tasks]
        leader = next(one for one in joined if one.members)
        await host.syncs("g", leader, a0=b"A", a1=b"BB")
        group = host.groups.find("g")
        assert group is not None
        assignments = {one.member_id: one.assignment for one in group.members}
        members = group.members.stored_members("range", assignments)
        value = GroupValue(protocol_type="", generation_id=1, protocol=None, leader=None, members=members)
        none = len(encode_group_value(dataclasses.replace(value, members=())))
        taken = len(encode_group_value(value)) - none
        assert taken == group.members.record_bytes + group.members.assignment_bytes

    roots.run(scenario)


def test_the_longest_group_that_may_be_set_is_written(roots: Roots) -> None:
    """With names as long as they may be, which are not counted: they are the group's, not a member's."""
    _, setting = declared_settings(GroupSettings)["sparklog.group.max.record.bytes"]
    longest, name = setting.maximum, "n" * 32_767
    assert longest is not None
    instance_id, client_id = "i", "client"
    names = ("client-" + "0" * 36, instance_id, client_id, "/127.0.0.1")
    data = bytes(int(longest) - 200 - record_bytes(names, ()))

    async def scenario(host: Host) -> None:
        fields: dict[str, Any] = {
            "protocol_type": name,
            "instance_id": instance_id,
            "protocols": ((name, data),),
        }
        joined = await host.join(name, **fields)
        assert not joined.error
        assert not (await host.syncs(name, joined, a0=bytes(100))).error
        fields["protocols"] = ((name, data + bytes(400)),)
        grown = await host.join(name, joined.member_id, **fields)
        assert grown.error == ErrorCode.group_max_size_reached  # by the setting, and not by the record

    roots.run(scenario, {setting.key: str(longest)})


def test_an_assignment_that_fits_no_record_is_refused(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        joined = await host.join("g")
        commit = asyncio.ensure_future(host.groups.commit("other", to_commit(1)))
        synced = await host.syncs("g", joined, a0=bytes(17 << 20))
        assert synced.error == ErrorCode.unknown_server_error
        assert await commit == ErrorCode.none  # though they might have shared a batch

    roots.run(scenario)


def test_a_member_that_never_comes_back_with_its_id_leaves_no_group(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        answer = await host.join("g", needs_member_id=True)
        assert answer.error == ErrorCode.member_id_required
        assert host.groups.exists("g")
        await host.advance(501)
        assert not host.groups.exists("g")
        assert host.publisher.submissions == []

    roots.run(scenario)


def test_a_client_that_is_gone_harms_nobody(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.stable_member("g")
        gone = host.joins("g")
        await host.settle()
        gone.cancel()
        await host.settle()
        assert gone.cancelled()
        await host.advance(1_001)
        commit = asyncio.ensure_future(host.groups.commit("simple", to_commit(1)))
        await asyncio.sleep(0)
        commit.cancel()
        assert await host.groups.commit("simple", to_commit(2)) == ErrorCode.none

    roots.run(scenario)


def test_a_member_that_was_never_told_its_id_goes_with_its_connection(roots: Roots) -> None:
    """Nobody can send a heartbeat for it; it would be waited for, and kept, until its session ends."""

    async def scenario(host: Host) -> None:
        first = await host.stable_member("g")
        held = host.groups.find("g")
        assert held is not None
        before = held.held_bytes
        untold = host.joins("g", protocols=(("range", bytes(10_000)),))
        await host.settle()
        assert held.state is GroupState.PREPARING_REBALANCE
        assert held.held_bytes > before + 10_000
        known = host.joins("g", instance_id="i")  # may come back by its instance id
        await host.settle()
        for gone in (untold, known):
            gone.cancel()
        await host.settle()
        assert {one.instance_id for one in held.members} == {None, "i"}
        assert held.held_bytes < before + 10_000
        await host.join("g", first.member_id)

    roots.run(scenario)


def test_assignments_count_while_they_are_written(roots: Roots) -> None:
    """Many groups may write at once; none of it is a member's yet."""

    async def scenario(host: Host) -> None:
        table = host.groups.table
        joined = await host.join("g1")
        before = table.held_bytes
        host.publisher.hold = True
        task = host.syncs("g1", joined, a0=bytes(200_000))
        await host.settle()
        assert table.held_bytes == before + 200_000
        host.publisher.hold = False
        host.publisher.release()
        assert not (await task).error
        assert table.held_bytes == before + 200_000

    roots.run(scenario)


def test_a_follower_that_waits_keeps_no_assignments(roots: Roots) -> None:
    """Only the leader's count: a follower's 60 KB were held for as long as it waited, beyond all limits."""

    async def scenario(host: Host) -> None:
        tasks = [host.joins("g1"), host.joins("g1")]
        await host.advance(0)
        await host.advance(1)
        joined = [await task for task in tasks]
        follower = next(one for one in joined if one.member_id != one.leader)
        data = bytes(60_000)
        request = SyncRequest(
            member_id=follower.member_id, generation_id=follower.generation_id, assignments=(("x", data),)
        )
        task = asyncio.ensure_future(host.groups.sync("g1", request))
        del request
        await host.settle()
        assert not task.done()
        assert sys.getrefcount(data) == 2  # of this test, and of the call
        task.cancel()

    roots.run(scenario)


def test_ids_given_to_members_to_be_count(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        table = host.groups.table
        for number in range(1, 4):
            await host.join("g1", needs_member_id=True)
            assert table.held_bytes == number * PENDING_BYTES
        joined = await host.join("g2", protocols=(("range", b""),))
        assert table.held_bytes >= 3 * PENDING_BYTES + MEMBER_BYTES
        assert not joined.error

    roots.run(scenario)
