"""The pure consumer group: epochs, fencing, static members, timeouts; Kafka's answers step by step."""

from typing import Any

import pytest

from sparklog.format.consumer_group_records import MemberState, RecordKind, ResolvedRegex
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import (
    LEAVE_FOR_NOW,
    ConsumerGroupState,
    HeartbeatRequest,
    refuse_request,
)
from sparklog_server.protocol.apis import ErrorCode
from tests.server.groups.consumers import REBALANCE_MS, SESSION_MS, Client, World, places, topic_id

NONE = ErrorCode.none
T = topic_id("t")


def test_a_partition_moves_when_its_owner_has_given_it_up() -> None:
    world, a, b = World(), Client("a"), Client("b")
    world.join(a)
    assert len(a.owned) == 4
    assert a.epoch == 1

    answer = world.beat(b)  # joins: half of what a has is to be b's
    assert (answer.member_epoch, answer.assigned) == (2, {})
    assert world.group.members["b"].current.state is MemberState.UNRELEASED_PARTITIONS
    answer = world.beat(a)  # a is told, in its old epoch
    assert answer.member_epoch == 1
    assert answer.assigned is not None
    assert len(places(answer.assigned)) == 2
    assert str(world.group.state) == "Reconciling"
    assert world.beat(b).assigned is None  # a still has them

    a.follow()
    assert world.beat(a).member_epoch == 2
    answer = world.beat(b)
    assert answer.assigned is not None
    assert len(places(answer.assigned)) == 2
    assert world.group.state is ConsumerGroupState.STABLE


def test_an_idle_heartbeat_writes_nothing() -> None:
    world, a = World(), Client("a")
    world.join(a)
    world.group.heartbeat(a.request(), world.catalog, world.now)
    assert world.group.take_records() == []


def test_a_lost_answer_is_repeated_for_the_epoch_before() -> None:
    world, a, b = World(), Client("a"), Client("b")
    world.join(a)
    world.join(b, a)
    world.leave(a)
    assert world.beat(b, is_lost=True).member_epoch == 3
    answer = world.beat(b, is_full=True)
    assert (answer.error, answer.member_epoch) == (NONE, 3)
    assert answer.assigned is not None
    assert len(places(answer.assigned)) == 4


@pytest.mark.parametrize("epoch", [7, 1])
def test_another_epoch_is_fenced(epoch: int) -> None:
    world, a = World(), Client("a")
    world.join(a)
    world.change_topics(t=5)
    world.settle(a)
    world.change_topics(t=6)
    world.settle(a)
    a.epoch = epoch
    assert world.beat(a).error is ErrorCode.fenced_member_epoch


def test_a_member_of_the_epoch_before_that_claims_more_than_it_was_given_is_fenced() -> None:
    world, a, b = World(), Client("a"), Client("b")
    world.join(a)
    world.join(b, a)
    a.epoch, a.owned = 1, frozenset((T, partition) for partition in range(4))
    assert world.beat(a).error is ErrorCode.fenced_member_epoch


def test_an_unknown_member_is_told_so() -> None:
    world, a = World(), Client("a")
    a.epoch = 3
    assert world.beat(a).error is ErrorCode.unknown_member_id


def test_a_member_that_joins_again_gets_its_partitions_again() -> None:
    world, a = World(), Client("a")
    world.join(a)
    again = Client("a")
    answer = world.beat(again)
    assert (answer.error, answer.member_epoch) == (NONE, 1)
    assert answer.assigned is not None
    assert len(places(answer.assigned)) == 4


def test_a_full_group_takes_no_further_member_but_a_static_one_that_returns() -> None:
    world, a, b = World(max_size=1), Client("a", "i"), Client("b")
    world.join(a)
    assert world.beat(b).error is ErrorCode.group_max_size_reached
    assert world.leave(a, LEAVE_FOR_NOW) is NONE
    assert world.beat(Client("c", "i")).error is NONE


# --- static members ----------------------------------------------------------------------------------


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    world, a, b = World(), Client("a", "i"), Client("b")
    world.join(a)
    world.join(b, a)
    owned, epoch = a.owned, world.group.epoch
    assert world.leave(a, LEAVE_FOR_NOW) is NONE
    world.settle(b)
    assert len(b.owned) == 2  # nothing moves while it is away
    again = Client("c", "i")
    world.join(again)
    assert again.owned == owned
    assert world.group.epoch == epoch
    assert set(world.group.members) == {"b", "c"}


def test_an_instance_id_that_is_in_use_is_not_given_away() -> None:
    world, a = World(), Client("a", "i")
    world.join(a)
    assert world.beat(Client("b", "i")).error is ErrorCode.unreleased_instance_id


def test_the_member_whose_place_was_taken_is_fenced() -> None:
    world, a = World(), Client("a", "i")
    world.join(a)
    old = Client("a", "i")
    old.epoch = a.epoch
    world.leave(a, LEAVE_FOR_NOW)
    world.join(Client("b", "i"))
    assert world.beat(old).error is ErrorCode.fenced_instance_id
    assert world.leave(Client("a", "i")) is ErrorCode.fenced_instance_id
    stranger = Client("x", "other")
    stranger.epoch = 1
    assert world.beat(stranger).error is ErrorCode.unknown_member_id


def test_a_member_takes_no_instance_id_of_another_one_that_is_away() -> None:
    world, away, other = World(), Client("a", "i"), Client("b")
    world.join(away, other)
    assert world.leave(away, LEAVE_FOR_NOW) is NONE
    assert world.beat(Client("b", "i")).error is ErrorCode.invalid_request
    assert world.leave(other) is NONE
    back = Client("c", "i")
    world.join(back)
    assert len(back.owned) == 4
    world.pass_time(SESSION_MS - 1)
    assert not world.beat(back).error


def test_a_static_member_that_stays_away_is_removed() -> None:
    world, a, b = World(), Client("a", "i"), Client("b")
    world.join(a)
    world.join(b, a)
    world.leave(a, LEAVE_FOR_NOW)
    for _ in range(3):
        world.pass_time(SESSION_MS // 2)
        world.settle(b)
    assert len(b.owned) == 4


# --- timeouts ----------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_and_the_others_get_its_partitions() -> None:
    world, a, b = World(), Client("a"), Client("b")
    world.join(a)
    world.join(b, a)
    for _ in range(3):
        world.pass_time(SESSION_MS // 2)
        world.settle(b)
    assert len(b.owned) == 4
    assert world.beat(a).error is ErrorCode.unknown_member_id
    assert not [key for key, _ in world.stored() if key.name == "a"]


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    world, a, b = World(), Client("a"), Client("b")
    world.join(a)
    world.beat(b)
    world.beat(a)
    world.pass_time(REBALANCE_MS - 1)
    assert world.beat(a).error is NONE
    world.pass_time(1)
    assert world.beat(a).error is ErrorCode.unknown_member_id


def test_assignments_are_computed_once_an_interval() -> None:
    world = World(interval_ms=100)
    clients = [Client(name) for name in "abcd"]
    world.join(clients[0])
    for client in clients[1:]:
        assert not world.beat(client).error
    assert (world.group.epoch, world.group.target_epoch) == (4, 1)
    assert world.group.state is ConsumerGroupState.ASSIGNING
    world.pass_time(100)
    assert world.group.target_epoch == 4
    world.settle(*clients)
    assert [len(client.owned) for client in clients] == [1, 1, 1, 1]


# --- topics ------------------------------------------------------------------------------------------


def test_topics_grow_and_go() -> None:
    world, a = World({"t": 2, "u": 2}), Client("a", topics=("t", "u"))
    world.join(a)
    world.change_topics(t=3)
    world.settle(a)
    assert len(a.owned) == 5
    world.change_topics(u=0)
    world.settle(a)
    assert {topic for topic, _ in a.owned} == {T}
    world.change_topics(other=9)
    epoch = world.group.epoch
    world.settle(a)
    assert world.group.epoch == epoch


def test_a_changed_subscription_gives_up_the_other_topics() -> None:
    world, a = World({"t": 2, "u": 2}), Client("a", topics=("t",))
    world.join(a)
    a.fields = {"topics": ("u",)}
    world.beat(a, is_full=True)
    world.settle(a)
    assert {topic for topic, _ in a.owned} == {topic_id("u")}


def test_a_member_may_join_before_it_knows_its_topics() -> None:
    """Java's consumer, if its heartbeat is faster than the topics that its pattern finds."""
    world, a, b = World(), Client("a", topics=()), Client("b")
    answer = world.beat(a)
    assert (answer.error, answer.member_epoch, answer.assigned) == (NONE, 1, {})
    world.join(b)
    assert (len(a.owned), len(b.owned)) == (0, 4)
    a.fields = {"topics": ("t",)}
    world.beat(a, is_full=True)
    world.settle(a, b)
    assert (len(a.owned), len(b.owned)) == (2, 2)


def test_most_members_choose_the_assignor() -> None:
    world = World()
    world.join(Client("a", assignor="range"))
    assert world.group.assignor == "range"
    world.beat(Client("b", assignor="uniform"))
    world.beat(Client("c", assignor="uniform"))
    assert world.group.assignor == "uniform"


def test_a_regular_expression_subscribes_to_what_it_matches() -> None:
    world, a = World({"t": 2, "u": 2}), Client("a", topics=(), regex="t|v")
    assert world.group.patterns_to_resolve(a.request(), world.version) == ["t|v"]
    world.resolved = {"t|v": ResolvedRegex(topics=("t",), version=0)}
    world.join(a)
    assert {topic for topic, _ in a.owned} == {T}
    world.change_topics(v=1)
    assert world.group.patterns_to_resolve(a.request(), world.version) == ["t|v"]
    world.resolved = {"t|v": ResolvedRegex(topics=("t", "v"), version=world.version)}
    world.settle(a)
    assert len(a.owned) == 3
    assert world.group.subscribed_among(["t", "u", "v"]) == {"t", "v"}
    world.resolved = {}
    a.fields = {"topics": ("u",), "regex": ""}
    world.beat(a, is_full=True)
    world.settle(a)
    assert {topic for topic, _ in a.owned} == {topic_id("u")}
    assert not [key for key, _ in world.stored() if key.kind is RecordKind.REGEX]


# --- the next coordinator ----------------------------------------------------------------------------


def test_the_next_coordinator_goes_on_from_the_log() -> None:
    world, a, b = World(), Client("a", "i", assignor="range"), Client("b")
    world.join(a)
    world.beat(b)
    world.beat(a)  # is to give up two
    before = world.group
    world.restart()
    group: ConsumerGroup = world.group
    assert (group.epoch, group.target_epoch, group.metadata_hash) == (
        before.epoch,
        before.target_epoch,
        before.metadata_hash,
    )
    assert group.owners == before.owners
    assert group.targets == before.targets
    assert {m.member_id: m.current for m in group.members.values()} == {
        m.member_id: m.current for m in before.members.values()
    }
    assert group.held_bytes == before.held_bytes
    world.settle(a, b)
    assert len(a.owned) == len(b.owned) == 2


def test_an_empty_group_leaves_its_epochs_and_tombstones_for_them() -> None:
    world, a = World(), Client("a")
    world.join(a)
    world.leave(a)
    assert {key.kind for key, _ in world.stored()} == {RecordKind.GROUP, RecordKind.TARGET}
    world.store(world.group.tombstones())
    assert not world.durable
    assert world.group.held_bytes == 0


# --- commits -----------------------------------------------------------------------------------------


def test_a_commit_needs_the_members_epoch_or_a_partition_that_it_had_by_then() -> None:
    world, a, b = World(), Client("a"), Client("b")
    check = world.group.check_commit
    assert check("", -1) is NONE
    world.join(a)
    world.join(b, a)
    kept = next(iter(a.owned))
    lost = next(iter(b.owned))
    assert check("a", 2, [kept]) is NONE
    assert check("a", 1, [kept]) is NONE  # assigned in epoch 1, and still its own
    assert check("a", 1, [kept, lost]) is ErrorCode.stale_member_epoch
    assert check("a", 1) is ErrorCode.stale_member_epoch
    assert check("b", 1, [lost]) is ErrorCode.stale_member_epoch
    assert check("b", 3, [lost]) is ErrorCode.stale_member_epoch
    assert check("x", 2, [kept]) is ErrorCode.unknown_member_id
    assert check("", -1, [kept]) is ErrorCode.unknown_member_id
    assert check("", -1, [kept], is_staged=True) is NONE


# --- requests that are wrong by themselves -----------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, NONE),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": ""}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"owned": {T: frozenset({1})}}, ErrorCode.invalid_request),
        ({"topics": None}, ErrorCode.invalid_request),
        ({"topics": (), "regex": "t"}, NONE),
        ({"topics": ()}, NONE),
        ({"topics": None, "regex": ""}, NONE),
        ({"assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"member_epoch": 3, "topics": None, "owned": None}, NONE),
    ],
)
def test_a_wrong_request_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    request = HeartbeatRequest(
        **{
            "member_id": "a",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1,
            "topics": ("t",),
            "owned": {},
            **fields,
        }
    )
    answer = refuse_request(request, ("uniform", "range"), makes_ids=False)
    assert (NONE if answer is None else answer.error) is error
