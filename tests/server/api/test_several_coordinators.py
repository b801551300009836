"""Two brokers on a root: where groups are, and what is answered where they are not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import sparklog
from sparklog.client.groups import partition_for_group
from sparklog.metadata import Action, Image, plan_fence_broker
from tests.server.api.group_requests import (
    DELETE,
    DESCRIBE,
    FIND,
    GROUP_SETTINGS,
    HEARTBEAT,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    SYNC,
    commit,
    join,
    sync,
)
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

NAMES = tuple(f"g{number}" for number in range(8))
FETCH_OFFSETS = 9


@dataclass(frozen=True)
class Two:
    """Brokers 1 and 2, a connection to each, and which groups each of them has."""

    brokers: dict[int, RunningBroker]
    askers: dict[int, WireClient]
    groups: dict[int, list[str]]


@pytest.fixture
def two(start_broker: Callable[..., RunningBroker], connect: Callable[[RunningBroker], WireClient]) -> Two:
    brokers = {node: start_broker({**GROUP_SETTINGS, "node.id": str(node)}) for node in (1, 2)}
    with sparklog.open(brokers[1].root, create=False) as log:
        log.create_topic("orders", 2)
    askers = {node: connect(broker) for node, broker in brokers.items()}
    found = where(askers[2])
    groups = {node: [name for name in NAMES if found[name] == node] for node in brokers}
    # Two partitions, each led by another broker.
    assert {partition_for_group(groups[1][0], 2), partition_for_group(groups[2][0], 2)} == {0, 1}
    for node, broker in brokers.items():  # which has heard of it, and has loaded it
        until(lambda: broker.broker.groups.describe_error(groups[node][0]).name == "none")  # noqa: B023
    return Two(brokers, askers, groups)


def where(asker: WireClient) -> dict[str, int]:
    found = asker.ask(FIND, 4, key_type=0, coordinator_keys=NAMES).coordinators
    assert {one.error_code.name for one in found} == {"none"}, found
    return {one.key: one.node_id for one in found}


def test_a_topic_that_was_made_just_now_has_coordinators_everywhere(two: Two) -> None:
    assert sorted(two.groups[1] + two.groups[2]) == list(NAMES)
    assert where(two.askers[1]) == where(two.askers[2])


@pytest.mark.parametrize("version", range(5))
def test_each_broker_says_where_the_other_one_is(two: Two, version: int) -> None:
    for node, asker in two.askers.items():
        for coordinator, groups in two.groups.items():
            if version < 4:
                found = asker.ask(FIND, version, key=groups[0])
            else:
                (found,) = asker.ask(FIND, version, key_type=0, coordinator_keys=groups[:1]).coordinators
            broker = two.brokers[coordinator]
            assert (found.error_code.name, found.node_id) == ("none", coordinator), node
            assert (found.host, found.port) == (broker.host, broker.port)


def test_requests_about_a_group_of_the_other_broker_are_sent_there(two: Two) -> None:
    asker, (theirs, *_) = two.askers[1], two.groups[2]
    member = {"group_id": theirs, "member_id": "m"}
    elsewhere = "not_coordinator"
    assert join(asker, group=theirs).error_code.name == elsewhere
    synced = asker.ask(SYNC, 4, generation_id=1, assignments=(), **member)
    assert synced.error_code.name == elsewhere
    assert asker.ask(HEARTBEAT, 4, generation_id=1, **member).error_code.name == elsewhere
    assert asker.ask(LEAVE, 2, **member).error_code.name == elsewhere
    assert commit(asker, {("orders", 0): 1}, group_id=theirs) == {("orders", 0): elsewhere}
    wanted = {"_": "OffsetFetchRequestGroup", "group_id": theirs, "topics": None}
    (fetched,) = asker.ask(FETCH_OFFSETS, 9, groups=[wanted]).groups
    assert fetched.error_code.name == elsewhere
    (described,) = asker.ask(DESCRIBE, 5, groups=(theirs,)).groups
    assert described.error_code.name == elsewhere
    (deleted,) = asker.ask(DELETE, 2, groups_names=(theirs,)).results
    assert deleted.error_code.name == elsewhere
    assert asker.ask(OFFSET_DELETE, 0, group_id=theirs, topics=()).error_code.name == elsewhere


def test_each_lists_its_own(two: Two) -> None:
    for node, groups in two.groups.items():
        for name in groups:
            assert commit(two.askers[node], {("orders", 0): 1}, group_id=name) == {("orders", 0): "none"}
    for node, groups in two.groups.items():
        assert sorted(one.group_id for one in two.askers[node].ask(LIST, 5).groups) == groups


def test_a_member_goes_on_at_the_other_broker_when_its_own_stops(two: Two) -> None:
    group = two.groups[1][0]
    joined = join(two.askers[1], group=group)
    assert sync(two.askers[1], joined, group=group).assignment == b"all"
    me = {"member_id": joined.member_id, "group_id": group}
    assert commit(
        two.askers[1], {("orders", 1): 5}, generation_id_or_member_epoch=joined.generation_id, **me
    ) == {("orders", 1): "none"}
    two.brokers[1].stop()
    until(lambda: set(where(two.askers[2]).values()) == {2})
    wanted = {"_": "OffsetFetchRequestGroup", "group_id": group, "topics": None}

    def fetched() -> Sequence[Any]:
        (found,) = two.askers[2].ask(FETCH_OFFSETS, 9, groups=[wanted]).groups
        assert found.error_code.name in {"none", "coordinator_load_in_progress"}
        return () if found.error_code else found.topics

    (topic,) = until(fetched)
    # While the group is loaded whoever sends heartbeats is told "none", member or not.
    beat = {"generation_id": joined.generation_id, **me}
    assert two.askers[2].ask(HEARTBEAT, 4, **beat).error_code.name == "none"
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(1, 5)]


def test_offsets_that_are_committed_without_a_broker_are_seen_at_the_groups_own(two: Two) -> None:
    with sparklog.open(two.brokers[1].root, create=False) as log:
        for groups in two.groups.values():
            log.commit_offsets(groups[0], {("orders", 0): 7})
    for node, groups in two.groups.items():
        coordinator = two.brokers[node].broker.groups
        until(lambda: [one.offset for one in coordinator.fetch(groups[0])[1].values()] == [7])  # noqa: B023


def fence(broker: RunningBroker, node_id: int) -> None:
    """As its controller would, if it stood still for too long."""
    with sparklog.open(broker.root, create=False) as log:

        def plan(image: Image) -> list[Action]:
            action = plan_fence_broker(image, node_id, image.brokers[node_id].broker_epoch)
            return [] if action is None else [action]

        log.metadata.publish(plan)


def test_one_that_was_fenced_takes_its_groups_up_again(
    start_broker: Callable[..., RunningBroker], connect: Callable[[RunningBroker], WireClient]
) -> None:
    broker = start_broker({**GROUP_SETTINGS, "node.id": "1"})
    with sparklog.open(broker.root, create=False) as log:
        log.create_topic("orders", 2)
    asker = connect(broker)
    until(lambda: asker.ask(FIND, 3, key="g").error_code.name == "none")
    joined = join(asker)
    assert sync(asker, joined).assignment == b"all"
    me = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
    assert commit(asker, {("orders", 1): 5}, **me) == {("orders", 1): "none"}
    before = {log.led for log in broker.broker.groups.shards}
    fence(broker, 1)
    until(lambda: not before & {log.led for log in broker.broker.groups.shards}, what="other leader epochs")
    beat = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
    until(lambda: asker.ask(HEARTBEAT, 4, **beat).error_code.name == "none", what="its groups again")
    until(lambda: commit(asker, {("orders", 0): 6}, **me) == {("orders", 0): "none"})
    wanted = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None}
    (fetched,) = asker.ask(FETCH_OFFSETS, 9, groups=[wanted]).groups
    (topic,) = fetched.topics
    assert {one.partition_index: one.committed_offset for one in topic.partitions} == {0: 6, 1: 5}


def test_groups_of_one_that_was_fenced_go_on_wherever_they_are_led_next(two: Two) -> None:
    group = two.groups[1][0]
    joined = join(two.askers[1], group=group)
    assert sync(two.askers[1], joined, group=group).assignment == b"all"
    epoch = next(log.led.leader_epoch for log in two.brokers[1].broker.groups.shards)
    fence(two.brokers[1], 1)
    beat = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}

    def is_loaded_anew(node: int) -> bool:
        groups = two.brokers[node].broker.groups
        shard, error = groups.shards.find(group), groups.describe_error(group)
        return shard is not None and shard.led.leader_epoch > epoch and not error

    def goes_on() -> bool:
        (found,) = two.askers[2].ask(FIND, 4, key_type=0, coordinator_keys=(group,)).coordinators
        if found.error_code.name != "none" or not is_loaded_anew(found.node_id):
            return False
        return bool(two.askers[found.node_id].ask(HEARTBEAT, 4, **beat).error_code.name == "none")

    until(goes_on, what="the group to be led in another epoch")
