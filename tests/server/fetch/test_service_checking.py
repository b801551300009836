"""Who may read a partition where, by what the broker's image knows."""

import pytest

from sparklog.metadata import (
    NO_NODE,
    Action,
    DraftExtent,
    Image,
    PartitionLeadership,
    empty_image,
    new_id,
    plan_advance_log_start,
    plan_append,
    plan_assign_replicas,
    plan_begin_controlled_shutdown,
    plan_create_topic,
    plan_join_broker,
)
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.service import Wanted, check, preferred_replica
from sparklog_server.fetch.sessions import PartitionFetch
from sparklog_server.protocol.apis import ErrorCode
from tests.metadata.cluster_roots import (
    FOUNDING,
    LISTENERS,
    TOPIC,
    applied,
    cluster,
    elected,
    epoch_of,
    fenced,
    led,
)

LEADER, REPLICA, STRANGER = 1, 2, 4
END = 10


class Seen:
    """What a broker knows."""

    def __init__(self, image: Image) -> None:
        self.image = image


def with_records(image: Image, partition: int = 0) -> Image:
    draft = DraftExtent(
        topic_id=TOPIC,
        partition=partition,
        segment="segments/w/0.log",
        position=0,
        size=100,
        record_count=END,
        max_timestamp_ms=1_000,
    )
    return applied(image, plan_append(image, [draft]))


@pytest.fixture
def image() -> Image:
    """Brokers 1 to 4; partition 0 has replicas 1 to 3, is led by 1 in epoch 1, and has 10 records."""
    image = cluster((1, 2, 3, 4), 1)
    assigned = plan_assign_replicas(image, {(TOPIC, 0): PartitionLeadership((1, 2, 3))}, controller_epoch=1)
    return with_records(led(applied(image, assigned), {0: LEADER}))


def checked(
    image: Image,
    node_id: int,
    offset: int = 0,
    *,
    epoch: int = -1,
    rack: str | None = "",
    aware: bool = False,
) -> Wanted:
    fetch = PartitionFetch(topic="orders", partition=0, offset=offset, max_bytes=1000, leader_epoch=epoch)
    leadership = Leadership(node_id, Seen(image))
    return check(image, leadership, fetch, min_bytes=1, rack=rack, is_rack_aware=aware)


def error(wanted: Wanted) -> str:
    return ErrorCode(wanted.answer.error_code).name


@pytest.mark.parametrize("rack", [None, "", "b"])
def test_the_leader_serves_everybody(image: Image, rack: str | None) -> None:
    found = checked(image, LEADER, 3, rack=rack)
    assert (error(found), found.answer.high_watermark, found.readable > 0) == ("none", END, True)


def test_a_replica_serves_who_may_be_sent_to_one(image: Image) -> None:
    found = checked(image, REPLICA, 3)
    assert (error(found), found.answer.high_watermark, found.readable > 0) == ("none", END, True)
    assert error(checked(image, REPLICA, 3, rack=None)) == "not_leader_or_follower"


def test_who_has_no_replica_serves_nobody(image: Image) -> None:
    found = checked(image, STRANGER, 3)
    assert (error(found), found.readable) == ("not_leader_or_follower", 0)
    assert error(checked(fenced(image, LEADER), LEADER, 3, rack=None)) == "not_leader_or_follower"


@pytest.mark.parametrize("node_id", [LEADER, REPLICA, STRANGER])
def test_another_epoch_is_told_and_a_later_one_is_looked_for(image: Image, node_id: int) -> None:
    found = checked(image, node_id, 3, epoch=0)
    assert (error(found), found.is_unsure) == ("fenced_leader_epoch", False)
    found = checked(image, node_id, 3, epoch=2)
    assert (error(found), found.is_unsure) == ("unknown_leader_epoch", True)


@pytest.mark.parametrize(
    ("node_id", "expected"), [(LEADER, "offset_out_of_range"), (REPLICA, "offset_not_available")]
)
def test_an_offset_beyond_the_log_is_looked_for_and_only_the_leader_says_that_it_is_none(
    image: Image, node_id: int, expected: str
) -> None:
    found = checked(image, node_id, END + 1)
    assert (error(found), found.is_unsure) == (expected, True)
    assert error(checked(image, node_id, END)) == "none"


@pytest.mark.parametrize("node_id", [LEADER, REPLICA])
def test_an_offset_before_the_log_is_out_of_range_whoever_says_it(image: Image, node_id: int) -> None:
    image = applied(image, plan_advance_log_start(image, TOPIC, 0, 5))
    found = checked(image, node_id, 4)
    assert (error(found), found.is_unsure) == ("offset_out_of_range", False)
    assert found.answer.log_start_offset == 5


# --- racks -------------------------------------------------------------------------------------------


def racked(racks: str, partitions: int = 1) -> Image:
    """Brokers 1, 2, ... in these racks; "-": none. Broker 1 leads."""
    image = applied(empty_image("C" * 22), FOUNDING)
    for node, rack in enumerate(racks, start=1):
        joining: Action = plan_join_broker(
            image,
            node,
            incarnation_id=new_id(),
            listeners=LISTENERS,
            rack=rack.strip("-"),
        )
        image = applied(image, joining)
    image = applied(elected(image, 1), plan_create_topic(image, "orders", partitions, topic_id=TOPIC))
    everybody = PartitionLeadership(tuple(range(1, len(racks) + 1)))
    assigned = {(TOPIC, partition): everybody for partition in range(partitions)}
    image = applied(image, plan_assign_replicas(image, assigned, controller_epoch=1))
    return with_records(led(image, [1] * partitions))


def preferred(image: Image, rack: str, partition: int = 0) -> int:
    return preferred_replica(image, image.topic("orders").partitions[partition], rack)


@pytest.mark.parametrize(
    ("racks", "rack", "expected"),
    [("abc", "b", 2), ("abc", "a", NO_NODE), ("abc", "d", NO_NODE), ("-bb", "b", 2), ("bbb", "b", NO_NODE)],
)
def test_a_replica_in_the_consumers_rack_is_preferred(racks: str, rack: str, expected: int) -> None:
    assert preferred(racked(racks), rack) == expected


def test_replicas_of_a_rack_share_the_partitions() -> None:
    image = racked("abb", 4)
    assert [preferred(image, "b", partition) for partition in range(4)] == [2, 3, 2, 3]


def test_who_is_fenced_or_about_to_stop_is_not_preferred() -> None:
    image = fenced(racked("abb"), 2)
    assert preferred(image, "b") == 3
    image = applied(image, plan_begin_controlled_shutdown(image, 3, epoch_of(image, 3)))
    assert preferred(image, "b") == NO_NODE


def test_who_has_no_replica_is_not_preferred() -> None:
    image = racked("abb")
    assigned = {(TOPIC, 0): PartitionLeadership((1, 3), 1)}
    assert preferred(applied(image, plan_assign_replicas(image, assigned, controller_epoch=1)), "b") == 3


def test_the_leader_sends_consumers_there_if_it_is_to() -> None:
    image = racked("ab")
    found = checked(image, 1, 3, rack="b", aware=True)
    assert (found.answer.preferred_read_replica, found.readable, error(found)) == (2, 0, "none")
    assert found.answer.high_watermark == END
    for other in (
        checked(image, 1, 3, rack="b"),
        checked(image, 1, 3, rack="", aware=True),
        checked(image, 1, 3, rack=None, aware=True),
        checked(image, 1, 3, rack="a", aware=True),
        checked(image, 2, 3, rack="a", aware=True),  # a replica sends nobody anywhere
    ):
        assert (other.answer.preferred_read_replica, other.readable > 0) == (NO_NODE, True)
    beyond = checked(image, 1, END + 1, rack="b", aware=True)
    assert (error(beyond), beyond.answer.preferred_read_replica) == ("offset_out_of_range", NO_NODE)
