"""Offsets and groups that go: expiry by clocks that agree, deletion, topics that are gone."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog.clock import ManualClock
from sparklog.metadata import plan_delete_topic
from sparklog_server.groups import expiry
from sparklog_server.groups.messages import GroupState, Leaving
from tests.server.groups.test_coordinator import DAY_MS, WEEK_MS, offsets, state, to_commit

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

_EACH_MINUTE = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "60000"}


def test_deleting_a_topic_deletes_its_offsets(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1) + to_commit(2, topic="returns"))
        host.log.delete_topic("orders")
        host.root.show()
        await host.settle()
        assert offsets(host, "g") == {("returns", 0): 2}

    async def later(host: Host) -> None:
        assert offsets(host, "g") == {("returns", 0): 2}
        await host.groups.stop()
        host.log.delete_topic("returns")  # while nobody looks
        host.log.create_topic("orders", 4)

    async def last(host: Host) -> None:
        await host.settle()
        assert offsets(host, "g") == {}

    roots.run(scenario)
    roots.run(later)
    roots.run(last)


def test_one_that_lost_its_role_while_it_loaded_deletes_nothing(roots: Roots) -> None:
    """Its image may be too old to know which topics there are."""

    async def fill(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.groups.stop()
        # As by a client that leaves the offsets there.
        host.log.metadata.publish(lambda image: [plan_delete_topic(image, "orders")])

    async def scenario(host: Host) -> None:
        host.root.reads = asyncio.Event()
        await host.groups.start()
        await host.settle()
        host.groups.release()
        host.root.reads.set()
        await host.settle()
        assert host.publisher.submissions == []
        host.groups.resume()
        await host.settle()
        assert host.publisher.submissions == [1]
        assert offsets(host, "g") == {}

    roots.run(fill)
    roots.run(scenario, start=False)


def test_offsets_expire(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("simple", to_commit(1))
        await host.groups.commit("short", to_commit(1), retention_ms=1_000)
        member = await host.stable_member("busy", session_timeout_ms=WEEK_MS // 7)
        await host.advance(1_000)
        await host.groups.expire()
        assert not host.groups.exists("short")
        assert offsets(host, "simple") == {("orders", 0): 1}
        as_member: dict[str, Any] = {"member_id": member.member_id, "generation_id": 1}
        assert await host.groups.commit("busy", to_commit(1), **as_member) == 0
        for _ in range(8):
            await host.advance(DAY_MS - 1_000)
            assert host.groups.heartbeat("busy", member.member_id, None, 1) == ErrorCode.none
        await host.groups.expire()
        assert not host.groups.exists("simple")
        assert offsets(host, "busy") == {("orders", 0): 1}  # a member may still want it
        await host.groups.leave("busy", [Leaving(member_id=member.member_id)])
        await host.advance(WEEK_MS - 1_000)
        await host.groups.expire()
        assert offsets(host, "busy") == {("orders", 0): 1}
        await host.advance(1_000)
        await host.groups.expire()
        assert not host.groups.exists("busy")

    async def after_restart(host: Host) -> None:
        assert host.groups.list_groups() == (ErrorCode.none, [])

    settings = {"group.max.session.timeout.ms": str(WEEK_MS)}
    roots.run(scenario, settings)
    roots.run(after_restart, settings)


def test_few_groups_with_much_are_looked_at_in_one_turn(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 with 7,000 offsets or topics each would be seconds."""
    monkeypatch.setattr(expiry, "LOOKED_AT_ONCE", 43)
    turns: list[int] = []

    async def scenario(host: Host) -> None:
        for number in range(3):
            both = to_commit(1) + to_commit(1, partition=1)
            assert await host.groups.commit(f"g{number}", both) == ErrorCode.none
        await host.stable_member("busy", protocols=(("range", bytes(100)),))
        (shard,) = host.groups.shards
        catch_up = shard.catch_up

        async def counting() -> bool:
            turns.append(1)
            return await catch_up()

        monkeypatch.setattr(shard, "catch_up", counting)
        await host.groups.expire()

    roots.run(scenario, {**_EACH_MINUTE, "offsets.topic.num.partitions": "1"})
    assert len(turns) == 1 + 2 * 4  # one before; for each group one, and one of its plan


def test_who_has_no_members_keeps_all_while_any_partition_is_committed(roots: Roots) -> None:
    """A loop of Python's reads a partition that is quiet for a week, beside others, and finds its place."""

    async def scenario(host: Host) -> None:
        await host.groups.commit("loop", [*to_commit(7), *to_commit(1, partition=1)])
        for number in range(2, 10):
            await host.advance(DAY_MS)
            await host.groups.commit("loop", to_commit(number, partition=1))
        await host.groups.expire()
        assert offsets(host, "loop") == {("orders", 0): 7, ("orders", 1): 9}
        await host.advance(WEEK_MS - 1_000)
        await host.groups.expire()
        assert offsets(host, "loop") == {("orders", 0): 7, ("orders", 1): 9}
        await host.advance(1_000)
        await host.groups.expire()
        assert not host.groups.exists("loop")

    roots.run(scenario)


def test_a_retention_beyond_all_time_is_one_for_ever(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1), retention_ms=(1 << 63) - 1) == ErrorCode.none
        await host.advance(WEEK_MS)
        await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 1}

    roots.run(scenario)


def test_expiry_runs_by_itself(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.advance(60_000)
        assert not host.groups.exists("g")
        await host.groups.commit("g", to_commit(1))
        await host.advance(60_000)
        assert not host.groups.exists("g")

    roots.run(scenario, _EACH_MINUTE)


def test_one_that_resumes_while_it_forgets_has_one_alarm(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        host.publisher.hold = True
        await host.advance(60_000)
        host.groups.release()
        host.groups.resume()
        host.publisher.hold = False
        host.publisher.release()
        await host.settle()
        await host.groups.commit("g", to_commit(1))
        before = len(host.publisher.submissions)
        await host.advance(60_000)
        assert host.publisher.submissions[before:] == [1]

    roots.run(scenario, _EACH_MINUTE)


def test_deleting_groups(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        member = await host.stable_member("g")
        await host.groups.commit("query", to_commit(1))
        assert await host.delete_group("g") == ErrorCode.non_empty_group
        assert await host.delete_group("unknown") == ErrorCode.group_id_not_found
        assert await host.delete_group("query") == ErrorCode.none
        assert await host.delete_group("query") == ErrorCode.group_id_not_found
        await host.groups.leave("g", [Leaving(member_id=member.member_id)])
        assert state(host, "g") is GroupState.EMPTY
        assert await host.delete_group("g") == ErrorCode.none
        assert host.groups.find("g") is None

    async def after_restart(host: Host) -> None:
        assert host.groups.list_groups() == (ErrorCode.none, [])

    roots.run(scenario)
    roots.run(after_restart)


def test_deleting_offsets(roots: Roots) -> None:
    subscription = b"\x00\x01\x00\x00\x00\x01\x00\x06orders"

    async def scenario(host: Host) -> None:
        member = await host.stable_member("g", protocols=(("range", subscription),))
        as_member: dict[str, Any] = {"member_id": member.member_id, "generation_id": 1}
        both = to_commit(1) + to_commit(2, topic="returns")
        assert await host.groups.commit("g", both, **as_member) == 0
        error, results = await host.groups.delete_offsets(
            "g", [("orders", 0), ("returns", 0), ("returns", 1)]
        )
        assert error == ErrorCode.none
        assert results == {
            ("orders", 0): ErrorCode.group_subscribed_to_topic,
            ("returns", 0): ErrorCode.none,
            ("returns", 1): ErrorCode.none,
        }
        assert offsets(host, "g") == {("orders", 0): 1}
        assert (await host.groups.delete_offsets("unknown", []))[0] == ErrorCode.group_id_not_found
        await host.stable_member("connect", protocol_type="connect")
        error, _ = await host.groups.delete_offsets("connect", [("orders", 0)])
        assert error == ErrorCode.non_empty_group

    roots.run(scenario)


class SetForward(ManualClock):
    """A wall clock that somebody sets."""

    set_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_ms


@pytest.mark.parametrize("looks", [1, 3])
def test_a_wall_clock_that_is_set_forward_makes_nothing_expire(roots: Roots, looks: int) -> None:
    """For a moment or for good: no more time has passed than the monotonic clock says."""
    clock = roots.clock = SetForward()

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0
        assert await host.groups.commit("own", to_commit(1), retention_ms=DAY_MS) == 0
        clock.set_ms = 8 * DAY_MS
        for _ in range(looks):
            await host.advance(600_000)
            await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 1}
        assert offsets(host, "own") == {("orders", 0): 1}
        clock.set_ms = 0
        await host.advance(WEEK_MS)
        await host.groups.expire()
        assert offsets(host, "g") == offsets(host, "own") == {}

    roots.run(scenario)


def test_a_wall_clock_that_was_set_back_makes_nothing_expire_either(roots: Roots) -> None:
    clock = roots.clock = SetForward()

    async def scenario(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0
        clock.set_ms = -8 * DAY_MS
        await host.advance(WEEK_MS)
        await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 1}

    roots.run(scenario)


def test_what_a_broker_with_a_clock_that_is_behind_wrote_does_not_expire(roots: Roots) -> None:
    async def commits(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0
        assert await host.groups.commit("own", to_commit(1), retention_ms=DAY_MS) == 0

    async def looks(host: Host) -> None:
        await host.groups.expire()
        assert offsets(host, "g") == offsets(host, "own") == {("orders", 0): 1}
        await host.advance(WEEK_MS)
        await host.groups.expire()
        assert offsets(host, "g") == offsets(host, "own") == {}

    roots.clock.set_by_ms(-8 * DAY_MS)
    roots.run(commits)
    roots.clock.set_by_ms(8 * DAY_MS)
    roots.run(looks)


def test_nothing_expires_before_the_storages_clock_says_so(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is started with a clock that is a year ahead."""

    async def commits(host: Host) -> None:
        assert await host.groups.commit("g", to_commit(1)) == 0

    async def looks(host: Host) -> None:
        monkeypatch.setattr(host.root.store, "storage_now_ms", lambda here_ms: here_ms - 365 * DAY_MS)
        await host.groups.expire()
        assert offsets(host, "g") == {("orders", 0): 1}

    roots.run(commits)
    roots.clock.set_by_ms(365 * DAY_MS)
    roots.run(looks)


def test_an_offsets_topic_made_anew_starts_over(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.commit("g", to_commit(1))
        await host.stable_member("members")
        host.log.delete_topic("__consumer_offsets")
        host.root.show()
        await host.settle()
        assert host.groups.list_groups() == (ErrorCode.none, [])
        assert await host.groups.commit("g", to_commit(2)) == ErrorCode.none
        assert offsets(host, "g") == {("orders", 0): 2}

    roots.run(scenario)


def test_where_nobody_has_committed_yet_there_is_nothing_to_delete(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert not host.groups.shards.count  # there is no __consumer_offsets
        assert await host.delete_group("g") == ErrorCode.group_id_not_found
        assert await host.groups.delete_offsets("g", [("orders", 0)]) == (ErrorCode.group_id_not_found, {})

    roots.run(scenario)
