"""A broker that cannot follow the metadata log: others may lead what it takes for its own.

Whoever waits for an answer of its has to look for them, and not to wait for the storage. From then on it
refuses clients as a dead one; until it has noticed, it tells producers that it leads nothing.
"""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import StorageError
from tests.server.api.producing import ONE, sequenced
from tests.server.api.test_several_brokers import (
    NOT_LEADER,
    ONE_COUNT,
    PATIENT,
    SELDOM,
    TOPIC,
    UNKNOWN_TOPIC,
    A,
    B,
    Two,
    error,
)
from tests.server.publish.asking import ProducingClient
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker, ShiftedClock

PRODUCE, METADATA, TIMED_OUT = 0, 3, 7
SETTINGS = {**PATIENT, "sparklog.metadata.poll.ms": "5"}
SESSION_MS = int(PATIENT["broker.session.timeout.ms"])
unnoticed = pytest.mark.parametrize("two", [SELDOM], indirect=True)  # it looks for nothing by itself


class Touch:
    """Brokers' storage, which can go away for whoever follows the log, and hold up what is published."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ShiftedClock()
        self._monkeypatch = monkeypatch
        self._is_lost = False
        self._may_publish, self._may_look = threading.Event(), threading.Event()
        self._may_publish.set()
        self._may_look.set()
        self.is_held_up = threading.Event()

    def watch(self, running: RunningBroker) -> None:
        log = running.broker.root.log
        exists, sync = log.store.exists, log.writer.sync_each

        def asked(name: str) -> bool:
            self._may_look.wait()
            if self._is_lost:
                raise StorageError("STORE_UNAVAILABLE", f"{name}: found no storage", fix="wait for it")
            return exists(name)

        def held_up(*words: Any) -> Any:
            if not self._may_publish.is_set():
                self.is_held_up.set()
                self._may_publish.wait()
            return sync(*words)

        self._monkeypatch.setattr(log.store, "exists", asked)
        self._monkeypatch.setattr(log.writer, "sync_each", held_up)

    def hold_up_publishing(self) -> None:
        self._may_publish.clear()

    def lose(self, *, silently: bool = False) -> None:
        """For longer than a session. Silently: who asks waits, and is not told."""
        if silently:
            self._may_look.clear()
        self._is_lost = True
        self.clock.suspended_ms += SESSION_MS

    def find(self) -> None:
        self._is_lost = False
        self._may_publish.set()
        self._may_look.set()


@pytest.fixture
def touch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Touch]:
    made = Touch(monkeypatch)
    yield made
    made.find()


@pytest.fixture
def two(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], touch: Touch, request: pytest.FixtureRequest
) -> Iterator[Two]:
    """A, which leads, is the one that loses touch."""
    settings = getattr(request, "param", SETTINGS)
    with ExitStack() as stack:
        made = Two(str(tmp_path / "log"), partial(start_broker, clock=touch.clock), stack, settings)
        touch.watch(made.brokers[A])
        yield made


def resigned_of(running: RunningBroker) -> threading.Event:
    """Set when it has noticed that it is out of touch."""
    resigned = threading.Event()
    running.call_soon(running.broker.membership.on_resigned, resigned.set)
    return resigned


def is_served(running: RunningBroker) -> bool:
    """Could a client connect?"""
    try:
        ProducingClient(running.host, running.port).close()
    except ConnectionRefusedError:
        return False
    return True


def client_of_returned(two: Two) -> ProducingClient:
    until(lambda: is_served(two.brokers[A]), what="the log is followed again")
    return two.client(A)


@pytest.mark.parametrize("silently", [False, True])
def test_it_is_as_a_dead_broker_is_for_its_clients(two: Two, touch: Touch, silently: bool) -> None:
    """They ask others then; its image names itself, and some would come back for as long as it answers."""
    client = two.client(A)
    touch.lose(silently=silently)
    assert client.is_closed()
    until(lambda: not is_served(two.brokers[A]), what="new ones are refused")
    touch.find()
    (found,) = client_of_returned(two).produce((TOPIC, 0, ONE))
    assert error(found) == 0


def test_who_is_fenced_and_sees_it_refuses_nobody(two: Two) -> None:
    """It knows who leads, and joins again."""
    client, resigned = two.client(A), resigned_of(two.brokers[A])
    two.controller.fence(A)
    assert resigned.wait(60)
    assert client.ask(METADATA, 9, topics=None).brokers


def test_who_joins_again_and_is_out_of_touch_refuses_clients_too(
    two: Two, touch: Touch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("sparklog_server.cluster.membership.Registering.again", never)
    client, resigned = two.client(A), resigned_of(two.brokers[A])
    two.controller.fence(A)
    assert resigned.wait(60)
    touch.lose()
    assert client.is_closed()


def test_who_cannot_listen_again_ends(two: Two, touch: Touch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats would go on, and it would lead what nobody reaches."""
    client, broker = two.client(A), two.brokers[A].broker
    touch.lose()
    assert client.is_closed()

    def listen(_: Any) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr("sparklog_server.network.server.Listener.listen", listen)
    touch.find()
    until(lambda: broker.lifecycle.has_failed, what="it fails")


@unnoticed
def test_who_may_be_replaced_by_now_takes_nothing_and_names_nobody(two: Two, touch: Touch) -> None:
    client = two.client(A)
    touch.lose()
    client.send_produce((TOPIC, 0, ONE), version=12)
    _, response = client.receive(PRODUCE, 12)
    (found,) = response.responses[0].partition_responses
    assert (error(found), found.current_leader.leader_id) == (NOT_LEADER, -1)
    assert not response.node_endpoints
    assert two.brokers[A].broker.publisher.pending_submissions == 0
    assert two.controller.log.refresh(force=True).partition(TOPIC, 0).log_end_offset == 0
    touch.find()
    two.look(A)
    two.produce(A)


def test_who_waits_is_sent_to_the_next_leader_and_doubles_nothing(two: Two, touch: Touch) -> None:
    """The storage holds up what A has accepted; B, made the leader, has it from the producer's retry."""
    producer_id = two.client(A).init_producer_id().producer_id
    client, publisher = two.client(A), two.brokers[A].broker.publisher
    touch.hold_up_publishing()
    client.send_produce((TOPIC, 0, sequenced(producer_id, 0)), version=12, timeout=600_000)
    assert touch.is_held_up.wait(60)
    client.send_produce((TOPIC, 0, sequenced(producer_id, 2)), version=12, timeout=600_000)
    until(lambda: publisher.pending_submissions == 2, what="the second one is accepted")
    touch.lose()
    for expected in (TIMED_OUT, NOT_LEADER):  # the first one may be published yet
        _, response = client.receive(PRODUCE, 12)
        (found,) = response.responses[0].partition_responses
        assert (error(found), found.current_leader.leader_id) == (expected, -1)
    two.controller.lead(B, TOPIC)
    two.look(B)
    until(lambda: is_served(two.brokers[B]), what="B, which has the same clock, has looked")
    answers = [two.client(B).produce((TOPIC, 0, sequenced(producer_id, one)))[0] for one in (0, 2)]
    assert [(error(one), one.base_offset) for one in answers] == [(0, 0), (0, 2)]
    touch.find()
    until(lambda: publisher.pending_submissions == 0, what="what A had accepted is given up")
    assert two.controller.log.refresh(force=True).partition(TOPIC, 0).log_end_offset == 4


def test_what_was_begun_is_found_and_the_rest_never_there_when_nobody_has_taken_over(
    two: Two, touch: Touch
) -> None:
    """The storage was away for all: A leads still, and publishes what it had begun with."""
    producer_id = two.client(A).init_producer_id().producer_id
    client, publisher = two.client(A), two.brokers[A].broker.publisher
    touch.hold_up_publishing()
    client.send_produce((TOPIC, 0, sequenced(producer_id, 0)), timeout=600_000)
    assert touch.is_held_up.wait(60)
    client.send_produce((TOPIC, 0, ONE), timeout=600_000)  # which nobody could tell from a second one
    until(lambda: publisher.pending_submissions == 2, what="the second one is accepted")
    touch.lose()
    told = [error(client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]) for _ in range(2)]
    assert told == [TIMED_OUT, NOT_LEADER]
    touch.find()
    client = client_of_returned(two)
    sent = (sequenced(producer_id, 0), ONE, sequenced(producer_id, 2))
    answers = [client.produce((TOPIC, 0, one))[0] for one in sent]
    assert [(error(one), one.base_offset) for one in answers] == [(0, 0), (0, 2), (0, 4)]


def test_what_is_behind_what_was_accepted_and_sent_away_waits_for_it(two: Two, touch: Touch) -> None:
    producer_id = two.client(A).init_producer_id().producer_id
    client, publisher = two.client(A), two.brokers[A].broker.publisher

    def send(sequence: int) -> int:
        return error(client.produce((TOPIC, 0, sequenced(producer_id, sequence)))[0])

    touch.hold_up_publishing()
    client.send_produce((TOPIC, 0, ONE), timeout=600_000)
    assert touch.is_held_up.wait(60)
    client.send_produce((TOPIC, 0, sequenced(producer_id, 0)), timeout=600_000)
    until(lambda: publisher.pending_submissions == 2, what="the first batch is accepted")
    touch.lose()
    for _ in range(2):
        client.receive(PRODUCE, 9)
    touch.find()
    client = client_of_returned(two)
    assert (send(2), send(0), send(2)) == (NOT_LEADER, 0, 0)


def test_what_has_timed_out_before_is_published_and_nothing_takes_its_place(two: Two, touch: Touch) -> None:
    producer_id = two.client(A).init_producer_id().producer_id
    client, other = two.client(A), two.client(A)

    def send(sequence: int, **fields: Any) -> int:
        return error(other.produce((TOPIC, 0, sequenced(producer_id, sequence)), **fields)[0])

    touch.hold_up_publishing()
    client.send_produce((TOPIC, 0, ONE), timeout=600_000)
    assert touch.is_held_up.wait(60)
    assert send(0, timeout=1) == TIMED_OUT
    touch.lose()
    assert error(client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]) == TIMED_OUT
    touch.find()
    other = client_of_returned(two)
    assert (send(2), send(0), send(2)) == (0, 0, 0)


def test_who_learns_that_it_was_replaced_after_it_was_out_of_touch_sends_away_again(
    two: Two, touch: Touch
) -> None:
    """Those whom it had let wait, as it knew of nobody else."""
    running, told = two.brokers[A], list[str]()
    running.call_soon(running.broker.membership.on_resigned, lambda: told.append("resigned"))
    touch.lose()
    until(lambda: len(told) == 1, what="it is out of touch")
    two.controller.fence(A)
    touch.find()
    until(lambda: len(told) == 2, what="it has seen that it is fenced")


@unnoticed
def test_a_negative_partition_does_not_exist_out_of_touch_either(two: Two, touch: Touch) -> None:
    touch.lose()
    (found,) = two.client(A).produce((TOPIC, -5, ONE))
    assert error(found) == UNKNOWN_TOPIC


@unnoticed
def test_what_comes_behind_what_was_refused_waits_for_it(two: Two, touch: Touch) -> None:
    producer_id = two.client(A).init_producer_id().producer_id
    client = two.client(A)

    def send(sequence: int) -> int:
        return error(client.produce((TOPIC, 0, sequenced(producer_id, sequence)))[0])

    touch.lose()
    assert send(0) == NOT_LEADER
    touch.find()
    two.look(A)
    assert (send(2), send(0), send(2)) == (NOT_LEADER, 0, 0)


def test_whom_nobody_could_replace_lets_producers_wait(
    tmp_path: Path, start_broker: Callable[..., RunningBroker], touch: Touch
) -> None:
    """Nobody else leads: what is accepted is published as soon as the storage is there."""
    with sparklog.open(str(tmp_path / "log"), create=True) as log:
        log.create_topic(TOPIC, 1)
    running = start_broker(SETTINGS, clock=touch.clock)
    touch.watch(running)
    resigned = resigned_of(running)
    with ProducingClient(running.host, running.port) as client:
        publisher = running.broker.publisher
        touch.hold_up_publishing()
        client.send_produce((TOPIC, 0, ONE), timeout=600_000)
        until(lambda: publisher.pending_submissions == 1, what="it is accepted")
        touch.lose()
        assert resigned.wait(60)
        client.send_produce((TOPIC, 0, ONE), timeout=600_000)
        until(lambda: publisher.pending_submissions == 2, what="it is accepted, too")
        touch.find()
        for offset in (0, ONE_COUNT):
            (found,) = client.receive(PRODUCE, 9)[1].responses[0].partition_responses
            assert (error(found), found.base_offset) == (0, offset)
