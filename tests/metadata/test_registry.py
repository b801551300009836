"""Brokers: registrations that stand, that are fenced, that come again; one controller an epoch."""

import dataclasses

import msgspec
import pytest

from sparklog.errors import FencedError, InvalidRequestError
from sparklog.metadata import (
    NO_NODE,
    Action,
    BeginControlledShutdown,
    BrokerListener,
    Controller,
    ElectController,
    FenceBroker,
    JoinBroker,
    RegisteredBroker,
    UnregisterBroker,
    empty_image,
    new_id,
    plan_begin_controlled_shutdown,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
    plan_unregister_broker,
    validate_broker,
    validate_controller,
)
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.cluster_roots import (
    FOUNDING,
    LISTENERS,
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


def refuses(image: object, action: Action, match: str) -> None:
    with pytest.raises(ActionRefusedError, match=match):
        applied(image, action)  # type: ignore[arg-type]


def test_several_are_registered_each_with_an_epoch_of_its_own() -> None:
    image = joined(applied(empty_image("C" * 22), FOUNDING), 2, 1, 7, rack="east")
    assert list(image.brokers) == [2, 1, 7]
    assert [epoch_of(image, node) for node in (2, 1, 7)] == [1, 2, 3]
    assert image.brokers[7] == RegisteredBroker(
        node_id=7,
        broker_epoch=3,
        incarnation_id=image.brokers[7].incarnation_id,
        listeners=LISTENERS,
        rack="east",
    )


def test_a_node_id_is_one_running_brokers() -> None:
    image = cluster()
    with pytest.raises(FencedError, match=r"broker 2 registered with epoch 2, at localhost:9092") as raised:
        joined(image, 2)
    assert raised.value.code == "DUPLICATE_BROKER"
    action = JoinBroker(node_id=2, broker_epoch=image.commit + 1, incarnation_id=new_id())
    refuses(image, action, "node id 2 is registered with epoch 2, and not fenced")
    assert epoch_of(joined(fenced(image, 2), 2), 2) == image.commit + 2


@pytest.mark.parametrize("away", [-1, 1])
def test_a_broker_epoch_is_the_number_of_its_commit(away: int) -> None:
    image = applied(empty_image("C" * 22), FOUNDING)
    action = JoinBroker(node_id=1, broker_epoch=image.commit + 1 + away, incarnation_id=new_id())
    refuses(image, action, f"broker epoch {1 + away}, expected 1")


@pytest.mark.parametrize(
    "fields",
    [
        {"node_id": -1},
        {"node_id": 1 << 31},
        {"incarnation_id": "short"},
        {"listeners": (BrokerListener(host="", port=1),)},
        {"listeners": (BrokerListener(host="h" * 256, port=1),)},
        {"listeners": (BrokerListener(host="h", port=0),)},
        {"listeners": LISTENERS * 101},
        {"rack": "r" * 256},
    ],
)
def test_malformed_brokers(fields: dict[str, object]) -> None:
    image = applied(empty_image("C" * 22), FOUNDING)
    values: dict[str, object] = {"node_id": 1, "incarnation_id": new_id(), **fields}
    action = JoinBroker(broker_epoch=1, **values)  # type: ignore[arg-type]
    refuses(image, action, "broker: ")
    node_id = values.pop("node_id")
    with pytest.raises(InvalidRequestError) as raised:
        plan_join_broker(image, node_id, **values)  # type: ignore[arg-type]
    assert raised.value.code == "INVALID_ACTIONS"


def test_more_brokers_than_a_root_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.metadata.model.registry.MAX_BROKERS", 2)
    image = joined(applied(empty_image("C" * 22), FOUNDING), 1, 2)
    with pytest.raises(ActionRefusedError, match="more than 2 brokers"):
        joined(image, 3)


# --- fences -------------------------------------------------------------------------------------------


def test_who_is_fenced_leads_nothing_and_each_epoch_is_over() -> None:
    image = led(cluster(), [2, 1, 2])
    after = fenced(image, 2)
    assert after.brokers[2].is_fenced
    assert [(leadership(after, one).leader, leadership(after, one).leader_epoch) for one in range(3)] == [
        (NO_NODE, 2),
        (1, 1),
        (NO_NODE, 2),
    ]
    assert leadership(after).replicas == (1, 2, 3)
    again = joined(after, 2)
    assert leadership(again).leader == NO_NODE


def test_a_fence_finds_what_the_same_commit_has_changed() -> None:
    image = led(cluster(), [2, 2, 1])
    elect = plan_elect_leaders(image, {(TOPIC, 0): 3, (TOPIC, 2): 2}, controller_epoch=1)
    fence = plan_fence_broker(image, 2, epoch_of(image, 2), controller_epoch=1)
    after = applied(image, elect, fence)
    assert [leadership(after, one).leader for one in range(3)] == [3, NO_NODE, NO_NODE]
    assert [leadership(after, one).leader_epoch for one in range(3)] == [2, 2, 3]


def test_a_registration_is_fenced_once_and_its_successor_is_not_meant() -> None:
    image = cluster()
    action = plan_fence_broker(image, 2, epoch_of(image, 2), controller_epoch=1)
    assert action is not None
    after = applied(image, action)
    assert plan_fence_broker(after, 2, epoch_of(image, 2)) is None
    refuses(after, action, "broker 2 of epoch 2 is fenced")
    again = joined(after, 2)
    assert plan_fence_broker(again, 2, epoch_of(image, 2)) is None
    refuses(again, action, "broker 2 of epoch 2 is fenced")
    refuses(again, FenceBroker(node_id=9, broker_epoch=2), "broker 9 of epoch 2 is fenced: None")


def test_a_node_may_fence_its_own_registration() -> None:
    image = cluster()
    action = plan_fence_broker(image, 2, epoch_of(image, 2))
    assert action == FenceBroker(node_id=2, broker_epoch=2)
    assert applied(image, action).brokers[2].is_fenced


def test_what_a_registration_may_do_is_over_with_it() -> None:
    image = cluster()
    assert validate_broker(image, 2, 2).node_id == 2
    after = joined(fenced(image, 2), 2)
    for one, found in ((fenced(image, 2), "of epoch 2, and fenced"), (after, f"of epoch {after.commit}")):
        with pytest.raises(FencedError, match=f"found broker 2 {found}, expected epoch 2") as raised:
            validate_broker(one, 2, 2)
        assert raised.value.code == "BROKER_FENCED"
    with pytest.raises(FencedError, match="found broker 9 not registered"):
        validate_broker(image, 9, 2)


# --- controlled shutdown, and leaving ---------------------------------------------------------------


def test_controlled_shutdown_is_announced_once() -> None:
    image = led(cluster(), [2, 2, 2])
    action = plan_begin_controlled_shutdown(image, 2, epoch_of(image, 2))
    assert action == BeginControlledShutdown(node_id=2, broker_epoch=2)
    after = applied(image, action)
    assert after.brokers[2].in_controlled_shutdown
    assert leadership(after).leader == 2  # until the controller has moved it
    assert plan_begin_controlled_shutdown(after, 2, epoch_of(image, 2)) is None
    assert not joined(fenced(after, 2), 2).brokers[2].in_controlled_shutdown
    with pytest.raises(FencedError):
        plan_begin_controlled_shutdown(fenced(after, 2), 2, 2)
    refuses(fenced(after, 2), action, "is fenced")


def test_a_broker_is_forgotten_once_it_is_fenced() -> None:
    image = led(cluster(), [2, 2, 2])
    with pytest.raises(InvalidRequestError, match="broker 2 is not fenced"):
        plan_unregister_broker(image, 2, 2, controller_epoch=1)
    action = UnregisterBroker(node_id=2, broker_epoch=2, controller_epoch=1)
    refuses(image, action, "is not registered and fenced")
    gone = fenced(image, 2)
    assert plan_unregister_broker(gone, 2, 2, controller_epoch=1) == action
    after = applied(gone, action)
    assert list(after.brokers) == [1, 3]
    assert leadership(after).replicas == (1, 2, 3)
    assert plan_unregister_broker(after, 2, 2, controller_epoch=1) is None
    refuses(after, action, "is not registered and fenced: None")
    refuses(joined(gone, 2), action, "is not registered and fenced")


# --- the controller -----------------------------------------------------------------------------------


def test_a_controller_epoch_is_one_brokers() -> None:
    image = cluster()
    assert image.controller == Controller(1, epoch_of(image, 1), 1)
    of_two, of_three = (plan_elect_controller(image, node, epoch_of(image, node)) for node in (2, 3))
    after = applied(image, of_two)
    assert after.controller == Controller(2, epoch_of(image, 2), 2)
    refuses(after, of_three, "controller epoch 2, expected 3")
    refuses(after, ElectController(node_id=3, broker_epoch=3, controller_epoch=4), "epoch 4, expected 3")


@pytest.mark.parametrize(("node", "epoch"), [(2, 1), (9, 9)])
def test_only_a_registered_broker_is_elected(node: int, epoch: int) -> None:
    action = ElectController(node_id=node, broker_epoch=epoch, controller_epoch=2)
    refuses(cluster(), action, f"broker {node} of epoch {epoch} is fenced")
    refuses(fenced(cluster(), 2), ElectController(node_id=2, broker_epoch=2, controller_epoch=2), "is fenced")


def test_what_a_controller_of_an_older_epoch_says_does_not_apply() -> None:
    image = led(cluster(), [1, 1, 1])
    fence = plan_fence_broker(image, 3, epoch_of(image, 3), controller_epoch=1)
    elect = plan_elect_leaders(image, {(TOPIC, 0): 2}, controller_epoch=1)
    assert fence is not None
    assert elect is not None
    unregister = UnregisterBroker(node_id=3, broker_epoch=3, controller_epoch=1)
    after = elected(image, 2)
    for action in (fence, elect, unregister):
        refuses(after, action, "controller epoch 1 is over")
        refuses(image, msgspec.structs.replace(action, controller_epoch=2), "controller epoch 2 is over")
    validate_controller(after, 2)
    with pytest.raises(FencedError, match="found controller epoch 2 of broker 2, expected 1") as raised:
        plan_elect_leaders(after, {(TOPIC, 0): 2}, controller_epoch=1)
    assert raised.value.code == "CONTROLLER_FENCED"


def test_a_controller_that_is_fenced_is_none_and_its_epoch_is_not_given_again() -> None:
    image = led(cluster(), [2, 2, 2])
    after = applied(image, plan_fence_broker(image, 1, epoch_of(image, 1)))
    assert after.controller == Controller(NO_NODE, -1, 1)
    elect = plan_elect_leaders(image, {(TOPIC, 0): 3}, controller_epoch=1)
    assert elect is not None
    refuses(after, elect, "controller epoch 1 is over")
    with pytest.raises(FencedError):
        validate_controller(after, 1)
    assert elected(after, 3).controller.controller_epoch == 2


def test_images_are_not_changed() -> None:
    image = led(cluster(), [1, 2, 3])
    before = dataclasses.replace(image)
    fenced(elected(image, 2), 1)
    assert image == before
    assert leadership(image, 0).leader == 1
