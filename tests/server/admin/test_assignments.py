"""Where partitions are to be that are made: what is legal, and what is committed with them."""

from collections import Counter
from collections.abc import Sequence

import pytest

from sparklog.metadata import (
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    plan_add_partitions,
    plan_begin_controlled_shutdown,
    plan_create_topic,
    plan_fence_broker,
)
from sparklog_server.admin.assignments import (
    Placements,
    validate_assignment,
    validate_replication_factor,
    validate_usable,
)
from sparklog_server.admin.changes import RefusedError
from tests.metadata.cluster_roots import applied, cluster, epoch_of, fenced

NEW = "N" * 22


def made(image: Image, placements: Placements, *actions: Action) -> list[PartitionLeadership]:
    """The partitions of the topic `new`, as one commit makes them."""
    after = applied(image, *actions, *placements.complete(image, actions))
    return [one.leadership for one in after.topic("new").partitions]


def creation(image: Image, partitions: int) -> Action:
    return plan_create_topic(image, "new", partitions, topic_id=NEW)


def test_lists_are_the_partitions_from_the_first_on() -> None:
    image, placements = cluster(), Placements()
    placements.want(image, NEW, lists=[(3, 1), (2, 3)])
    assert made(image, placements, creation(image, 2)) == [
        PartitionLeadership((3, 1), 3, 1),
        PartitionLeadership((2, 3), 2, 1),
    ]


def test_the_first_that_is_there_leads() -> None:
    image, placements = fenced(cluster(), 3), Placements()
    placements.want(image, NEW, lists=[(3, 2), (3, 1)])
    assert [one.leader for one in made(image, placements, creation(image, 2))] == [2, 1]


def test_a_factor_is_spread_over_the_brokers() -> None:
    image, placements = cluster((1, 2, 3, 4)), Placements()
    placements.want(image, NEW, factor=3)
    found = made(image, placements, creation(image, 40))
    assert {len(set(one.replicas)) for one in found} == {3}
    assert Counter(one.leader for one in found) == {1: 10, 2: 10, 3: 10, 4: 10}
    assert all(one.leader == one.replicas[0] for one in found)


def test_brokers_that_are_away_count_only_where_the_others_are_too_few() -> None:
    image = fenced(cluster(), 3)
    two, three = Placements(), Placements()
    two.want(image, NEW, factor=2)
    assert {frozenset(one.replicas) for one in made(image, two, creation(image, 9))} == {frozenset({1, 2})}
    three.want(image, NEW, factor=3)
    found = made(image, three, creation(image, 9))
    assert {frozenset(one.replicas) for one in found} == {frozenset({1, 2, 3})}
    assert {one.leader for one in found} == {1, 2}


def test_partitions_that_are_added() -> None:
    image, placements = cluster(), Placements()
    placements.want(image, NEW, lists=[(1, 2)])
    image = applied(image, creation(image, 1), *placements.complete(image, [creation(image, 1)]))
    more = plan_add_partitions(image, "new", 3)
    assert more is not None
    placements.want(image, NEW, lists=[(2, 3), (3, 1)], first=1)
    assert made(image, placements, more) == [
        PartitionLeadership((1, 2), 1, 1),
        PartitionLeadership((2, 3), 2, 1),
        PartitionLeadership((3, 1), 3, 1),
    ]
    more = plan_add_partitions(image, "new", 7)
    assert more is not None
    placements.want(image, NEW, factor=2, first=1)
    found = made(image, placements, more)
    assert found[0] == PartitionLeadership((1, 2), 1, 1)
    assert {len(one.replicas) for one in found[1:]} == {2}
    assert NO_NODE not in {one.leader for one in found}


def test_what_was_refused_or_of_which_nothing_was_said_is_left_alone() -> None:
    image, placements = cluster(), Placements()
    assert placements.complete(image, [creation(image, 1)]) == []
    placements.want(image, "O" * 22, factor=2)  # no action makes it
    placements.want(image, image.topic("orders").topic_id, lists=[(1,)])  # it is there already
    assert placements.complete(image, [creation(image, 1)]) == []
    assert placements.complete(image, []) == []


def test_nothing_is_assigned_while_nobody_controls() -> None:
    image = cluster()
    image = applied(image, plan_fence_broker(image, 1, epoch_of(image, 1)))
    with pytest.raises(RefusedError) as refused:
        Placements().want(image, NEW, factor=2)
    assert refused.value.code.name == "not_controller"
    with pytest.raises(RefusedError):
        Placements().want(image, NEW, lists=[(2,)])


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ((), "empty replica list"),
        ((1, 9), "broker 9, but no such broker"),
        ((9, 8), "broker 8, but no such broker"),
        ((1, 2, 1), "broker 1 more than once"),
        ((1,), "a partition with 1 replica.*which have 2"),
    ],
)
def test_lists_that_cannot_be(replicas: Sequence[int], message: str) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        validate_assignment((1, 2, 3), replicas, factor=2)
    assert refused.value.code.name == "invalid_replica_assignment"


def test_a_list_may_have_a_hundred_brokers() -> None:
    validate_assignment(range(200), range(100))
    with pytest.raises(RefusedError, match="more than 100 brokers"):
        validate_assignment(range(200), range(101))
    validate_replication_factor(range(200), 100)
    with pytest.raises(RefusedError, match="at most 100"):
        validate_replication_factor(range(200), 101)


def test_somebody_has_to_be_there() -> None:
    image = fenced(cluster(), 3)
    image = applied(image, plan_begin_controlled_shutdown(image, 2, epoch_of(image, 2)))
    validate_usable(image, 0, (3, 2, 1))
    with pytest.raises(RefusedError, match="partition 5 are fenced or in controlled shutdown"):
        validate_usable(image, 5, (3, 2))
