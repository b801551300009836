"""Share groups over two brokers: leaders move, and no record ends twice."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.server.api.share_requests import ACCEPT, RELEASE, Got, Worker
from tests.server.api.test_several_brokers import PATIENT, TOPIC, A, B, Two
from tests.support.running_broker import RunningBroker


@pytest.fixture
def two(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(str(tmp_path / "log"), start_broker, stack, PATIENT)


def worker(two: Two, node: int, member: str = "m-1") -> Worker:
    return Worker(two.connect(node), two.controller.log.refresh().topic(TOPIC).topic_id, member=member)


def append(two: Two, count: int) -> None:
    two.controller.log.append(TOPIC, pa.table({"value": pa.array([b"v"] * count, pa.binary())}))
    two.look()


def start_of(two: Two) -> int:
    image = two.controller.log.refresh(force=True)
    return image.shares["workers"][image.topic(TOPIC).topic_id, 0].start_offset


def test_what_a_deposed_leader_gave_out_is_given_out_again_and_ends_once(two: Two) -> None:
    old, new = worker(two, A), worker(two, B, "m-2")
    assert old.fetch() == []
    append(two, 5)
    assert old.fetch() == [Got(0, 4, 1)]
    assert old.acknowledge({0: [(0, 0, ACCEPT)]}) == "none"
    two.lead(B)
    assert old.acknowledge({0: [(1, 4, ACCEPT)]}) == "not_leader_or_follower"
    assert new.fetch() == [Got(1, 4, 1)]
    assert new.acknowledge({0: [(1, 4, ACCEPT)]}) == "none"
    assert start_of(two) == 5


def test_a_leader_that_returns_has_forgotten_its_locks(two: Two) -> None:
    one = worker(two, A)
    assert one.fetch() == []
    append(two, 5)
    assert one.fetch() == [Got(0, 4, 1)]
    two.lead(B)
    two.lead(A)
    assert one.acknowledge({0: [(0, 4, ACCEPT)]}) == "invalid_record_state"
    assert one.fetch() == [Got(0, 4, 1)]
    assert start_of(two) == 0


def test_deliveries_that_ended_count_at_the_next_leader(two: Two) -> None:
    old, new = worker(two, A), worker(two, B)
    assert old.fetch() == []
    append(two, 2)
    assert old.fetch() == [Got(0, 1, 1)]
    assert old.acknowledge({0: [(0, 0, RELEASE)]}) == "none"
    two.lead(B)
    assert new.fetch() == [Got(0, 0, 2), Got(1, 1, 1)]


def test_a_leader_that_does_not_know_that_it_is_deposed_ends_nothing(two: Two) -> None:
    """It has not seen the commit; its own commit is refused."""
    one = worker(two, A)
    assert one.fetch() == []
    append(two, 5)
    assert one.fetch() == [Got(0, 4, 1)]
    two.brokers[A].broker.follower.stop()
    two.controller.lead(B, TOPIC)
    assert one.acknowledge({0: [(0, 4, ACCEPT)]}) == "not_leader_or_follower"
    assert start_of(two) == 0


def test_clients_learn_the_leader(two: Two) -> None:
    one = worker(two, B)
    answer = one.fetch_all()
    ((topic,),) = [answer.responses]
    (partition,) = topic.partitions
    assert partition.error_code.name == "not_leader_or_follower"
    assert partition.current_leader.leader_id == A
    assert [node.node_id for node in answer.node_endpoints] == [A]
