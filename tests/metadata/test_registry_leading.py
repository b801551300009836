"""Who may lead partitions, and who does: assignments, elections, and their epochs."""

import msgspec
import pytest

from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.metadata import (
    NO_NODE,
    UNASSIGNED,
    AssignReplicas,
    ElectLeaders,
    Image,
    PartitionLeadership,
    partitions_led_by,
    plan_append,
    plan_assign_replicas,
    plan_create_topic,
    plan_delete_topic,
    plan_elect_leaders,
)
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.applying import Draft
from tests.metadata.cluster_roots import TOPIC, applied, cluster, elected, fenced, leadership, led


def assigned(image: Image, partition: int, leadership: PartitionLeadership) -> Image:
    epoch = image.controller.controller_epoch
    wanted = {(TOPIC, partition): leadership}
    return applied(image, plan_assign_replicas(image, wanted, controller_epoch=epoch))


def refuses(image: Image, action: AssignReplicas | ElectLeaders | None, match: str, **fields: object) -> None:
    assert action is not None
    with pytest.raises(ActionRefusedError, match=match):
        applied(image, msgspec.structs.replace(action, **fields))


def election(image: Image, partition: int = 0, leader: int = 2) -> ElectLeaders:
    action = plan_elect_leaders(image, {(TOPIC, partition): leader}, controller_epoch=1)
    assert action is not None
    return action


def test_partitions_begin_without_anybody() -> None:
    image = cluster()
    image = applied(image, plan_create_topic(image, "new", 2, topic_id="B" * 22))
    assert [state.leadership for state in image.topic("new").partitions] == [UNASSIGNED, UNASSIGNED]
    assert leadership(image) == PartitionLeadership((1, 2, 3), NO_NODE, 0)


def test_each_change_of_the_leader_is_an_epoch() -> None:
    image = led(cluster(), [1, 2, 3])
    for leader, epoch in ((2, 2), (NO_NODE, 3), (1, 4), (3, 5)):
        image = led(image, {0: leader})
        assert leadership(image) == PartitionLeadership((1, 2, 3), leader, epoch)
    assert leadership(image, 1) == PartitionLeadership((1, 2, 3), 2, 1)


def test_nothing_to_do_is_no_action() -> None:
    image = led(cluster(), [1, 2, 3])
    assert plan_elect_leaders(image, {(TOPIC, 0): 1, (TOPIC, 2): 3}, controller_epoch=1) is None
    same = {(TOPIC, 0): PartitionLeadership((1, 2, 3))}
    assert plan_assign_replicas(image, same, controller_epoch=1) is None
    one = plan_elect_leaders(image, {(TOPIC, 0): 1, (TOPIC, 2): 2}, controller_epoch=1)
    assert one is not None
    assert (one.partition, one.leader, one.leader_epoch) == ((2,), 2, 2)


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_an_epoch_is_the_next_one(epoch: int) -> None:
    image = led(cluster(), [1, 1, 1])
    refuses(image, election(image), f"leader epoch {epoch}, expected 2", leader_epoch=epoch)


def test_a_leader_is_a_replica_that_is_not_fenced() -> None:
    image = led(cluster(), [1, 1, 1])
    refuses(image, election(image), "leader 9 is fenced: None", leader=9)
    refuses(fenced(image, 2), election(image), "leader 2 is fenced")
    narrow = assigned(image, 0, PartitionLeadership((1, 3)))
    refuses(narrow, election(image), r"leader 2, expected one of \(1, 3\)")
    refuses(image, election(image), "found leader 1 already", leader=1)


def test_an_election_of_what_is_not_there() -> None:
    image = led(cluster(), [1, 1, 1])
    action = election(image)
    refuses(image, action, "no partition 7", partition=(7,))
    refuses(image, action, "no topic has the id", topics=("B" * 22,))
    gone = applied(image, plan_delete_topic(image, "orders"))
    refuses(gone, action, "no topic has the id")
    with pytest.raises(UnknownTopicError):
        plan_elect_leaders(gone, {(TOPIC, 0): 2}, controller_epoch=1)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"partition": ()}, "0 partitions, expected 1 to 262,144"),
        ({"partition": (0, 0)}, "named twice"),
        ({"partition": (0, 1), "leader": (2,)}, "column leader: 1 numbers, expected 2"),
        ({"leader": (2, 2)}, "column leader: 2 numbers, expected 1"),
        ({"leader_epoch": (2, 2, 2)}, "column leader_epoch: 3 numbers, expected 1"),
        ({"topic": (0, 0)}, "column topic: 2 numbers, expected 1"),
        ({"topic": 1}, "an index outside 1 topics"),
        ({"topic": -1}, "an index outside 1 topics"),
        ({"topics": ()}, "an index outside 0 topics"),
    ],
)
def test_columns_that_do_not_fit(fields: dict[str, object], found: str) -> None:
    image = led(cluster(), [1, 1, 1])
    refuses(image, election(image), found, **fields)


def test_as_many_partitions_as_one_action_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    image = led(cluster(), [1, 1, 1])
    monkeypatch.setattr("sparklog.metadata.model.action.MAX_PARTITIONS_OF_ACTION", 2)
    led(image, [2, 2])
    with pytest.raises(ActionRefusedError, match="3 partitions, expected 1 to 2"):
        led(image, [2, 2, 2])


# --- assignments --------------------------------------------------------------------------------------


def test_a_reassignment_keeps_the_leader_and_its_epoch() -> None:
    image = led(assigned(cluster(), 0, PartitionLeadership((1, 2))), {0: 1})
    moving = assigned(image, 0, PartitionLeadership((3, 1, 2), adding=(3,), removing=(1, 2)))
    assert leadership(moving) == PartitionLeadership((3, 1, 2), 1, 1, (3,), (1, 2))
    refuses(
        moving,
        plan_assign_replicas(moving, {(TOPIC, 0): PartitionLeadership((3,))}, controller_epoch=1),
        r"leader 1, expected one of the replicas \(3,\)",
    )
    done = assigned(led(moving, {0: 3}), 0, PartitionLeadership((3,)))
    assert leadership(done) == PartitionLeadership((3,), 3, 2)


def test_lists_of_brokers_stand_once() -> None:
    image = cluster(partitions=100)
    wanted = {
        (TOPIC, partition): PartitionLeadership((1, 2) if partition % 2 else (2, 3))
        for partition in range(100)
    }
    action = plan_assign_replicas(image, wanted, controller_epoch=1)
    assert action is not None
    assert action.lists == ((2, 3), (1, 2))
    assert (action.adding, action.removing) == (-1, -1)
    after = applied(image, action)
    assert [leadership(after, one).replicas for one in (0, 1, 98, 99)] == [(2, 3), (1, 2), (2, 3), (1, 2)]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"lists": ((),)}, "a list of 0 brokers"),
        ({"lists": ((1, 1),)}, "a list of 2 brokers: expected 1 to 100, each once"),
        ({"lists": (tuple(range(101)),)}, "a list of 101 brokers"),
        ({"lists": ((-1,),)}, "expected node ids from 0"),
        ({"lists": ((1 << 31,),)}, "expected node ids from 0"),
        ({"replicas": 1}, "replica-list index out of range"),
        ({"replicas": -1}, "replica-list index out of range"),
        ({"adding": 1}, "replica-list index out of range"),
        ({"removing": -2}, "replica-list index out of range"),
        ({"lists": ((1, 2), (3,)), "adding": 1}, r"adding \(3,\) and removing \(\) of \(1, 2\)"),
        ({"lists": ((1, 2), (3,)), "removing": 1}, r"removing \(3,\) of"),
        ({"lists": ((1, 2), (1,)), "adding": 1, "removing": 1}, r"adding \(1,\) and removing \(1,\)"),
        ({"controller_epoch": 2}, "controller epoch 2 is over"),
    ],
)
def test_assignments_that_say_nothing_sensible(fields: dict[str, object], found: str) -> None:
    image = cluster()
    wanted = {(TOPIC, 0): PartitionLeadership((1, 2))}
    refuses(image, plan_assign_replicas(image, wanted, controller_epoch=1), found, **fields)


def test_an_assignment_without_replicas_is_a_mistake() -> None:
    with pytest.raises(InvalidRequestError, match="without replicas"):
        assigned(cluster(), 0, UNASSIGNED)


# --- beside everything else ---------------------------------------------------------------------------


def test_leaderships_stay_through_appends(draft: Draft) -> None:
    image = led(cluster(), [1, 2, 3])
    image = applied(image, plan_append(image, [draft(TOPIC, 0), draft(TOPIC, 2)]))
    assert [leadership(image, one).leader for one in range(3)] == [1, 2, 3]
    both = applied(
        image,
        plan_append(image, [draft(TOPIC, 0)]),
        plan_elect_leaders(image, {(TOPIC, 0): 3}, controller_epoch=1),
    )
    assert leadership(both) == PartitionLeadership((1, 2, 3), 3, 2)
    assert both.partition("orders", 0).log_end_offset == 20


def test_whose_partitions_are_whose() -> None:
    image = led(cluster(), [2, 1, 2])
    assert partitions_led_by(image, 2) == [(TOPIC, 0), (TOPIC, 2)]
    assert partitions_led_by(image, 3) == []
    assert partitions_led_by(elected(image, 3), 1) == [(TOPIC, 1)]
