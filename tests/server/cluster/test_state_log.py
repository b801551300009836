"""Which states may follow which, and what is told of an image that followed another."""

import logging
from itertools import product

import pytest

from sparklog.metadata import (
    Image,
    PartitionLeadership,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_create_topic,
    plan_delete_topic,
)
from sparklog_server.cluster import state_log
from sparklog_server.cluster.state_log import (
    NEXT,
    Broker,
    Partition,
    Replica,
    State,
    TopicState,
    changes,
    log_changes,
    way,
)
from tests.metadata.cluster_roots import TOPIC, applied, cluster, elected, epoch_of, fenced, joined, led
from tests.support.told import Told

OTHER = "B" * 22


def told(old: Image, new: Image) -> set[str]:
    return {f"{one.what}: {one.before.value} -> {one.after.value}" for one in changes(old, new)}


@pytest.mark.parametrize("kind", [Broker, TopicState, Partition, Replica])
def test_a_table_names_every_state_and_leads_to_every_one(kind: type[Partition]) -> None:
    for state in kind:
        assert NEXT[state] <= set(kind)
        assert state not in NEXT[state]
    reached = {after for before in kind for after in NEXT[before]}
    assert reached == set(kind)


def test_the_ways_that_there_are_none() -> None:
    """Nothing is new again without having been gone: but a replica that comes with a reassignment, and was
    offline meanwhile. An online one becomes that by way of it.
    """
    pairs: list[tuple[State, State]] = [*product(Partition, Partition), *product(Replica, Replica)]
    none = {(before, after) for before, after in pairs if before is not after and way(before, after) is None}
    assert none == {
        (Partition.ONLINE, Partition.NEW),
        (Partition.OFFLINE, Partition.NEW),
    }


def test_steps_between_are_told_in_their_order() -> None:
    assert way(Partition.NON_EXISTENT, Partition.ONLINE) == (Partition.NEW, Partition.ONLINE)
    assert way(Partition.ONLINE, Partition.NON_EXISTENT) == (Partition.OFFLINE, Partition.NON_EXISTENT)
    assert way(Broker.SHUTTING_DOWN, Broker.RUNNING) == (Broker.FENCED, Broker.RUNNING)


def test_a_broker_that_is_fenced_and_what_it_led() -> None:
    old = led(cluster(), [3, 3, 1])
    new = fenced(old, 3)
    assert told(old, new) == {
        "broker 3: RunningAsBroker -> Fenced",
        *(f"partition orders-{number}: OnlinePartition -> OfflinePartition" for number in (0, 1)),
        *(f"replica 3 of orders-{number}: OnlineReplica -> OfflineReplica" for number in range(3)),
    }
    assert told(new, joined(new, 3)) == {
        "broker 3: Fenced -> RunningAsBroker",
        *(f"replica 3 of orders-{number}: OfflineReplica -> OnlineReplica" for number in range(3)),
    }


def test_controllers_stops_topics_and_leaders() -> None:
    old = led(cluster(), [1, 2, 3])
    assert told(old, elected(old, 2)) == {
        "broker 1: RunningAsController -> RunningAsBroker",
        "broker 2: RunningAsBroker -> RunningAsController",
    }
    stopping = applied(old, plan_begin_controlled_shutdown(old, 2, epoch_of(old, 2)))
    assert told(old, stopping) == {"broker 2: RunningAsBroker -> PendingControlledShutdown"}
    made = applied(old, plan_create_topic(old, "more", 1, topic_id=OTHER))
    assert told(old, made) == {
        "topic more: NonExistentTopic -> NewTopic",
        "partition more-0: NonExistentPartition -> NewPartition",
    }
    assert told(old, led(old, {0: 2})) == {"partition orders-0: OnlinePartition -> OnlinePartition"}
    gone = applied(old, plan_delete_topic(old, "orders"))
    assert "topic orders: OnlineTopic -> NonExistentTopic" in told(old, gone)
    adding = PartitionLeadership((1, 2, 3, 4), 1, 1, adding=(4,))
    image = joined(old, 4)
    moved = applied(image, plan_assign_replicas(image, {(TOPIC, 0): adding}, controller_epoch=1))
    assert told(image, moved) == {"replica 4 of orders-0: NonExistentReplica -> NewReplica"}


def test_a_new_replica_that_was_offline_comes_back(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    """The reassignment that it comes with has waited for it."""
    caplog.set_level(logging.INFO, "sparklog_server.state_change")
    image = led(joined(cluster(), 4, 5), [1, 1, 1])
    adding = PartitionLeadership((4, 5, 1), 1, 1, adding=(4, 5), removing=(1,))
    image = applied(image, plan_assign_replicas(image, {(TOPIC, 0): adding}, controller_epoch=1))
    gone = fenced(image, 4)
    log_changes(gone, joined(gone, 4))
    records = told.records("sparklog_server.state_change")
    assert any("replica 4 of orders-0: OfflineReplica -> NewReplica" in one.getMessage() for one in records)
    assert not [one.getMessage() for one in records if one.levelno >= logging.ERROR]


def test_what_is_told_is_bounded_and_says_how_many(
    caplog: pytest.LogCaptureFixture, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "LINES", 2)
    caplog.set_level(logging.INFO, "sparklog_server.state_change")
    old = led(cluster(), [3, 3, 3])
    log_changes(old, fenced(old, 3))
    lines = [one.partition(": ")[2] for one in told("sparklog_server.state_change")]
    assert lines == [
        "broker 3: RunningAsBroker -> Fenced",
        "partition orders-0: OnlinePartition -> OfflinePartition, leader -1 in epoch 2",
        "replica 3 of orders-0: OnlineReplica -> OfflineReplica",
        "partition orders-1: OnlinePartition -> OfflinePartition, leader -1 in epoch 2",
        "replica 3 of orders-1: OnlineReplica -> OfflineReplica",
        "and 1 more: OnlinePartition -> OfflinePartition",
        "and 1 more: OnlineReplica -> OfflineReplica",
    ]


def test_what_the_tables_do_not_allow_is_an_error(told: Told) -> None:
    """It cannot be committed: an epoch would fall."""
    image = led(cluster(), [1, 1, 1])
    log_changes(image, applied(cluster(), *[None] * 1))
    errors = [
        record.getMessage()
        for record in told.records("sparklog_server.state_change")
        if record.levelno == logging.ERROR
    ]
    assert any("orders-0: OnlinePartition -> NewPartition, which is illegal" in one for one in errors)
