"""What a controller does with one commit, and who may do it; pure."""

import pytest

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.log.config import RootConfig
from sparklog.metadata import (
    NO_NODE,
    Action,
    ElectLeaders,
    Image,
    empty_image,
    plan_add_partitions,
    plan_begin_controlled_shutdown,
    plan_create_topic,
    plan_fence_broker,
)
from sparklog_server.cluster.elections import Assigning, Duties, Known, plan_entering
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

ASSIGNING = Assigning(lambda _: RootConfig())


def known(image: Image, node: int) -> Known:
    return node, epoch_of(image, node)


def done(image: Image, node: int, *dead: Known) -> Image:
    """After what a broker finds due."""
    actions = Duties(registration=known(image, node), dead=dead, assigning=ASSIGNING).plan(image)
    return applied(image, *actions) if actions else image


def leaders(image: Image, count: int = 3) -> list[int]:
    return [leadership(image, number).leader for number in range(count)]


def with_topic(image: Image, partitions: int = 3) -> Image:
    return applied(image, plan_create_topic(image, "orders", partitions, topic_id=TOPIC))


def test_who_finds_no_controller_becomes_it_and_all_is_led_with_one_commit() -> None:
    image = with_topic(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2))
    after = done(image, 2)
    assert (after.commit, after.controller.node_id, after.controller.controller_epoch) == (
        image.commit + 1,
        2,
        1,
    )
    assert set(leaders(after)) == {1, 2}
    assert done(after, 2) is after


def test_who_is_not_the_controller_does_nothing() -> None:
    image = fenced(led(cluster(), [3, 3, 3]), 3)
    assert leaders(image) == [NO_NODE] * 3
    assert done(image, 2) is image
    assert leaders(done(image, 1)) == [1, 1, 1]


def test_a_controller_that_is_dead_is_replaced_and_what_it_led_moves_in_one_commit() -> None:
    image = led(cluster(), [1, 1, 2])
    after = done(image, 3, known(image, 1))
    assert after.commit == image.commit + 1
    assert (after.controller.node_id, after.controller.controller_epoch) == (3, 2)
    assert after.brokers[1].is_fenced
    assert leaders(after) == [2, 2, 2]
    assert [leadership(after, number).leader_epoch for number in range(3)] == [2, 2, 1]


def test_who_is_fenced_does_nothing_whatever_it_believes() -> None:
    """A controller stood still, and was replaced; what it had decided comes to nothing."""
    image = led(cluster(), [1, 2, 3])
    paused = known(image, 1)
    image = elected(image, 2)
    image = fenced(image, 1)
    late = Duties(registration=paused, dead=[known(image, 3)], assigning=ASSIGNING)
    assert late.plan(image) == []
    nobody = fenced(led(cluster(), [1, 2, 3]), 1)
    assert Duties(registration=known(nobody, 1), assigning=ASSIGNING).plan(nobody) == []


def test_a_dead_registration_is_not_the_one_that_has_joined_since() -> None:
    image = led(cluster(), [1, 2, 3])
    dead = known(image, 2)
    image = joined(fenced(image, 2), 2)
    after = done(image, 1, dead)
    assert not after.brokers[2].is_fenced


def test_what_brokers_in_controlled_shutdown_lead_goes_to_others() -> None:
    image = led(cluster(), [2, 2, 3])
    image = applied(image, plan_begin_controlled_shutdown(image, 2, epoch_of(image, 2)))
    assert leaders(done(image, 1)) == [1, 1, 3]


def entered(image: Image, node: int) -> Image:
    """After the commit by which a broker joins, in the place of the registration that stands, if one does."""
    without = image
    known_one = image.brokers.get(node)
    if known_one is not None and not known_one.is_fenced:
        without = applied(image, plan_fence_broker(image, node, known_one.broker_epoch))
    after = joined(without, node)
    return applied(after, *plan_entering(image, after, known(after, node), ASSIGNING))


@pytest.mark.parametrize("is_new", [True, False])
def test_the_first_broker_is_controller_with_its_join(is_new: bool) -> None:
    image = with_topic(applied(empty_image("C" * 22), FOUNDING))
    if not is_new:  # it was the only one, and not the controller yet
        image = joined(image, 1)
    after = entered(image, 1)
    assert (after.controller.node_id, leaders(after)) == (1, [1, 1, 1])


def test_others_are_not_disturbed_by_a_join_while_there_is_no_controller() -> None:
    image = with_topic(joined(applied(empty_image("C" * 22), FOUNDING), 1))
    after = joined(image, 2)
    assert plan_entering(image, after, known(after, 2), ASSIGNING) == []


def test_a_newcomer_is_a_replica_with_its_join_and_one_that_comes_back_is_not() -> None:
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1), 1)
    image = done(with_topic(image), 1)
    after = entered(image, 2)
    assert {leadership(after, number).replicas for number in range(3)} == {(1, 2), (2, 1)}
    assert leaders(after) == [1, 1, 1]
    once_more = joined(fenced(after, 2), 2)
    assert plan_entering(fenced(after, 2), once_more, known(once_more, 2), ASSIGNING) == []


def test_what_a_registration_led_is_led_with_the_join_that_ends_it() -> None:
    image = led(cluster(), [2, 2, 3])
    after = entered(image, 2)
    assert (after.controller.node_id, after.controller.controller_epoch) == (1, 1)
    assert leaders(after) == [1, 1, 3]
    assert [leadership(after, number).leader_epoch for number in range(3)] == [3, 3, 1]


def test_a_controller_that_is_started_again_leaves_its_role_to_others_and_decides_nothing() -> None:
    """Nobody knows here which of them are alive; who is elected next sees to what it led."""
    image = led(cluster(), [1, 2, 1])
    after = entered(image, 1)
    assert after.controller.node_id == NO_NODE
    assert leaders(after) == [NO_NODE, 2, NO_NODE]


def test_a_join_is_made_though_what_is_due_with_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_image: Image, *, controller_epoch: int) -> list[Action]:
        raise InvalidRequestError("INVALID_ACTIONS", f"in epoch {controller_epoch}", fix="nothing")

    monkeypatch.setattr("sparklog_server.cluster.elections.plan_takeover", refused)
    image = led(cluster(), [2, 2, 3])
    assert leaders(entered(image, 2)) == [NO_NODE, NO_NODE, 3]


def test_partitions_that_a_broker_makes_are_led_in_the_same_commit() -> None:
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2), 1)
    create = plan_create_topic(image, "orders", 2, topic_id=TOPIC)
    image = applied(image, create, *ASSIGNING.assignments(image, [create]))
    assert sorted(leaders(image, 2)) == [1, 2]
    add = plan_add_partitions(image, "orders", 4)
    assert add is not None
    image = applied(image, add, *ASSIGNING.assignments(image, [add]))
    assert sorted(leaders(image, 4)) == [1, 1, 2, 2]
    assert ASSIGNING.assignments(image, [FOUNDING]) == ()
    no_controller = fenced(image, 1)
    assert ASSIGNING.assignments(no_controller, [create]) == ()


def test_a_part_that_is_refused_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot be planned, and what another one planned does not apply."""
    too_late = ElectLeaders(controller_epoch=1, topics=(TOPIC,), partition=(0,), leader=1, leader_epoch=9)
    monkeypatch.setattr(
        "sparklog_server.cluster.elections.plan_takeover", lambda _image, *, controller_epoch: [too_late]
    )

    def unreadable(_image: Image) -> RootConfig:
        raise InvalidRequestError("UNKNOWN_CONFIG", "settings of a newer version", fix="upgrade")

    image = led(cluster(), [3, 1, 1])
    dead = known(image, 3)
    image = applied(image, plan_create_topic(image, "new", 1, topic_id="B" * 22))
    image = applied(image, plan_begin_controlled_shutdown(image, 1, epoch_of(image, 1)))
    refused: list[Exception] = []
    duties = Duties(registration=known(image, 1), dead=[dead], assigning=Assigning(unreadable))
    after = applied(image, *duties.plan(image, refused.append))
    assert after.brokers[3].is_fenced
    assert leaders(after) == [2, 2, 2]
    assert [isinstance(one, SparklogError) for one in refused] == [True, False]
    assert "leader epoch 9, expected 3" in str(refused[1])
    assert applied(image, *duties.plan(image)).brokers[3].is_fenced  # who enters has nobody to tell


def test_how_many_replicas_is_the_roots_to_say() -> None:
    said = Assigning(
        lambda image: RootConfig.parse({"default.replication.factor": "1", **dict(image.configs)})
    )
    image = elected(joined(applied(empty_image("C" * 22), FOUNDING), 1, 2, 3), 1)
    assert (said.factor_of(image, "orders"), said.factor_of(image, "__consumer_offsets")) == (1, 3)
