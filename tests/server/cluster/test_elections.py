"""Who is to lead: the four rules, where replicas are placed, and what a controller commits by them."""

from collections import Counter

import pytest

from sparklog.client.cluster_view import alternating, spread_replicas
from sparklog.metadata import (
    NO_NODE,
    Image,
    PartitionLeadership,
    empty_image,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_create_topic,
)
from sparklog_server.cluster import elections
from sparklog_server.cluster.elections import (
    is_imbalanced,
    plan_failover,
    plan_growth,
    plan_hand_over,
    plan_new_partitions,
    plan_preferred,
    plan_takeover,
)
from tests.metadata.cluster_roots import (
    FOUNDING,
    TOPIC,
    applied,
    cluster,
    elected,
    epoch_of,
    fenced,
    joined,
    leadership,
    led,
)

OF_TWO = PartitionLeadership((1, 2, 3), 2, 5)


@pytest.mark.parametrize(
    ("usable", "offline", "preferred", "shutdown"),
    [
        ({1, 2, 3}, 1, 1, 1),
        ({2, 3}, 2, 2, 2),
        ({3}, 3, 2, 3),
        ({9}, NO_NODE, 2, 2),
        (set(), NO_NODE, 2, 2),
    ],
)
def test_three_rules(usable: set[int], offline: int, preferred: int, shutdown: int) -> None:
    assert elections.offline(OF_TWO, usable) == offline
    assert elections.preferred(OF_TWO, usable) == preferred
    assert elections.controlled_shutdown(OF_TWO, usable) == shutdown
    assert elections.preferred(PartitionLeadership(), usable) == NO_NODE


@pytest.mark.parametrize(
    ("target", "usable", "leader"),
    [
        ((3, 2), {1, 2, 3}, 2),
        ((3, 1), {1, 2, 3}, 3),
        ((3, 1), {1, 2}, 1),
        ((3, 2), {1, 3}, 3),
        ((3,), {1, 2}, 2),
    ],
)
def test_the_rule_of_a_reassignment(target: tuple[int, ...], usable: set[int], leader: int) -> None:
    assert elections.reassigned(OF_TWO, target, usable) == leader


def leaders(image: Image) -> list[int]:
    return [state.leadership.leader for state in image.topic("orders").partitions]


def test_a_dead_brokers_partitions_go_to_others_in_one_commit() -> None:
    image = led(cluster(partitions=4), [2, 1, 2, 3])
    only_two = plan_assign_replicas(image, {(TOPIC, 2): PartitionLeadership((2,))}, controller_epoch=1)
    image = applied(image, only_two)
    after = applied(image, *plan_failover(image, 2, controller_epoch=1))
    assert leaders(after) == [1, 1, NO_NODE, 3]
    assert [leadership(after, one).leader_epoch for one in range(4)] == [2, 1, 2, 1]
    assert after.brokers[2].is_fenced
    assert elections.in_sync(leadership(after), after) == (1, 3)
    assert plan_failover(after, 2, controller_epoch=1) == []
    assert plan_failover(after, 9, controller_epoch=1) == []


def test_who_comes_back_leads_what_nobody_does_and_then_what_it_should() -> None:
    image = fenced(led(cluster(), [3, 3, 3]), 3)
    back = joined(image, 3)
    after = applied(back, *plan_takeover(back, controller_epoch=1))
    assert leaders(after) == [1, 1, 1]
    assert plan_takeover(after, controller_epoch=1) == []
    assert elections.in_sync(leadership(led(after, {0: 2})), after) == (2, 1, 3)


def test_what_should_be_led_by_its_first_replica() -> None:
    image = led(cluster(), [2, 1, 3])
    assert [is_imbalanced(image, most) for most in (0, 66, 67, 100)] == [True, True, False, False]
    assert not is_imbalanced(fenced(image, 1), 0), "who is away could not lead them"
    after = applied(image, *plan_preferred(image, controller_epoch=1))
    assert leaders(after) == [1, 1, 1]
    assert plan_preferred(after, controller_epoch=1) == []
    gone = elected(led(image, [2, 2, NO_NODE]), 2)
    gone = fenced(gone, 1)
    assert plan_preferred(gone, controller_epoch=2) == []


def test_controlled_shutdown_hands_over_what_it_can() -> None:
    image = led(cluster(), [2, 2, 3])
    only_two = plan_assign_replicas(image, {(TOPIC, 1): PartitionLeadership((2,))}, controller_epoch=1)
    image = applied(image, only_two, plan_begin_controlled_shutdown(image, 2, epoch_of(image, 2)))
    after = applied(image, *plan_hand_over(image, controller_epoch=1))
    assert leaders(after) == [1, 2, 3]
    assert plan_hand_over(after, controller_epoch=1) == []
    assert elections.usable_brokers(after) == {1, 3}


def test_new_partitions_whoever_made_them() -> None:
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2, 3), 1)
    image = applied(image, plan_create_topic(image, "orders", 6, topic_id=TOPIC))
    actions = plan_new_partitions(image, lambda _: 2, controller_epoch=1, start=0)
    after = applied(image, *actions)
    assert Counter(leaders(after)) == {1: 2, 2: 2, 3: 2}
    assert all(len(leadership(after, one).replicas) == 2 for one in range(6))
    assert plan_new_partitions(after, lambda _: 2, controller_epoch=1, start=0) == []
    wide = applied(image, *plan_new_partitions(image, lambda _: 9, controller_epoch=1, start=0))
    assert {len(leadership(wide, one).replicas) for one in range(6)} == {3}
    alone = fenced(fenced(image, 2), 3)
    few = applied(alone, *plan_new_partitions(alone, lambda _: 3, controller_epoch=1, start=5))
    assert {leadership(few, one).replicas for one in range(6)} == {(1, 2, 3), (1, 3, 2)}
    assert leaders(few) == [1] * 6  # those that are fenced lead when they are back
    one = applied(alone, *plan_new_partitions(alone, lambda _: 1, controller_epoch=1, start=5))
    assert {leadership(one, number).replicas for number in range(6)} == {(1,)}


def test_a_newcomer_is_a_replica_where_there_were_too_few_brokers() -> None:
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2), 1)
    image = applied(image, plan_create_topic(image, "orders", 6, topic_id=TOPIC))
    image = applied(image, *plan_new_partitions(image, lambda _: 3, controller_epoch=1, start=0))
    before = leaders(image)
    only_one = plan_assign_replicas(
        image,
        {(TOPIC, number): PartitionLeadership((before[number],)) for number in (4, 5)},
        controller_epoch=1,
    )
    image = joined(applied(image, only_one), 3)
    assert plan_growth(image, 3, lambda _: 2, controller_epoch=1, start=0) == []
    after = applied(image, *plan_growth(image, 3, lambda _: 3, controller_epoch=1, start=0))
    assert [sorted(leadership(after, one).replicas) for one in range(4)] == [[1, 2, 3]] * 4
    assert [leadership(after, one).replicas for one in (4, 5)] == [(before[4],), (before[5],)]
    assert leaders(after) == before
    assert {leadership(after, one).replicas[0] for one in range(4)} == {1, 2, 3}
    assert plan_growth(after, 3, lambda _: 3, controller_epoch=1, start=0) == []


def test_as_many_actions_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sparklog.metadata.model.action", "sparklog_server.cluster.elections"):
        monkeypatch.setattr(f"{module}.MAX_PARTITIONS_OF_ACTION", 2)
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2), 1)
    image = applied(image, plan_create_topic(image, "orders", 5, topic_id=TOPIC))
    actions = plan_new_partitions(image, lambda _: 2, controller_epoch=1, start=0)
    assert len(actions) == 6
    image = applied(image, *actions)
    failover = plan_failover(image, 2, controller_epoch=1)
    assert leaders(applied(image, *failover)) == [1] * 5


# --- placement ----------------------------------------------------------------------------------------


def test_racks_take_turns() -> None:
    racks = {0: "a", 1: "c", 2: "c", 3: "b", 4: "b", 5: "a"}
    assert alternating(racks) == [0, 3, 1, 5, 4, 2]
    assert alternating({7: "a", 3: "b", 1: "a", 2: "a"}) == [1, 3, 2, 7]


@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize(
    ("brokers", "factor"), [(1, 1), (2, 1), (2, 2), (5, 1), (5, 2), (5, 3), (5, 5), (7, 2), (7, 3), (7, 5)]
)
def test_leaders_and_replicas_are_spread(brokers: int, factor: int, start: int) -> None:
    lists = spread_replicas(dict.fromkeys(range(brokers), ""), 20 * brokers, factor, start=start)
    assert all(len(set(one)) == factor for one in lists)
    assert set(Counter(one[0] for one in lists).values()) == {20}
    load = Counter(node for one in lists for node in one)
    assert max(load.values()) - min(load.values()) <= factor * 4
    assert len(load) == brokers


@pytest.mark.parametrize("start", range(6))
def test_no_rack_has_two_before_all_have_one(start: int) -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    for factor in (2, 3, 4):
        for one in spread_replicas(racks, 60, factor, start=start):
            assert len(set(one)) == factor
            assert len({racks[node] for node in one}) == min(3, factor)


def test_racks_that_only_some_have_count_for_nothing() -> None:
    lists = spread_replicas({0: "a", 1: "", 2: "a"}, 30, 2, start=0)
    assert {frozenset(one) for one in lists} == {frozenset({0, 1}), frozenset({1, 2}), frozenset({0, 2})}


def test_what_is_added_goes_on_where_the_others_end() -> None:
    racks = dict.fromkeys(range(3), "")
    every = spread_replicas(racks, 9, 2, start=1)
    assert spread_replicas(racks, 4, 2, start=1, first_partition=5) == every[5:]


def test_who_takes_over_from_one_broker_is_not_one_broker() -> None:
    lists = spread_replicas(dict.fromkeys(range(4), ""), 36, 2, start=0)
    assert Counter(one[1] for one in lists if one[0] == 0) == {1: 3, 2: 3, 3: 3}
