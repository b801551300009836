"""A group that changes its protocol: what the group that follows is made of."""

from collections.abc import Mapping

import pytest

from sparklog.format.consumer_group_records import MemberState
from sparklog_server.groups.consumer_members import ConsumerGroupState
from sparklog_server.groups.consumer_protocol import decode_assignment
from sparklog_server.groups.messages import GroupState
from sparklog_server.groups.migration import Upgrade, downgraded
from sparklog_server.protocol.apis import ErrorCode
from tests.server.groups.consumers import REBALANCE_MS, SESSION_MS, Client, places, topic_id
from tests.server.groups.migrating import MAX_BYTES, ClassicClient, Migrating, subscription
from tests.server.groups.test_classic_members import settle

T = topic_id("t")


def fleet(*clients: ClassicClient | Client, **topics: int) -> Migrating:
    """A settled group with these members, which may become a classic one."""
    world = Migrating(topics or {"t": 4})
    settle(world, *clients)
    return world


def raw(member: str, said: bytes, assignment: bytes) -> Migrating:
    """A stable classic group whose only member has sent, and was assigned, these bytes."""
    world, client = Migrating(), ClassicClient(member)
    world.classic_join(client, needs_member_id=False, protocols=(("x", said),))
    world.pass_time(1)
    assert world.classic is not None
    (one,) = world.classic.members
    world.classic.members.assign(one, assignment)
    return world


def owned_by(world: Migrating) -> Mapping[str, int]:
    assert world.classic is None
    return {name: len(places(one.current.assigned)) for name, one in world.group.members.items()}


def test_members_of_a_classic_group_keep_what_they_have_and_their_generation() -> None:
    b, c = ClassicClient("b"), ClassicClient("c", "i")
    world = fleet(b, c)
    assert world.classic is not None
    generation = world.classic.generation_id
    had = b.owned, c.owned
    a = Client("a")
    world.beat(a)
    assert owned_by(world) == {b.member_id: 2, c.member_id: 2, "a": 0}
    assert {one.epoch for name, one in world.group.members.items() if name != "a"} == {generation}
    assert (world.group.epoch, world.group.static) == (generation + 1, {"i": c.member_id})
    assert world.classic_beat(b) is ErrorCode.rebalance_in_progress
    assert (b.owned, c.owned) == had
    settle(world, a, b, c)
    assert sorted(map(len, (a.owned, b.owned, c.owned))) == [1, 1, 2]
    assert world.value is None


def test_what_a_member_still_gives_up_is_not_free() -> None:
    b, c = ClassicClient("b"), ClassicClient("c")
    world = fleet(b)
    c.run(world)
    c.run(world)
    b.beat(world)
    for client in (b, c, b, c):
        client.run(world)  # they join, and are assigned; b is not told yet
    assert world.classic is not None
    assert (world.classic.state, len(b.owned)) == (GroupState.STABLE, 4)
    world.beat(Client("a"))
    current = world.group.members[b.member_id].current
    assert (current.state, len(places(current.assigned)), len(places(current.pending_revocation))) == (
        MemberState.UNREVOKED_PARTITIONS,
        2,
        2,
    )
    assert world.group.members["a"].current.assigned == {}


def test_partitions_that_are_not_there_or_twice_are_left_out() -> None:
    b, c = ClassicClient("b", eager=True), ClassicClient("c", eager=True)
    world = fleet(b, c)
    assert world.classic is not None
    everything = b"\0\1\0\0\0\2\0\1t\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\x63\0\1v\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
    for member in world.classic.members:
        world.classic.members.assign(member, everything)
    group = Upgrade(world.classic, world.catalog).group(world.limits, world.now)
    assert group.owners == {(T, 0): b.member_id, (T, 1): b.member_id}


@pytest.mark.parametrize(
    ("said", "assignment"),
    [
        (b"?", b""),
        (subscription(["t"], {}), b"?"),
        (subscription(["t"], {}), b"\0\1\0\0\0\0\0\0\0\1x"),  # of an assignor of its own
    ],
)
def test_members_that_cannot_be_understood_stay(said: bytes, assignment: bytes) -> None:
    world = raw("b", said, assignment)
    assert world.beat(Client("a")).error is ErrorCode.group_id_not_found
    assert world.classic is not None
    assert len(world.classic.members) == 1


def test_user_data_of_a_known_assignor_is_its_own_word() -> None:
    """librdkafka's leader returns it with cooperative-sticky."""
    b = ClassicClient("b")
    world = fleet(b)
    assert world.classic is not None
    (member,) = world.classic.members
    world.classic.members.assign(member, member.assignment[:-4] + b"\0\0\0\1x")
    assert world.beat(Client("a")).error is ErrorCode.none
    assert b.member_id in owned_by(world)


def test_members_that_wait_are_to_join_again() -> None:
    b, c = ClassicClient("b"), ClassicClient("c")
    world = fleet(b)
    c.run(world)
    c.run(world)
    assert set(world.waiting.values()) == {c}
    world.beat(Client("a"))
    assert world.waiting == {}
    assert c.error is ErrorCode.rebalance_in_progress
    assert set(world.group.members) == {"a", b.member_id, c.member_id}


def test_the_last_one_of_the_new_protocol_leaves() -> None:
    a, b, c = Client("a"), ClassicClient("b"), ClassicClient("c", "i")
    world = fleet(a, b, c)
    epoch, had = world.group.epoch, (b.owned, c.owned)
    assert (world.leave(a), world.classic is not None) == (ErrorCode.none, True)
    assert world.classic is not None
    assert world.durable == {}
    assert (world.classic.state, world.classic.generation_id) == (GroupState.PREPARING_REBALANCE, epoch)
    assert world.value is not None
    assert (world.value.leader, world.value.protocol, world.value.generation_id) == (
        None,
        "cooperative-sticky",
        epoch,
    )
    assert world.classic_beat(b) is ErrorCode.rebalance_in_progress
    assert (b.owned, c.owned) == had
    settle(world, b, c)
    assert (len(b.owned), len(c.owned)) == (2, 2)
    assert world.classic.generation_id > epoch


def test_the_session_of_the_last_one_ends() -> None:
    a, b = Client("a"), ClassicClient("b")
    world = fleet(a, b)
    for _ in range(2):
        world.pass_time(SESSION_MS - 100)
        b.run(world)
    assert world.classic is not None
    settle(world, b)
    assert len(b.owned) == 4


def test_the_last_one_comes_back_with_the_classic_protocol() -> None:
    a, b = Client("a", "i"), ClassicClient("b")
    world = fleet(a, b)
    back = ClassicClient("a'", "i")
    back.run(world)
    assert world.classic is not None
    assert world.classic.members.static_member_id("i") == back.member_id
    settle(world, back, b)
    assert (len(back.owned), len(b.owned)) == (2, 2)


def test_a_restart_goes_on_with_the_rebalance_that_is_due() -> None:
    """Else the partitions of the one that has left would stay without an owner."""
    a, b, c = Client("a"), ClassicClient("b"), ClassicClient("c")
    world = fleet(a, b, c)
    world.leave(a)
    world.restart()
    assert world.classic is not None
    assert world.classic.state is GroupState.PREPARING_REBALANCE
    settle(world, b, c)
    assert (len(b.owned), len(c.owned)) == (2, 2)


def test_the_record_says_what_members_may_use() -> None:
    a, b = Client("a"), ClassicClient("b")
    world = fleet(b)
    world.beat(a)
    b.beat(world)
    b.run(world)  # joins, and is to give up two
    world.leave(a)
    assert world.value is not None
    found = decode_assignment(world.value.members[0].assignment)
    assert found is not None
    assert found.partitions == {"t": frozenset(range(4))}
    a = Client("a2")
    world.beat(a)
    assert world.group.members["a2"].current.assigned == {}


@pytest.mark.parametrize("size", [0, 1])
def test_a_group_that_may_not_change_stays(size: int) -> None:
    world = Migrating(size=size)
    a, b, c = Client("a"), ClassicClient("b"), ClassicClient("c")
    settle(world, a, b, c)
    epoch = world.group.epoch
    world.leave(a)
    assert world.classic is None
    assert world.group.epoch == epoch + 1
    settle(world, b, c)
    assert (len(b.owned), len(c.owned)) == (2, 2)
    assert world.group.state is ConsumerGroupState.STABLE
    world.classic_leave(c)
    settle(world, b)
    assert len(b.owned) == 4
    assert (world.classic is not None) is (size == 1)  # one fits


def test_a_group_whose_record_would_be_too_long_stays() -> None:
    a, b = Client("a"), ClassicClient("b")
    world = fleet(a, b)
    world.group.remove([world.group.members["a"]], world.now)
    assert world.group.ends_as_classic
    assert downgraded(world.group, world.catalog, world.now, max_bytes=60) is None
    assert downgraded(world.group, world.catalog, world.now, max_bytes=MAX_BYTES) is not None
    world.group.stay(world.now)
    world.store(world.group.take_records())
    settle(world, b)
    assert (len(b.owned), world.classic) == (4, None)


def test_an_upgrade_is_read_from_its_records() -> None:
    b, c = ClassicClient("b"), ClassicClient("c", "i")
    world = fleet(b, c)
    assert world.classic is not None
    upgrade = Upgrade(world.classic, world.catalog)
    world.store(upgrade.records)
    group = upgrade.group(world.limits, world.now)
    world.restart()
    assert {name: one.current for name, one in world.group.members.items()} == {
        name: one.current for name, one in group.members.items()
    }
    assert (world.group.targets, world.group.owners) == (group.targets, group.owners)
    assert {name: one.subscription for name, one in world.group.members.items()} == {
        name: one.subscription for name, one in group.members.items()
    }
    world.pass_time(REBALANCE_MS)
    assert set(world.group.members) == {b.member_id, c.member_id}
