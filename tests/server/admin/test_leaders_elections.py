"""Elections that clients ask for: an outcome for each partition."""

import pytest

from sparklog.errors import FencedError
from sparklog.metadata import Image, PartitionLeadership, plan_assign_replicas
from sparklog_server.admin.leaders import Elections, ElectionType
from tests.metadata.cluster_roots import TOPIC, applied, cluster, fenced, leadership, led

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN
ALL = [("orders", 0), ("orders", 1), ("orders", 2)]


def elected(
    image: Image, kind: ElectionType, asked: list[tuple[str, int]] | None
) -> tuple[dict[tuple[str, int], str], Image]:
    elections = Elections(kind, asked)
    actions = elections(image, image.controller.controller_epoch)
    after = applied(image, *actions) if actions else image
    return {key: one.code.name for key, one in elections.outcomes.items()}, after


def leaders(image: Image) -> list[int]:
    return [one.leadership.leader for one in image.topic("orders").partitions]


def test_preferred_leaders() -> None:
    """The first of (1, 2, 3) everywhere."""
    image = led(cluster(), [1, 2, 3])
    outcomes, after = elected(image, PREFERRED, [*ALL, ("orders", 9), ("none", 0), ("orders", -1)])
    assert outcomes == {
        ("orders", 0): "election_not_needed",
        ("orders", 1): "none",
        ("orders", 2): "none",
        ("orders", 9): "unknown_topic_or_partition",
        ("none", 0): "unknown_topic_or_partition",
        ("orders", -1): "unknown_topic_or_partition",
    }
    assert leaders(after) == [1, 1, 1]
    assert [leadership(after, number).leader_epoch for number in range(3)] == [1, 2, 2]


def test_of_all_partitions_those_that_need_none_are_not_told() -> None:
    outcomes, after = elected(led(cluster(), [1, 2, 1]), PREFERRED, None)
    assert outcomes == {("orders", 1): "none"}
    assert leaders(after) == [1, 1, 1]
    assert elected(after, PREFERRED, None) == ({}, after)


def test_a_preferred_leader_that_is_not_there() -> None:
    image = fenced(led(cluster(controller=2), [2, 2, 3]), 1)
    outcomes, after = elected(image, PREFERRED, ALL)
    assert outcomes == dict.fromkeys(ALL, "preferred_leader_not_available")
    assert after is image


def test_partitions_without_a_leader_get_one() -> None:
    image = fenced(led(cluster(controller=3), [1, 2, 1]), 1)
    outcomes, after = elected(image, UNCLEAN, ALL)
    assert outcomes == {ALL[0]: "none", ALL[1]: "election_not_needed", ALL[2]: "none"}
    assert leaders(after) == [2, 2, 2]
    assert elected(image, UNCLEAN, None)[0] == {ALL[0]: "none", ALL[2]: "none"}


def test_partitions_whose_replicas_are_all_away() -> None:
    image = cluster()
    only = {(TOPIC, 0): PartitionLeadership((2,))}
    image = fenced(led(applied(image, plan_assign_replicas(image, only, controller_epoch=1)), {0: 2}), 2)
    assert elected(image, UNCLEAN, ALL[:1])[0] == {ALL[0]: "eligible_leaders_not_available"}
    assert elected(image, PREFERRED, ALL[:1])[0] == {ALL[0]: "preferred_leader_not_available"}


def test_another_controllers_epoch() -> None:
    image = led(cluster(), [2, 2, 2])
    with pytest.raises(FencedError, match="CONTROLLER_FENCED"):
        Elections(PREFERRED, ALL)(image, 7)
