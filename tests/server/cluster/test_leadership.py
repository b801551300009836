"""What clients are told of leaders and their epochs."""

from dataclasses import dataclass

import pytest

from sparklog.metadata import NO_NODE, Image, plan_fence_broker
from sparklog_server.cluster.leadership import Leader, Leadership
from tests.metadata.cluster_roots import applied, cluster, epoch_of, fenced, led


@dataclass
class One:
    """What is known: this image."""

    image: Image


def test_each_broker_leads_what_the_image_says() -> None:
    image = led(cluster(), [2])
    leadership = Leadership(2, One(image))
    partitions = image.topic("orders").partitions
    assert leadership.leader_of(partitions[0]) == Leader(2, 1)
    assert [leadership.leads(one) for one in partitions] == [True, False, False]
    assert (leadership.controller_id, leadership.brokers) == (1, (1, 2, 3))


def test_the_last_broker_leads_nothing_once_it_is_fenced() -> None:
    image = led(cluster((1,)), [1])
    image = applied(image, plan_fence_broker(image, 1, epoch_of(image, 1)))
    leadership = Leadership(1, One(image))
    assert not leadership.leads(image.topic("orders").partitions[0])
    assert leadership.controller_id == NO_NODE


@pytest.mark.parametrize(
    ("node_id", "theirs", "error"),
    [
        (2, -1, "none"),
        (2, 1, "none"),
        (2, 0, "fenced_leader_epoch"),
        (2, 2, "unknown_leader_epoch"),
        (1, -1, "not_leader_or_follower"),
        (1, 1, "not_leader_or_follower"),
        (1, 0, "fenced_leader_epoch"),
        (1, 2, "unknown_leader_epoch"),
    ],
)
def test_a_broker_answers_for_what_it_leads(node_id: int, theirs: int, error: str) -> None:
    image = led(cluster(), {0: 2})
    partition = image.topic("orders").partitions[0]
    assert Leadership(node_id, One(image)).leader_error(partition, theirs).name == error


def test_an_epoch_of_nobody_is_answered_by_nobody() -> None:
    image = fenced(led(cluster(), {0: 2}), 2)
    partition = image.topic("orders").partitions[0]
    leadership = Leadership(2, One(image))
    assert leadership.leader_of(partition) == Leader(NO_NODE, 2)
    assert leadership.leader_error(partition, 2).name == "not_leader_or_follower"
