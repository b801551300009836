"""Groups that change their protocol on a root: what is durable, what is answered, what a restart finds."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.groups.consumer_protocol import (
    ConsumerSubscription,
    decode_subscription,
    encode_assignment,
)
from sparklog_server.groups.messages import GroupState, JoinResult, Leaving, SyncResult
from tests.server.coordination.controller import Controller
from tests.server.groups.migrating import subscription
from tests.server.groups.test_consumer_table import beats, busy, listed, owned
from tests.server.groups.test_coordinator import offsets, to_commit
from tests.server.groups.test_coordinator_moving import move

if TYPE_CHECKING:
    from tests.server.groups.conftest import Host, Roots
else:
    Host = Roots = Any

NONE, REJOIN = ErrorCode.none, ErrorCode.rebalance_in_progress
ALL = frozenset(range(4))
CONSUMER, CLASSIC = {"g": ("consumer", "Stable")}, {"g": ("classic", "Stable")}


def joins(
    host: Host, member_id: str = "", *, owned: frozenset[int] = frozenset(), **fields: Any
) -> "asyncio.Task[JoinResult]":
    said = subscription(["orders"], {"orders": owned})
    return host.joins("g", member_id, protocols=(("cooperative-sticky", said),), **fields)


async def syncs(host: Host, joined: JoinResult) -> SyncResult:
    assigned = encode_assignment({"orders": ALL}, 1)
    return await host.syncs("g", joined, a0=assigned)


async def stable(host: Host) -> JoinResult:
    """The only member of a stable classic group; it has all partitions."""
    joined = await joins(host)
    assert not joined.error
    assert not (await syncs(host, joined)).error
    return joined


async def mixed(host: Host, *, size: int = 2) -> str:
    """A consumer group of a classic member, whose id is returned, and of `a`, which each have half."""
    classic = await stable(host)
    assert owned(await beats(host, "a")) == 0
    joined = await joins(host, classic.member_id, owned=ALL)
    assert (await syncs(host, joined)).assignment == encode_assignment({"orders": frozenset({0, 1})}, 1)
    joined = await joins(host, classic.member_id, owned=frozenset({0, 1}))
    assert not (await syncs(host, joined)).error
    answer = await beats(host, "a", joined.generation_id)
    assert owned(answer) == size
    return joined.member_id


def generation(host: Host) -> int:
    group = host.groups.find("g")
    assert group is not None
    return group.generation_id


def test_a_group_changes_its_protocol_both_ways_and_keeps_its_offsets(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await stable(host)
        me: dict[str, Any] = {"member_id": classic.member_id, "generation_id": classic.generation_id}
        assert await host.groups.commit("g", to_commit(5), **me) is NONE
        before = len(host.publisher.submissions)
        assert owned(await beats(host, "a")) == 0
        assert len(host.publisher.submissions) - before == 1  # all of it at once
        assert offsets(host, "g") == {("orders", 0): 5}
        assert await host.groups.commit("g", to_commit(6), **me) is NONE
        assert host.groups.heartbeat("g", classic.member_id, None, classic.generation_id) is REJOIN
        await mixed_again(host, classic.member_id)
        assert listed(host)["g"][0] == "consumer"
        before = len(host.publisher.submissions)
        assert not (await beats(host, "a", -1)).error
        assert len(host.publisher.submissions) - before == 1
        assert listed(host) == {"g": ("classic", "PreparingRebalance")}
        assert offsets(host, "g") == {("orders", 0): 6}
        assert host.groups.heartbeat("g", classic.member_id, None, generation(host)) is REJOIN
        again = await joins(host, classic.member_id)
        assert not (await syncs(host, again)).error
        assert listed(host) == CLASSIC

    async def mixed_again(host: Host, member_id: str) -> None:
        for kept in (ALL, frozenset({0, 1})):
            joined = await joins(host, member_id, owned=kept)
            assert not (await syncs(host, joined)).error

    async def after_restart(host: Host) -> None:
        assert listed(host) == CLASSIC
        assert offsets(host, "g") == {("orders", 0): 6}

    roots.run(scenario)
    roots.run(after_restart)


def test_a_restart_finds_a_group_of_both_protocols(roots: Roots) -> None:
    members: list[str] = []

    async def scenario(host: Host) -> None:
        members.append(await mixed(host))

    async def after_restart(host: Host) -> None:
        assert listed(host) == CONSUMER
        group = host.groups.find_consumers("g")
        assert group is not None
        epoch = group.epoch
        assert host.groups.heartbeat("g", members[0], None, epoch) is NONE
        assert (await beats(host, "a", epoch)).error is NONE
        assert await host.groups.leave("g", [Leaving(member_id="a")]) == (NONE, [NONE])

    async def after_the_next(host: Host) -> None:
        assert listed(host) == {"g": ("classic", "PreparingRebalance")}
        assert host.groups.heartbeat("g", members[0], None, generation(host)) is REJOIN

    roots.run(scenario)
    roots.run(after_restart)
    roots.run(after_the_next)


def test_nothing_is_answered_before_it_is_durable(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await stable(host)
        host.publisher.hold = True
        asked = [beats(host, "a"), joins(host, classic.member_id, owned=ALL)]
        asked.append(asyncio.ensure_future(host.groups.leave("g", [Leaving(member_id="x")])))
        await host.settle()
        assert not any(one.done() for one in asked)
        while not all(one.done() for one in asked):
            host.publisher.release()
            await host.settle()
        host.publisher.hold = False

    roots.run(scenario)


def test_an_upgrade_that_is_not_written_leaves_the_classic_group(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await stable(host)
        host.publisher.error = busy()
        assert (await beats(host, "a")).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.settle()
        assert listed(host) == CLASSIC
        assert host.groups.heartbeat("g", classic.member_id, None, classic.generation_id) is NONE
        assert owned(await beats(host, "a")) == 0
        assert host.groups.heartbeat("g", classic.member_id, None, classic.generation_id) is REJOIN

    roots.run(scenario)


def test_an_upgrade_that_arrives_although_it_failed_counts(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await stable(host)
        host.publisher.error, host.publisher.loses_answers = busy(), True
        assert (await beats(host, "a")).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.settle()
        await host.look()
        await host.settle()
        assert host.groups.heartbeat("g", classic.member_id, None, classic.generation_id) in {NONE, REJOIN}
        await host.settle()
        assert set(listed(host).values()) <= {("consumer", "Stable"), ("consumer", "Reconciling")}
        assert host.groups.find("g") is None
        assert host.groups.heartbeat("g", classic.member_id, None, classic.generation_id) is REJOIN

    roots.run(scenario)


def test_a_downgrade_that_is_not_written_leaves_the_consumer_group(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await mixed(host)
        group = host.groups.find_consumers("g")
        assert group is not None
        host.publisher.error = busy()
        assert (await beats(host, "a", -1)).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.settle()
        assert listed(host) == CONSUMER
        assert host.groups.heartbeat("g", classic, None, group.epoch) is NONE
        assert (await beats(host, "a", -1)).error is NONE
        assert listed(host) == {"g": ("classic", "PreparingRebalance")}

    roots.run(scenario)


def test_a_downgrade_that_arrives_although_it_failed_counts(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await mixed(host)
        host.publisher.error, host.publisher.loses_answers = busy(), True
        assert (await beats(host, "a", -1)).error is ErrorCode.coordinator_not_available
        host.publisher.error = None
        await host.look()
        await host.settle()
        host.groups.find_consumers("g")
        await host.settle()
        assert listed(host) == {"g": ("classic", "PreparingRebalance")}
        assert host.groups.heartbeat("g", classic, None, generation(host)) is REJOIN

    roots.run(scenario)


def test_while_a_group_turns_its_members_are_to_come_again(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await mixed(host)
        group = host.groups.find_consumers("g")
        assert group is not None
        me: dict[str, Any] = {"member_id": classic, "generation_id": group.epoch}
        host.publisher.hold = True
        leaves = beats(host, "a", -1)
        await host.settle()
        loading = ErrorCode.coordinator_load_in_progress
        assert host.groups.heartbeat("g", classic, None, group.epoch) is NONE
        assert (await joins(host, classic)).error is loading
        assert (await host.syncs("g", JoinResult(**me))).error is REJOIN
        assert await host.groups.leave("g", [Leaving(member_id=classic)]) == (loading, [])
        assert await host.groups.commit("g", to_commit(7), **me) is loading
        assert (await beats(host, "b")).error is ErrorCode.coordinator_not_available
        host.publisher.release()
        host.publisher.hold = False
        assert (await leaves).error is NONE
        assert await host.groups.commit("g", to_commit(7), **me) is NONE
        assert (await beats(host, "b")).error is NONE
        assert listed(host)["g"][0] == "consumer"

    roots.run(scenario)


def test_members_go_on_at_the_next_coordinator(roots: Roots) -> None:
    async def scenario(first: Host, second: Host, controller: Controller) -> None:
        classic = await mixed(first)
        await move(controller, "g", second, first)
        group = second.groups.find_consumers("g")
        assert group is not None
        epoch = group.epoch
        assert first.groups.heartbeat("g", classic, None, epoch) is ErrorCode.not_coordinator
        assert second.groups.heartbeat("g", classic, None, epoch) is NONE
        assert (await beats(second, "a", -1)).error is NONE
        await move(controller, "g", first, second)
        assert first.groups.heartbeat("g", classic, None, generation(first)) is REJOIN
        assert first.groups.find_consumers("g") is None

    roots.run_two(scenario)


def test_the_last_session_of_the_new_protocol_ends(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        classic = await mixed(host)
        group = host.groups.find_consumers("g")
        assert group is not None
        epoch = group.epoch
        while listed(host) == CONSUMER:
            await host.advance(100)
            assert host.groups.heartbeat("g", classic, None, epoch) in {NONE, REJOIN}
        await host.settle()
        assert listed(host)["g"][0] == "classic"

    sessions = dict.fromkeys(("session.timeout.ms", "min.session.timeout.ms"), "2000")
    roots.run(scenario, {f"group.consumer.{name}": value for name, value in sessions.items()})


# --- policies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "upgrades", "mixes", "downgrades"),
    [
        ("bidirectional", True, True, True),
        ("upgrade", True, True, False),
        ("downgrade", False, True, True),
        ("disabled", False, False, False),
    ],
)
def test_policies(roots: Roots, policy: str, *, upgrades: bool, mixes: bool, downgrades: bool) -> None:
    settings = {"group.consumer.migration.policy": policy}

    async def upgrading(host: Host) -> None:
        classic = await stable(host)
        answer = await beats(host, "a")
        assert answer.error is (NONE if upgrades else ErrorCode.group_id_not_found)
        assert listed(host)["g"][0] == ("consumer" if upgrades else "classic")
        await host.groups.leave("g", [Leaving(member_id=classic.member_id), Leaving(member_id="a")])
        await host.settle()

    async def downgrading(host: Host) -> None:
        assert not (await beats(host, "a")).error
        joined = await joins(host)
        assert joined.error is (NONE if mixes else ErrorCode.inconsistent_group_protocol)
        assert not (await beats(host, "a", -1)).error
        assert listed(host)["g"][0] == ("classic" if downgrades else "consumer")
        assert host.groups.member_count("g") == int(mixes)

    roots.run(upgrading, settings)
    roots.run(downgrading, settings)


def test_members_of_connect_stay_among_themselves(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        joined = await host.joins("g", protocol_type="connect", protocols=(("x", b"x"),))
        assert not joined.error
        assert (await beats(host, "a")).error is ErrorCode.group_id_not_found
        assert listed(host) == {"g": ("classic", GroupState.COMPLETING_REBALANCE.value)}

    roots.run(scenario)


# --- bounds ------------------------------------------------------------------------------------------


def test_members_beyond_the_bounds_are_refused(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        assert not (await beats(host, "a")).error
        assert not (await joins(host)).error
        full = ErrorCode.group_max_size_reached
        assert (await joins(host)).error is full
        assert (await beats(host, "b")).error is full
        group = host.groups.find_consumers("g")
        assert group is not None
        classic = next(name for name in group.members if name != "a")
        given = host.groups.new_member_id("c" * 1_000, None)
        assert (await joins(host, given)).error is full
        assert (await joins(host, f"{given}x")).error is ErrorCode.unknown_member_id
        long = subscription([f"{number:0200}" for number in range(6_000)], {})
        joined = await host.joins("g", classic, protocols=(("cooperative-sticky", long),))
        assert joined.error is full
        held = host.groups.consumers.held_bytes
        said = subscription(["orders"], {})
        many = tuple((f"p{number}", said) for number in range(99))
        more = await host.joins("g", classic, protocols=(("cooperative-sticky", said), *many))
        assert more.error is NONE
        assert host.groups.consumers.held_bytes > held + 99 * 200
        await host.groups.leave("g", [Leaving(member_id=classic), Leaving(member_id="a")])
        assert host.groups.consumers.held_bytes == 0

    settings = {"group.consumer.max.size": "2", "sparklog.group.max.bytes": str(1 << 20)}
    roots.run(scenario, settings)


def test_a_group_that_is_larger_than_a_consumer_group_may_be_stays_classic(roots: Roots) -> None:
    async def scenario(host: Host) -> None:
        await host.groups.ensure_topic()
        joining = [joins(host), joins(host)]
        await host.settle()
        await host.advance(0)
        assert len([one for one in joining if one.done()]) == 2
        assert (await beats(host, "a")).error is ErrorCode.group_id_not_found
        assert listed(host)["g"][0] == "classic"

    roots.run(scenario, {"group.consumer.max.size": "1"})


def test_what_members_have_said_is_read_once_for_an_upgrade_that_is_refused(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three megabytes took 0.75 s, with each heartbeat of a member that cannot join."""
    read = list[bytes]()

    def counted(data: bytes) -> ConsumerSubscription | None:
        read.append(data)
        return decode_subscription(data)

    monkeypatch.setattr("sparklog_server.groups.migration.decode_subscription", counted)

    async def scenario(host: Host) -> None:
        joined = await joins(host)
        assert not (await host.syncs("g", joined, a0=b"x")).error
        for _ in range(3):
            assert (await beats(host, "a")).error is ErrorCode.group_id_not_found
        assert len(read) == 1
        joined = await joins(host, joined.member_id)
        assert not (await syncs(host, joined)).error
        assert not (await beats(host, "a")).error

    roots.run(scenario)
