"""Reassignments that clients ask for: an outcome for each partition."""

from collections.abc import Sequence

import pytest

from sparklog.errors import FencedError
from sparklog.metadata import Image, PartitionLeadership
from sparklog_server.admin.leaders import Named, Reassignments, under_way
from tests.metadata.cluster_roots import applied, cluster, elected, fenced, leadership, led

ZERO = ("orders", 0)


def reassigned(
    image: Image, targets: dict[Named, Sequence[int] | None], *, may_change_factor: bool = True
) -> tuple[dict[Named, str], Image]:
    plan = Reassignments(targets, may_change_factor=may_change_factor)
    actions = plan(image, image.controller.controller_epoch)
    after = applied(image, *actions) if actions else image
    return {key: one.code.name for key, one in plan.outcomes.items()}, after


def root(*, away: int | None = None) -> Image:
    """Brokers 1 to 4; (1, 2, 3, 4) everywhere, led by 1."""
    image = led(cluster((1, 2, 3, 4)), [1, 1, 1])
    return image if away is None else fenced(image, away)


def test_one_that_is_refused_harms_no_other() -> None:
    outcomes, after = reassigned(
        root(),
        {
            ZERO: (3, 2),
            ("orders", 1): (),
            ("orders", 2): (1, 9),
            ("orders", 3): (1,),
            ("none", 0): (1,),
            ("none", 1): None,
        },
    )
    assert outcomes == {
        ZERO: "none",
        ("orders", 1): "invalid_replica_assignment",
        ("orders", 2): "invalid_replica_assignment",
        ("orders", 3): "unknown_topic_or_partition",
        ("none", 0): "unknown_topic_or_partition",
        ("none", 1): "unknown_topic_or_partition",
    }
    assert leadership(after, 0) == PartitionLeadership((3, 2), 3, 2)
    assert leadership(after, 1) == leadership(root(), 1)


@pytest.mark.parametrize("target", [(1, 1), (2, 1, 2), (-1,), tuple(range(200))])
def test_lists_that_cannot_be(target: tuple[int, ...]) -> None:
    image = root()
    assert reassigned(image, {ZERO: target}) == ({ZERO: "invalid_replica_assignment"}, image)


def test_the_number_of_replicas_may_be_kept() -> None:
    image = root()
    outcomes, after = reassigned(image, {ZERO: (3, 2)}, may_change_factor=False)
    assert (outcomes, after) == ({ZERO: "invalid_replication_factor"}, image)
    outcomes, after = reassigned(image, {ZERO: (4, 3, 2, 1)}, may_change_factor=False)
    assert outcomes == {ZERO: "none"}
    assert leadership(after).replicas == (4, 3, 2, 1)
    # Those that were to be added by a reassignment before do not count.
    waiting = reassigned(reassigned(root(away=4), {ZERO: (1, 2)})[1], {ZERO: (3, 4)})[1]
    assert leadership(waiting).adding == (3, 4)
    assert reassigned(waiting, {ZERO: (2, 3)}, may_change_factor=False)[0] == {ZERO: "none"}


def test_one_that_waits_is_listed_and_called_off() -> None:
    image = reassigned(root(away=4), {ZERO: (1, 2)})[1]
    assert under_way(image, None) == {}
    outcomes, waiting = reassigned(image, {ZERO: (2, 4), ("orders", 1): None})
    assert outcomes == {ZERO: "none", ("orders", 1): "no_reassignment_in_progress"}
    assert list(under_way(waiting, None)) == [ZERO]
    assert under_way(waiting, [ZERO, ZERO])[ZERO] == leadership(waiting)
    assert leadership(waiting) == PartitionLeadership((2, 4, 1), 1, 1, (4,), (1,))
    assert under_way(waiting, [("orders", 1), ("none", 0)]) == {}
    outcomes, after = reassigned(waiting, {ZERO: None})
    assert outcomes == {ZERO: "none"}
    assert leadership(after) == PartitionLeadership((2, 1), 1, 1)
    assert under_way(after, None) == {}


def test_it_is_not_called_off_where_that_would_leave_nobody_to_lead() -> None:
    image = reassigned(root(), {ZERO: (1, 2)})[1]
    waiting = led(reassigned(fenced(image, 4), {ZERO: (3, 4)})[1], {0: 3})
    waiting = fenced(fenced(waiting, 2), 1)
    waiting = elected(waiting, 3)
    assert reassigned(waiting, {ZERO: None}) == ({ZERO: "invalid_replica_assignment"}, waiting)


def test_another_controllers_epoch() -> None:
    with pytest.raises(FencedError, match="CONTROLLER_FENCED"):
        Reassignments({ZERO: (2,)}, may_change_factor=True)(root(), 7)
