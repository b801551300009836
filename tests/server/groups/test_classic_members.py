"""Classic members of a consumer group: what they are answered, step by step."""

from typing import Any

import pytest

from sparklog_server.groups import classic_members
from sparklog_server.groups.consumer_members import ConsumerGroupState, HeartbeatRequest
from sparklog_server.groups.consumer_protocol import decode_assignment
from sparklog_server.groups.messages import JoinResult, Leaving, SyncRequest, SyncResult
from sparklog_server.protocol.apis import ErrorCode
from tests.server.groups.consumers import REBALANCE_MS, SESSION_MS, Client, topic_id
from tests.server.groups.migrating import ClassicClient, Migrating, subscription

NONE, REJOIN = ErrorCode.none, ErrorCode.rebalance_in_progress


def mixed(*, interval_ms: int = 0, size: int = 0, **topics: int) -> tuple[Migrating, Client]:
    """A consumer group, which stays one, with a member of its protocol."""
    world = Migrating(topics or {"t": 4}, interval_ms=interval_ms, size=size)
    client = Client("a")
    world.join(client)
    return world, client


def join(world: Migrating, client: ClassicClient, **fields: Any) -> JoinResult:
    """A JoinGroup with these fields; its answer."""
    said, result = classic_members.read_join(world.group, world.join_request(client, **fields), world.catalog)
    if said is not None:
        result = classic_members.join(world.group, said, world.catalog, world.now)
        world.store(world.group.take_records())
    return result


def sync(world: Migrating, client: ClassicClient, **fields: Any) -> SyncResult:
    me: dict[str, Any] = {"member_id": client.member_id, "generation_id": client.generation}
    request = SyncRequest(**{**me, "protocol_type": "consumer", "protocol": client.protocol, **fields})
    return classic_members.sync(world.group, request, world.catalog, world.now)


def beat(world: Migrating, client: ClassicClient, **fields: Any) -> ErrorCode:
    me: dict[str, Any] = {
        "member_id": client.member_id,
        "instance_id": None,
        "generation_id": client.generation,
    }
    return classic_members.heartbeat(world.group, **{**me, **fields}, now=world.now)


def partitions(result: SyncResult) -> set[tuple[str, int]]:
    found = decode_assignment(result.assignment)
    assert found is not None
    return {(name, partition) for name, some in found.partitions.items() for partition in some}


def settle(world: Migrating, *clients: Client | ClassicClient) -> None:
    for _ in range(12):
        world.pass_time(1)
        for client in clients:
            if isinstance(client, ClassicClient):
                client.run(world)
            else:
                client.follow()
                world.beat(client)


@pytest.mark.parametrize("eager", [True, False])
def test_a_classic_member_gets_its_share(eager: bool) -> None:
    world, a = mixed()
    b = ClassicClient("b", eager=eager)
    settle(world, a, b)
    assert (len(a.owned), len(b.owned)) == (2, 2)
    assert a.owned.isdisjoint(b.owned)
    assert world.group.state is ConsumerGroupState.STABLE
    assert b.generation == world.group.epoch == 2


def test_it_joins_again_when_its_partitions_are_free_and_not_before() -> None:
    world, a = mixed()
    b = ClassicClient("b")
    b.run(world)  # joins
    b.run(world)  # syncs
    b.run(world)
    assert b.owned == frozenset()
    assert beat(world, b) is NONE  # it waits for two partitions
    a.follow()
    world.beat(a)
    assert beat(world, b) is NONE  # the other has just been told
    a.follow()
    world.beat(a)
    assert beat(world, b) is REJOIN


def test_a_cooperative_member_gives_up_and_joins_again_an_eager_one_needs_one_round() -> None:
    for eager, rounds in ((False, 2), (True, 1)):
        world = Migrating({"t": 4}, size=0)
        b, a = ClassicClient("b", eager=eager), Client("a")
        settle(world, b)  # as a classic group
        assert len(b.owned) == 4
        world.beat(a)
        for _ in range(rounds):
            assert beat(world, b) is REJOIN
            assert b.beat(world) is REJOIN
            for _ in range(3):
                b.run(world)
        assert len(b.owned) == 2
        assert beat(world, b) is NONE
        assert len(world.group.members["a"].current.assigned) == 0
        settle(world, a, b)
        assert len(a.owned) == 2


def test_the_answer_to_joining_names_no_leader_and_the_first_protocol() -> None:
    world, _ = mixed()
    said = subscription(["t"], {})
    joined = join(world, ClassicClient("b"), needs_member_id=False, protocols=(("x", said), ("y", said)))
    assert (joined.error, joined.generation_id) == (NONE, 2)
    assert (joined.protocol_type, joined.protocol, joined.leader, joined.members) == ("consumer", "x", "", ())


def test_a_new_member_is_given_an_id_first_and_nothing_is_kept_of_it() -> None:
    world, _ = mixed()
    joined = join(world, ClassicClient("b"))
    assert (joined.error, joined.member_id) == (ErrorCode.member_id_required, "b-1")
    assert set(world.group.members) == {"a"}
    static = join(world, ClassicClient("c", "i"))
    assert (static.error, static.member_id) == (NONE, "c-2")


WRONG_JOINS: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": (("range", b""),)}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": (("range", b"\0\0\0\0\0\7"),)}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": (("other", subscription(["t"], {})),)}, ErrorCode.inconsistent_group_protocol),
    ({"protocols": (("range", subscription(["t"], {})),) * 2}, ErrorCode.inconsistent_group_protocol),
    ({"member_id": "x", "instance_id": "unknown"}, ErrorCode.unknown_member_id),
    ({"member_id": "x", "instance_id": "i"}, ErrorCode.fenced_instance_id),
]


@pytest.mark.parametrize(("fields", "error"), WRONG_JOINS, ids=str)
def test_joins_that_are_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    world, a = mixed()
    b = ClassicClient("b", "i", eager=True)
    settle(world, a, b)
    members = {**world.group.members}
    fields = {"needs_member_id": False, **fields}
    assert join(world, ClassicClient("c", eager=True), **fields).error is error
    assert world.group.members == members


def test_a_full_group_takes_no_more_but_static_members_that_come_back() -> None:
    world, a = mixed()
    b = ClassicClient("b", "i")
    settle(world, a, b)
    world.group.limits = type(world.limits)(max_size=2, session_timeout_ms=1, assignment_interval_ms=0)
    assert join(world, ClassicClient("c")).error is ErrorCode.group_max_size_reached
    assert join(world, ClassicClient("b2", "i")).error is NONE
    assert join(world, b).error is ErrorCode.fenced_instance_id


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"member_id": "a"}, ErrorCode.unknown_member_id),  # of the other protocol
        ({"generation_id": 1}, ErrorCode.illegal_generation),
        ({"instance_id": "x"}, ErrorCode.unknown_member_id),
        ({"member_id": "x", "instance_id": "i"}, ErrorCode.fenced_instance_id),
    ],
    ids=str,
)
def test_syncs_and_heartbeats_that_are_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    world, a = mixed()
    b = ClassicClient("b", "i")
    settle(world, a, b)
    assert beat(world, b, **fields) is error
    assert sync(world, b, **fields).error is error
    assert sync(world, b, instance_id="i").error is NONE
    assert sync(world, b, protocol=None, protocol_type=None).error is NONE
    for wrong in ({"protocol": "other"}, {"protocol_type": "connect"}):
        assert sync(world, b, **wrong).error is ErrorCode.inconsistent_group_protocol


def test_a_member_that_is_behind_joins_before_it_syncs() -> None:
    world, a = mixed()
    b = ClassicClient("b")
    settle(world, a, b)
    world.beat(Client("c"))
    assert sync(world, b).error is REJOIN
    world.pass_time(REBALANCE_MS - 1)
    assert b.member_id in world.group.members
    world.pass_time(1)  # it has not joined in time
    assert b.member_id not in world.group.members


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    world, _ = mixed()
    b = ClassicClient("b", "i")
    b.run(world)
    world.pass_time(REBALANCE_MS - 1)
    assert b.member_id in world.group.members
    world.pass_time(1)
    assert set(world.group.members) == {"a"}
    assert world.group.static == {}


def test_a_member_has_a_session_of_its_own() -> None:
    world, a = mixed()
    b = ClassicClient("b", "i")
    b.member_id = join(world, b, session_timeout_ms=3 * SESSION_MS).member_id
    b.generation = 2
    assert sync(world, b).error is NONE
    settle(world, a)
    for _ in range(2):
        world.pass_time(SESSION_MS - 1)
        assert world.beat(a).error is NONE
    assert b.member_id in world.group.members
    world.pass_time(SESSION_MS - 1)
    world.beat(a)
    world.pass_time(14)
    assert set(world.group.members) == {"a"}


def test_commits_are_checked_by_partition_as_of_other_members() -> None:
    world, a = mixed()
    b = ClassicClient("b")
    settle(world, a, b)
    mine = next(iter(b.owned))
    others = next(iter(a.owned))
    check = world.group.check_commit
    assert check(b.member_id, b.generation, [others]) is NONE
    assert check(b.member_id, b.generation + 1, [mine]) is ErrorCode.illegal_generation
    assert check(b.member_id, b.generation - 1, [mine]) is ErrorCode.illegal_generation
    world.beat(Client("c"))
    before = b.generation
    b.beat(world)
    b.run(world)
    assert b.generation == before  # it gives up first
    settle(world, a, b)
    kept = next(iter(b.owned), None)
    assert b.generation > before
    if kept is not None:
        assert check(b.member_id, before, [kept]) is NONE


def test_members_leave_also_those_of_the_other_protocol() -> None:
    world, a = mixed()
    b, c = ClassicClient("b"), ClassicClient("c", "i")
    settle(world, a, b, c)
    group = world.group
    leaving = [
        Leaving(member_id="x"),
        Leaving(member_id="", instance_id="x"),
        Leaving(member_id="x", instance_id="i"),
        Leaving(member_id=""),
        Leaving(member_id=b.member_id),
        Leaving(member_id="", instance_id="i"),
    ]
    unknown, fenced = ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id
    assert classic_members.leave(group, leaving, world.now) == [unknown, unknown, fenced, unknown, NONE, NONE]
    assert set(group.members) == {"a"}
    assert classic_members.leave(group, [Leaving(member_id="a")], world.now) == [NONE]
    assert group.state is ConsumerGroupState.EMPTY
    assert (group.classic_count, +group.classic_votes, group.owners) == (0, {}, {})


@pytest.mark.parametrize("eager", [True, False])
def test_a_restart_finds_classic_members(eager: bool) -> None:
    world, a = mixed()
    b = ClassicClient("b", "i", eager=eager)
    settle(world, a, b)
    world.restart()
    assert beat(world, b) is NONE
    assert (world.group.classic_count, dict(world.group.classic_votes)) == (1, {b.protocol: 1})
    assert join(world, b).error is NONE
    world.pass_time(REBALANCE_MS)
    assert world.beat(a).error is NONE
    assert set(world.group.members) == {"a"}  # it has not synced


def test_a_static_member_comes_back_with_the_other_protocol_at_once() -> None:
    world, a = mixed()
    b = ClassicClient("b", "i")
    settle(world, a, b)
    had, old_id = b.owned, b.member_id
    again = Client("b2", "i")
    assert world.beat(again).error is NONE
    again.follow()
    assert again.owned == had
    assert old_id not in world.group.members
    assert beat(world, b, instance_id="i") is ErrorCode.fenced_instance_id
    back = ClassicClient("b3", "i")
    settle(world, a, back)
    assert back.owned == had
    assert world.beat(again).error is ErrorCode.fenced_instance_id


def test_a_member_changes_its_topics() -> None:
    world, a = mixed(t=2, u=2)
    b = ClassicClient("b", topics=("u", "unknown"))
    settle(world, a, b)
    assert b.owned == {(topic_id("u"), 0), (topic_id("u"), 1)}
    b.topics, b.must_join = ("t", "u"), True
    world.leave(a)
    settle(world, b)
    assert len(b.owned) == 4
    b.topics, b.must_join = ("t",), True
    settle(world, b)
    assert b.owned == {(topic_id("t"), 0), (topic_id("t"), 1)}


def test_a_member_may_take_the_other_protocol_under_its_id() -> None:
    world, a = mixed()
    b = ClassicClient("b")
    settle(world, a, b)
    request = HeartbeatRequest(
        member_id=b.member_id, member_epoch=0, topics=("t",), owned={}, rebalance_timeout_ms=REBALANCE_MS
    )
    assert world.group.heartbeat(request, world.catalog, world.now).error is NONE
    assert world.group.classic_count == 0
    assert beat(world, b) is ErrorCode.unknown_member_id
