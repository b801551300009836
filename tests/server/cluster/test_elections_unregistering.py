"""A broker that is forgotten: others stand where it stood."""

from collections import Counter

import pytest

from sparklog.errors import FencedError, InvalidRequestError
from sparklog.metadata import (
    NO_NODE,
    Image,
    PartitionLeadership,
    empty_image,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_create_topic,
)
from sparklog_server.cluster.elections import plan_unregistering
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


def assigned(image: Image, *partitions: PartitionLeadership) -> Image:
    wanted = {(TOPIC, number): one for number, one in enumerate(partitions)}
    epoch = image.controller.controller_epoch
    return applied(image, plan_assign_replicas(image, wanted, controller_epoch=epoch))


def unregistered(image: Image, node_id: int) -> Image:
    epoch = image.controller.controller_epoch
    actions = plan_unregistering(image, node_id, epoch_of(image, node_id), controller_epoch=epoch)
    return applied(image, *actions)


def test_others_stand_in_its_place() -> None:
    image = assigned(
        cluster((1, 2, 3, 4)),
        PartitionLeadership((3, 1)),
        PartitionLeadership((2, 3)),
        PartitionLeadership((1, 2)),
    )
    image = fenced(led(image, [3, 2, 1]), 3)
    after = unregistered(image, 3)
    assert sorted(after.brokers) == [1, 2, 4]
    first, second = leadership(after, 0), leadership(after, 1)
    assert first.replicas in {(2, 1), (4, 1)}
    assert second.replicas in {(2, 1), (2, 4)}
    assert leadership(after, 2) == leadership(image, 2)  # it was none of its
    # What it led is led again; what others lead they lead on, in the same epoch.
    assert (first.leader, first.leader_epoch) == (first.replicas[0], 3)
    assert (second.leader, second.leader_epoch) == (2, 1)


def test_what_it_had_is_spread() -> None:
    image = cluster((1, 2, 3, 4), partitions=90)
    image = assigned(image, *(PartitionLeadership((4, 1 + number % 3)) for number in range(90)))
    after = unregistered(fenced(image, 4), 4)
    firsts = Counter(one.leadership.replicas[0] for one in after.topic("orders").partitions)
    assert sorted(firsts) == [1, 2, 3]
    assert min(firsts.values()) >= 20
    assert all(len(set(one.leadership.replicas)) == 2 for one in after.topic("orders").partitions)


def test_a_rack_that_has_none_comes_first() -> None:
    image = applied(empty_image("C" * 22), FOUNDING)
    for node_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "b")):
        image = joined(image, node_id, rack=rack)
    image = elected(image, 1)
    image = applied(image, plan_create_topic(image, "orders", 4, topic_id=TOPIC))
    image = assigned(image, *[PartitionLeadership((1, 3))] * 4)
    after = unregistered(fenced(image, 3), 3)
    # Rack b is where nobody is any more.
    assert {one.leadership.replicas for one in after.topic("orders").partitions} == {(1, 4), (1, 5)}


def test_where_there_is_no_other_broker_there_is_a_replica_less() -> None:
    image = assigned(cluster((1, 2), partitions=2), PartitionLeadership((2, 1)), PartitionLeadership((2,)))
    after = unregistered(fenced(led(image, [1, 2]), 2), 2)
    assert leadership(after, 0) == PartitionLeadership((1,), 1, 1)
    assert leadership(after, 1) == PartitionLeadership((1,), 1, 3)


def test_a_partition_keeps_the_name_of_its_last_broker() -> None:
    """The only one that is there is about to stop, and is given nothing."""
    image = assigned(cluster((1, 2), partitions=1), PartitionLeadership((2,)))
    image = fenced(image, 2)
    image = applied(image, plan_begin_controlled_shutdown(image, 1, epoch_of(image, 1)))
    after = unregistered(image, 2)
    assert sorted(after.brokers) == [1]
    assert leadership(after, 0) == PartitionLeadership((2,), NO_NODE, 0)


def test_a_reassignment_goes_on_without_it() -> None:
    image = cluster((1, 2, 3, 4, 5), partitions=2)
    image = assigned(
        image,
        PartitionLeadership((4, 1, 2), adding=(4,), removing=(2,)),
        PartitionLeadership((3, 1, 4), adding=(3,), removing=(4,)),
    )
    after = unregistered(fenced(led(image, [1, 1]), 4), 4)
    comes, goes = leadership(after, 0), leadership(after, 1)
    assert comes.adding == comes.replicas[:1]
    assert comes.adding[0] in {3, 5}
    assert (comes.replicas[1:], comes.removing, comes.leader) == ((1, 2), (2,), 1)
    assert goes == PartitionLeadership((3, 1), 1, 1, (3,), ())


def test_a_reassignment_whose_only_target_is_forgotten_is_called_off() -> None:
    image = cluster((1, 2, 3), partitions=2)
    image = assigned(
        image,
        PartitionLeadership((3, 1), adding=(3,), removing=(1,)),
        PartitionLeadership((3, 1, 2), adding=(3,), removing=(1, 2)),
    )
    image = led(image, [1, 2])
    # All others are to go, or about to stop: nobody can stand in its place.
    image = applied(image, plan_begin_controlled_shutdown(image, 2, epoch_of(image, 2)))
    after = unregistered(fenced(image, 3), 3)
    assert leadership(after, 0) == PartitionLeadership((1,), 1, 1)
    assert leadership(after, 1) == PartitionLeadership((1, 2), 2, 1)


def test_a_target_is_lost_with_the_last_of_its_brokers() -> None:
    image = assigned(
        cluster((1, 2, 3, 4), partitions=1),
        PartitionLeadership((3, 4, 1, 2), adding=(3, 4), removing=(1, 2)),
    )
    image = fenced(fenced(led(image, [1]), 3), 4)
    half = unregistered(image, 3)
    assert leadership(half) == PartitionLeadership((4, 1, 2), 1, 1, (4,), (1, 2))
    assert leadership(unregistered(half, 4)) == PartitionLeadership((1, 2), 1, 1)


@pytest.mark.parametrize(("others", "expected"), [((2,), (2,)), ((), (1,))], ids=["successor", "none"])
def test_a_list_without_a_target_loses_the_last_broker_as_any_list(
    others: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Roots have such lists from older versions: everybody is to go, and nobody comes."""
    image = assigned(
        cluster((1, 3, *others), partitions=1, controller=3), PartitionLeadership((1,), removing=(1,))
    )
    image = applied(image, plan_begin_controlled_shutdown(image, 3, epoch_of(image, 3)))
    after = unregistered(fenced(image, 1), 1)
    assert leadership(after).replicas == expected
    assert leadership(after).removing == ()


def test_who_is_not_fenced_is_not_forgotten() -> None:
    image = cluster()
    with pytest.raises(InvalidRequestError, match="not fenced"):
        plan_unregistering(image, 2, epoch_of(image, 2), controller_epoch=1)
    gone = fenced(image, 2)
    with pytest.raises(FencedError, match="CONTROLLER_FENCED"):
        plan_unregistering(gone, 2, epoch_of(gone, 2), controller_epoch=0)
    assert plan_unregistering(gone, 9, 0, controller_epoch=1) == []
