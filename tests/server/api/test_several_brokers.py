"""Two brokers over one root: who takes what is produced, who serves what is read, and what the others say.

Their controller is a third one, which does what the tests tell it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.clock import SystemClock
from tests.server.api.fetching import FETCH, asked, fetch, partitions_of, request_fields, waiting
from tests.server.api.listing import list_all
from tests.server.api.producing import ONE, sequenced
from tests.server.api.test_offset_for_leader_epoch import asked as asked_for_epoch
from tests.server.publish.asking import ProducingClient
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers
from tests.support.wire_client import WireClient

A, B = 1, 2
TOPIC = "orders"
ONE_COUNT = 2  # records in ONE
KAFKA = "org.apache.kafka.common.replica."
UNKNOWN_TOPIC, NOT_LEADER, OFFSET_NOT_AVAILABLE, FENCED_EPOCH = 3, 6, 78, 74
# The controller sends no heartbeats, and is taken for dead after this; they do not look by themselves.
PATIENT = {
    "broker.session.timeout.ms": "600000",
    "broker.heartbeat.interval.ms": "60000",
    "controlled.shutdown.enable": "false",
}
SELDOM = {**PATIENT, "sparklog.metadata.poll.ms": "60000"}


class Two:
    """Brokers A, in rack a, and B, in rack b: both have replicas of the only partition, and A leads it."""

    def __init__(
        self, path: str, start: Callable[..., RunningBroker], stack: ExitStack, settings: dict[str, str]
    ) -> None:
        log = stack.enter_context(sparklog.open(path, create=True))
        self.controller = SeveralBrokers(log.store, SystemClock())
        self.controller.log.create_topic(TOPIC, 1)
        self.brokers = {
            node: start({"node.id": str(node), "broker.rack": rack, **settings}, root=path)
            for node, rack in ((A, "a"), (B, "b"))
        }
        self._stack = stack
        self.controller.assign((A, B), TOPIC)
        self.lead(A)

    def lead(self, node: int) -> int:
        """The new epoch, which both have seen."""
        epoch = self.controller.lead(node, TOPIC)
        self.look()
        return epoch

    def look(self, *nodes: int) -> None:
        for node in nodes or (A, B):
            running = self.brokers[node]
            running.call(running.broker.root.look())

    def connect(self, node: int) -> WireClient:
        one = self.brokers[node]
        return self._stack.enter_context(WireClient(one.host, one.port))

    def client(self, node: int) -> ProducingClient:
        one = self.brokers[node]
        return self._stack.enter_context(ProducingClient(one.host, one.port))

    def produce(self, node: int, count: int = 1) -> None:
        for _ in range(count):
            (found,) = self.client(node).produce((TOPIC, 0, ONE))
            assert found.error_code == 0


@pytest.fixture
def two(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], request: pytest.FixtureRequest
) -> Iterator[Two]:
    settings = getattr(request, "param", SELDOM)
    with ExitStack() as stack:
        yield Two(str(tmp_path / "log"), start_broker, stack, settings)


def fetched(client: WireClient, offset: int, *, version: int = 12, **fields: Any) -> Any:
    epoch = fields.pop("epoch", -1)
    response = fetch(
        client, asked((0, offset), topic=TOPIC, version=version, epoch=epoch), version=version, **fields
    )
    return partitions_of(response)[0]


def error(found: Any) -> int:
    return int(found.error_code)


# --- producing ---------------------------------------------------------------------------------------


def test_only_the_leader_takes_what_is_produced(two: Two) -> None:
    (found,) = two.client(A).produce((TOPIC, 0, ONE))
    assert (error(found), found.base_offset) == (0, 0)
    client = two.client(B)
    client.send_produce((TOPIC, 0, ONE), version=12)
    _, response = client.receive(0, 12)
    (found,) = response.responses[0].partition_responses
    assert (error(found), found.error_message) == (NOT_LEADER, None)  # at once: the publisher words it
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (A, 1)
    (node,) = response.node_endpoints
    assert (node.node_id, node.port) == (A, two.brokers[A].port)


def test_who_leads_no_more_is_told_so_by_the_commit(two: Two) -> None:
    """A has not seen that B leads: its own plan finds out, and says who does."""
    two.controller.lead(B, TOPIC)
    client = two.client(A)
    client.send_produce((TOPIC, 0, ONE), version=12)
    _, response = client.receive(0, 12)
    (found,) = response.responses[0].partition_responses
    assert (error(found), found.current_leader.leader_id, found.current_leader.leader_epoch) == (
        NOT_LEADER,
        B,
        2,
    )
    two.look(B)
    two.produce(B)


def test_a_retry_at_the_next_leader_finds_its_batch(two: Two) -> None:
    producer_id = two.client(A).init_producer_id().producer_id
    for sequence in (0, 2, 4):
        two.client(A).produce((TOPIC, 0, sequenced(producer_id, sequence)))
    two.lead(B)
    answers = [two.client(B).produce((TOPIC, 0, sequenced(producer_id, one)))[0] for one in (2, 4, 6)]
    assert [(error(one), one.base_offset) for one in answers] == [(0, 2), (0, 4), (0, 6)]


def test_a_fenced_broker_goes_on_after_it_has_joined_again(two: Two) -> None:
    running = two.brokers[A].broker
    before = running.membership.current().broker_epoch
    two.controller.fence(A)
    (found,) = two.client(A).produce((TOPIC, 0, ONE))
    assert error(found) == NOT_LEADER
    until(lambda: running.membership.current().broker_epoch > before, what="the broker has joined again")
    two.produce(A)  # which nobody led: A does with its join
    assert running.lifecycle.failure is None


def test_what_comes_behind_a_batch_that_was_refused_does_not_take_its_place(two: Two) -> None:
    """A leads the topic, and sees it between the first batch and the second."""
    producer_id = two.client(A).init_producer_id().producer_id
    two.controller.log.create_topic("new", 1)
    two.controller.lead(A, "new")
    client = two.client(A)

    def send(sequence: int) -> int:
        return error(client.produce(("new", 0, sequenced(producer_id, sequence)))[0])

    assert send(0) == UNKNOWN_TOPIC
    two.look(A)
    assert (send(2), send(4)) == (NOT_LEADER, NOT_LEADER)
    assert (send(0), send(2), send(4)) == (0, 0, 0)


# --- reading -----------------------------------------------------------------------------------------


def test_a_replica_serves_consumers_that_may_be_sent_to_one(two: Two) -> None:
    two.produce(A, 3)
    two.look(B)
    found = fetched(two.client(B), 1)
    assert (error(found), found.high_watermark, bool(found.records)) == (0, 3 * ONE_COUNT, True)
    assert error(fetched(two.client(B), 1, version=10)) == NOT_LEADER


def test_a_broker_without_a_replica_says_who_leads(two: Two) -> None:
    two.controller.assign((A,), TOPIC)
    two.look()
    client = two.client(B)
    topic_id = two.controller.log.image.topic(TOPIC).topic_id
    topics = asked((0, 0), topic=TOPIC, version=17, topic_id=topic_id)
    fields = request_fields(topics)
    del fields["replica_id"]
    response = client.ask(FETCH, 17, **fields)
    found = partitions_of(response)[0]
    assert (error(found), found.current_leader.leader_id) == (NOT_LEADER, A)
    assert [(one.node_id, one.port) for one in response.node_endpoints] == [(A, two.brokers[A].port)]


def test_what_a_replica_has_not_seen_is_looked_for(two: Two) -> None:
    two.produce(A, 3)
    assert two.brokers[B].broker.root.image.partition(TOPIC, 0).log_end_offset == 0
    found = fetched(two.client(B), 1)
    assert (error(found), bool(found.records)) == (0, True)
    assert error(fetched(two.client(B), 3 * ONE_COUNT + 1)) == OFFSET_NOT_AVAILABLE
    assert error(fetched(two.client(A), 3 * ONE_COUNT + 1)) == 1  # the leader knows


def test_a_deposed_leader_does_not_reset_who_has_read_on_elsewhere(two: Two) -> None:
    """Its image is old, and new enough to answer by."""
    two.controller.lead(B, TOPIC)
    two.look(B)
    two.produce(B, 2)
    assert two.brokers[A].broker.root.image.partition(TOPIC, 0).leadership.leader == A
    assert error(fetched(two.client(A), 2 * ONE_COUNT)) == 0  # it is a replica, and has looked
    two.produce(B)
    assert error(fetched(two.client(A), 3 * ONE_COUNT, version=10)) == NOT_LEADER


def test_a_later_epoch_is_looked_for_and_an_older_one_refused(two: Two) -> None:
    two.controller.lead(B, TOPIC)
    assert error(fetched(two.client(B), 0, epoch=2)) == 0
    assert error(fetched(two.client(A), 0, epoch=1)) == 0  # it has not seen the new one
    two.look(A)
    assert error(fetched(two.client(A), 0, epoch=1)) == FENCED_EPOCH


def test_a_fetch_that_waits_is_answered_when_another_leads(two: Two) -> None:
    client = two.client(A)
    client.send(FETCH, 10, **request_fields(asked((0, 0), topic=TOPIC, version=10), max_wait=30_000))
    waiting(two.brokers[A])
    two.lead(B)
    assert error(partitions_of(client.receive(FETCH, 10)[1])[0]) == NOT_LEADER


@pytest.mark.parametrize("two", [PATIENT], indirect=True)
def test_a_fetch_that_waits_at_a_replica_sees_what_the_leader_appends(two: Two) -> None:
    client = two.client(B)
    client.send(FETCH, 12, **request_fields(asked((0, 0), topic=TOPIC), max_wait=30_000))
    waiting(two.brokers[B])
    two.produce(A)
    assert partitions_of(client.receive(FETCH, 12)[1])[0].records


@pytest.mark.parametrize(
    "two", [{**SELDOM, "replica.selector.class": f"{KAFKA}RackAwareReplicaSelector"}], indirect=True
)
def test_consumers_are_sent_to_a_replica_in_their_rack(two: Two) -> None:
    two.produce(A)
    found = fetched(two.client(A), 0, rack_id="b", max_wait=30_000)
    assert (error(found), found.preferred_read_replica, bool(found.records)) == (0, B, False)
    assert found.high_watermark == ONE_COUNT
    for rack in ("a", ""):
        found = fetched(two.client(A), 0, rack_id=rack)
        assert (found.preferred_read_replica, bool(found.records)) == (-1, True)
    two.look(B)
    found = fetched(two.client(B), 0, rack_id="b")
    assert (found.preferred_read_replica, bool(found.records)) == (-1, True)


@pytest.mark.parametrize(
    "two", [{**SELDOM, "replica.selector.class": f"{KAFKA}RackAwareReplicaSelector"}], indirect=True
)
def test_a_session_names_the_replica_each_time(two: Two) -> None:
    """The consumer may have come back from there."""
    client = two.client(A)
    begun = fetch(client, asked((0, 0), topic=TOPIC), session_epoch=0, rack_id="b")
    for epoch in (1, 2):
        response = fetch(client, [], session_id=begun.session_id, session_epoch=epoch, rack_id="b")
        assert partitions_of(response)[0].preferred_read_replica == B


def test_offsets_are_the_leaders_to_list(two: Two) -> None:
    two.produce(A, 2)
    epoch = two.lead(B)
    (found,) = list_all(two.client(A), [(TOPIC, 0, -1)])
    assert error(found) == NOT_LEADER
    (found,) = list_all(two.client(B), [(TOPIC, 0, -1)])
    assert (error(found), found.offset, found.leader_epoch) == (0, 2 * ONE_COUNT, epoch)


def test_every_epoch_up_to_the_leaders_ends_with_the_log(two: Two) -> None:
    two.produce(A, 2)
    two.controller.lead(B, TOPIC)
    for epoch in (0, 1, 2):
        assert asked_for_epoch(two.client(B), TOPIC, 0, epoch) == (0, epoch, 2 * ONE_COUNT)
    assert asked_for_epoch(two.client(B), TOPIC, 0, 3) == (0, -1, -1)
    assert asked_for_epoch(two.client(A), TOPIC, 0, 1) == (NOT_LEADER, -1, -1)
