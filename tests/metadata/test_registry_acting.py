"""Whose commit it is: a broker's applies while its registration stands, and it leads as it did."""

from collections.abc import Sequence

import msgspec
import pytest

from sparklog.errors import FencedError, InvalidRequestError
from sparklog.metadata import (
    ActAsBroker,
    Action,
    Image,
    SetConfigs,
    leadership_of,
    may_append,
    plan_act_as_broker,
    plan_append,
    plan_delete_topic,
)
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.applying import Draft
from tests.metadata.cluster_roots import (
    TOPIC,
    applied,
    as_broker,
    cluster,
    elected,
    epoch_of,
    fenced,
    joined,
    led,
)

SETTING = SetConfigs(configs={"a": "1"})


def ended(image: Image) -> list[int]:
    return [state.log_end_offset for state in image.topic("orders").partitions]


def refuses(image: Image, actions: Sequence[Action], match: str) -> None:
    with pytest.raises(ActionRefusedError, match=match):
        applied(image, *actions)


def test_a_group_of_parts_each_with_its_epoch(draft: Draft) -> None:
    image = led(led(cluster(), [1, 2, 1]), {0: 2})
    image = led(image, {0: 1})
    actions = as_broker(image, 1, [plan_append(image, [draft(TOPIC, 0), draft(TOPIC, 2)])], [3, 1])
    assert isinstance(actions[0], ActAsBroker)
    assert actions[0].leader_epoch == (3, 1)
    assert ended(applied(image, *actions)) == [10, 0, 10]
    same = as_broker(image, 1, [plan_append(image, [draft(TOPIC, 2), draft(TOPIC, 2)])], [1, 1])
    assert isinstance(same[0], ActAsBroker)
    assert same[0].leader_epoch == 1
    assert ended(applied(image, *same)) == [0, 0, 20]


def test_there_and_back_between_accepting_and_publishing(draft: Draft) -> None:
    image = led(cluster(), [1, 1, 1])
    later = led(led(image, {0: 2}), {0: 1})
    actions = as_broker(later, 1, [plan_append(later, [draft(TOPIC, 0)])], [1])
    refuses(later, actions, "broker 1 in leader epoch 1, expected 1 in 3")
    again = as_broker(later, 1, [plan_append(later, [draft(TOPIC, 0)])], [3])
    assert ended(applied(later, *again)) == [10, 0, 0]


def test_one_that_never_led_appends_nothing(draft: Draft) -> None:
    image = led(cluster(), [1, 1, 1])
    actions = as_broker(image, 2, [plan_append(image, [draft(TOPIC, 0)])], [1])
    refuses(image, actions, "broker 2 in leader epoch 1, expected 1 in 1")


def test_the_lost_parts_are_known_before_they_are_planned(draft: Draft) -> None:
    image = led(cluster(), [1, 1, 2])
    parts = [(TOPIC, partition, 1) for partition in range(3)]
    assert [may_append(image, 1, *part) for part in parts] == [True, True, False]
    later = led(image, {0: 2})
    kept = [part for part in parts if may_append(later, 1, *part)]
    assert kept == [(TOPIC, 1, 1)]
    drafts = [draft(TOPIC, partition) for _, partition, _ in kept]
    actions = as_broker(later, 1, [plan_append(later, drafts)], [epoch for _, _, epoch in kept])
    assert ended(applied(later, *actions)) == [0, 10, 0]
    now = leadership_of(later, TOPIC, 0)
    assert now is not None
    assert (now.leader, now.leader_epoch) == (2, 2)  # what the client of the lost part is told
    there_and_back = led(later, {0: 1})
    assert [may_append(there_and_back, 1, *part) for part in parts] == [False, True, False]
    gone = applied(later, plan_delete_topic(later, "orders"))
    assert [may_append(gone, 1, *part) for part in parts] == [False, False, False]
    assert leadership_of(gone, TOPIC, 0) is None
    assert leadership_of(image, TOPIC, 3) is None


def test_whose_registration_is_over_publishes_nothing(draft: Draft) -> None:
    image = led(cluster(), [2, 2, 2])
    append = as_broker(image, 2, [plan_append(image, [draft(TOPIC)])], [1])
    setting = as_broker(image, 2, [SETTING])
    applied(image, *append)
    applied(image, *setting)
    for after in (fenced(image, 2), joined(fenced(image, 2), 2)):
        refuses(after, append, r"action 0 \(act_as_broker\): broker 2 of epoch 2 is fenced")
        refuses(after, setting, "broker 2 of epoch 2 is fenced")
        with pytest.raises(FencedError, match="expected epoch 2") as raised:
            plan_act_as_broker(after, [SETTING], node_id=2, broker_epoch=2)
        assert raised.value.code == "BROKER_FENCED"


def test_a_fence_in_the_middle_of_a_commit_counts_from_there(draft: Draft) -> None:
    image = led(cluster(), [2, 2, 2])
    append = as_broker(image, 2, [plan_append(image, [draft(TOPIC)])], [1])
    from sparklog.metadata import FenceBroker

    refuses(image, [FenceBroker(node_id=2, broker_epoch=2), *append], "broker 2 of epoch 2 is fenced")
    inside = [
        msgspec.structs.replace(append[0], actions=2),
        FenceBroker(node_id=2, broker_epoch=2),
        append[1],
    ]
    refuses(image, inside, r"action 2 \(append_extents\): .* expected -1 in 2")


def test_its_scope_ends_and_others_are_not_asked(draft: Draft) -> None:
    image = led(cluster(), [1, 1, 1])
    of_broker = as_broker(image, 1, [plan_append(image, [draft(TOPIC, 0)]), SETTING], [1])
    assert isinstance(of_broker[0], ActAsBroker)
    assert of_broker[0].actions == 2
    of_anybody = plan_append(image, [draft(TOPIC, 1), draft(TOPIC, 2)])
    assert ended(applied(image, *of_broker, of_anybody)) == [10, 10, 10]
    assert ended(applied(image, of_anybody, *of_broker)) == [10, 10, 10]


def test_two_brokers_in_one_commit(draft: Draft) -> None:
    image = led(cluster(), [1, 2, 3])
    one = as_broker(image, 1, [plan_append(image, [draft(TOPIC, 0)])], [1])
    two = as_broker(image, 2, [plan_append(image, [draft(TOPIC, 1)])], [1])
    assert ended(applied(image, *one, *two)) == [10, 10, 0]
    nested = [msgspec.structs.replace(one[0], actions=2), two[0], two[1]]
    refuses(image, nested, "act_as_broker ranges overlap")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"actions": 0}, "0 actions of a broker, found 1"),
        ({"actions": 2}, "2 actions of a broker, found 1"),
        ({"leader_epoch": ()}, "more extents than leader epochs"),
        ({"leader_epoch": (1,)}, "more extents than leader epochs"),
        ({"leader_epoch": (1, 1, 1)}, "fewer extents than leader epochs"),
        ({"leader_epoch": 2}, "in leader epoch 2, expected 1 in 1"),
        ({"node_id": 2}, "broker 2 of epoch 1 is fenced"),
        ({"broker_epoch": 7}, "broker 1 of epoch 7 is fenced"),
    ],
)
def test_scopes_that_do_not_fit(draft: Draft, fields: dict[str, object], found: str) -> None:
    image = led(cluster(), [1, 1, 1])
    actions = as_broker(image, 1, [plan_append(image, [draft(TOPIC, 0), draft(TOPIC, 1)])], [1, 1])
    refuses(image, [msgspec.structs.replace(actions[0], **fields), *actions[1:]], found)


def test_epochs_and_extents_are_as_many(draft: Draft) -> None:
    image = led(cluster(), [1, 1, 1])
    assert plan_act_as_broker(image, [], node_id=1, broker_epoch=epoch_of(image, 1)) == []
    with pytest.raises(InvalidRequestError, match="2 leader epochs for 1 extents"):
        as_broker(image, 1, [plan_append(image, [draft(TOPIC, 0)])], [1, 1])


def test_a_controllers_actions_are_a_brokers_like_all_others() -> None:
    from sparklog.metadata import plan_elect_leaders

    image = led(cluster(), [1, 1, 1])
    elect = plan_elect_leaders(image, {(TOPIC, 0): 2}, controller_epoch=1)
    assert elect is not None
    assert applied(image, *as_broker(image, 1, [elect])).partition("orders", 0).leadership.leader == 2
    refuses(elected(image, 3), as_broker(image, 1, [elect]), r"action 1 .* controller epoch 1 is over")
