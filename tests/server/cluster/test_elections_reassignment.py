"""Reassignments: begun, over, called off; and what holds them up."""

import pytest

from sparklog.errors import UnknownTopicError
from sparklog.metadata import (
    NO_NODE,
    Image,
    PartitionLeadership,
    plan_assign_replicas,
)
from sparklog_server.cluster.elections import begun, plan_completions, plan_reassignments, reassigning
from tests.metadata.cluster_roots import TOPIC, applied, cluster, fenced, joined, leadership, led

KEY = (TOPIC, 0)


def root(*replicas: int, leader: int) -> Image:
    """Partition 0 has these replicas; brokers 1 to 5 are there."""
    image = cluster((1, 2, 3, 4, 5))
    wanted = {KEY: PartitionLeadership(replicas)}
    return led(applied(image, plan_assign_replicas(image, wanted, controller_epoch=1)), {0: leader})


def reassigned(image: Image, target: tuple[int, ...] | None) -> Image:
    return applied(image, *plan_reassignments(image, {KEY: target}, controller_epoch=1))


def test_nothing_holds_it_up_where_all_are_there() -> None:
    after = reassigned(root(1, 2, leader=1), (3, 4))
    assert leadership(after) == PartitionLeadership((3, 4), 3, 2)
    assert reassigning(after) == {}
    same_leader = reassigned(root(1, 2, leader=2), (3, 2))
    assert leadership(same_leader) == PartitionLeadership((3, 2), 2, 1)
    assert plan_reassignments(after, {KEY: (3, 4)}, controller_epoch=1) == []


def test_it_waits_for_who_is_not_there() -> None:
    image = fenced(root(1, 2, leader=1), 4)
    waiting = reassigned(image, (3, 4))
    assert leadership(waiting) == PartitionLeadership((3, 4, 1, 2), 1, 1, (3, 4), (1, 2))
    assert list(reassigning(waiting)) == [KEY]
    assert plan_completions(waiting, controller_epoch=1) == []
    back = joined(waiting, 4)
    after = applied(back, *plan_completions(back, controller_epoch=1))
    assert leadership(after) == PartitionLeadership((3, 4), 3, 2)


def test_it_is_called_off() -> None:
    waiting = reassigned(fenced(root(1, 2, leader=1), 4), (3, 4))
    assert leadership(reassigned(waiting, None)) == PartitionLeadership((1, 2), 1, 1)
    led_by_new = led(waiting, {0: 3})
    assert leadership(reassigned(led_by_new, None)) == PartitionLeadership((1, 2), 1, 3)
    assert leadership(reassigned(led(waiting, {0: NO_NODE}), None)).replicas == (1, 2)


def test_it_is_not_called_off_where_that_would_leave_nobody_to_lead() -> None:
    waiting = led(reassigned(fenced(root(5, 2, leader=2), 4), (3, 4)), {0: 3})
    waiting = fenced(fenced(waiting, 2), 5)
    assert plan_reassignments(waiting, {KEY: None}, controller_epoch=1) == []


def test_one_without_a_target_ends_with_the_replicas_of_before() -> None:
    """Older versions left it so when they forgot a target's only broker."""
    void = {KEY: PartitionLeadership((1, 2), removing=(1, 2))}
    image = root(1, 2, leader=2)
    image = applied(image, plan_assign_replicas(image, void, controller_epoch=1))
    assert leadership(applied(image, *plan_completions(image, controller_epoch=1))) == PartitionLeadership(
        (1, 2), 2, 1
    )
    assert leadership(reassigned(image, None)) == PartitionLeadership((1, 2), 2, 1)
    assert leadership(reassigned(image, (3,))) == PartitionLeadership((3,), 3, 2)


def test_where_all_of_before_are_forgotten_it_is_called_off_to_those_that_came() -> None:
    image = root(4, leader=NO_NODE)
    coming = {KEY: PartitionLeadership((4,), adding=(4,))}
    image = fenced(applied(image, plan_assign_replicas(image, coming, controller_epoch=1)), 4)
    assert leadership(reassigned(image, None)) == PartitionLeadership((4,), NO_NODE, 0)


def test_another_target_replaces_the_first() -> None:
    waiting = reassigned(fenced(root(1, 2, leader=1), 4), (3, 4))
    again = reassigned(waiting, (2, 4))
    assert leadership(again) == PartitionLeadership((2, 4, 1), 1, 1, (4,), (1,))
    assert leadership(reassigned(waiting, (2, 5))) == PartitionLeadership((2, 5), 2, 2)


def test_a_leader_that_came_with_the_first_stays_until_another_leads() -> None:
    waiting = led(reassigned(fenced(root(1, 2, leader=1), 4), (3, 4)), {0: 3})
    again = begun(leadership(waiting), (1, 4))
    assert again == PartitionLeadership((1, 4, 2, 3), 3, 2, (4,), (2, 3))
    assert leadership(reassigned(waiting, (1, 4))) == again


def test_where_nobody_leads_nobody_has_to() -> None:
    image = led(root(1, 2, leader=1), {0: NO_NODE})
    assert leadership(reassigned(image, (3,))) == PartitionLeadership((3,), NO_NODE, 2)


def test_a_partition_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicError):
        plan_reassignments(cluster(), {("B" * 22, 0): (1,)}, controller_epoch=1)
