"""Asking the controller: by the bytes of Kafka's protocol, wherever it is, and as long as it takes."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from sparklog.client.brokers import (
    ALTER_REASSIGNMENTS,
    ELECT_LEADERS,
    ERRORS,
    UNREGISTER_BROKER,
    Answer,
    AnswerReader,
    ControllerClient,
    Election,
    NotKafkaError,
    alter_reassignments,
    elect_leaders,
    read_answer,
    read_answers,
    read_served,
    unregister_broker,
)
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError, UnsupportedVersionError
from sparklog.metadata import Image, empty_image
from tests.client.fake_controller import FakeController, elected, reassigned, request

CLUSTER = "C" * 22
NOT_CONTROLLER = 41


@pytest.fixture
def image() -> Image:
    return empty_image(CLUSTER)


@pytest.fixture
def controller() -> FakeController:
    return FakeController(CLUSTER)


@pytest.fixture
def address(controller: FakeController) -> Iterator[str]:
    with controller.serving() as server:
        yield server


def client(image: Image, servers: str, timeout_ms: int = 10_000) -> ControllerClient:
    return ControllerClient(image, ManualClock(), bootstrap_servers=servers, timeout_ms=timeout_ms)


# --- bytes --------------------------------------------------------------------------------------------


def test_requests_are_what_kio_reads() -> None:
    elect = request(ELECT_LEADERS, 2, elect_leaders(Election.OFFLINE, [("a", 2), ("b", 0), ("a", 1)], 5_000))
    assert elect.election_type == 1
    assert elect.timeout.total_seconds() == 5
    assert [(one.topic, one.partitions) for one in elect.topic_partitions] == [("a", (2, 1)), ("b", (0,))]
    everything = request(ELECT_LEADERS, 2, elect_leaders(Election.PREFERRED, None, 1))
    assert (everything.election_type, everything.topic_partitions) == (0, None)
    wanted = {("a", 0): (1, 2), ("b", 7): None, ("a", 3): (300, 1 << 30)}
    found = request(ALTER_REASSIGNMENTS, 0, alter_reassignments(wanted, 5_000))
    assert {
        (topic.name, one.partition_index): one.replicas for topic in found.topics for one in topic.partitions
    } == wanted
    assert request(UNREGISTER_BROKER, 0, unregister_broker(7)).broker_id == 7


@given(st.dictionaries(st.tuples(st.text(max_size=40), st.integers(0, 2**31 - 1)), st.integers(0, 2**31 - 1)))
def test_any_partitions_are_what_kio_reads(wanted: dict[tuple[str, int], int]) -> None:
    found = request(
        ALTER_REASSIGNMENTS, 0, alter_reassignments({key: (one,) for key, one in wanted.items()}, 1)
    )
    assert {
        (topic.name, one.partition_index): one.replicas[0]
        for topic in found.topics
        for one in topic.partitions
    } == wanted


def test_errors_have_kafkas_names() -> None:
    assert {code: ErrorCode(code).name.upper() for code in ERRORS} == ERRORS
    assert Answer(12345).error == "error 12345"


@given(st.binary(max_size=200))
def test_whatever_is_answered_is_read_or_refused(data: bytes) -> None:
    for read in (
        read_served,
        read_answer,
        lambda reader: read_answers(reader, ELECT_LEADERS),
        lambda reader: read_answers(reader, ALTER_REASSIGNMENTS),
    ):
        try:
            read(AnswerReader(data))
        except NotKafkaError:
            continue


# --- conversations ------------------------------------------------------------------------------------


def test_the_controller_is_asked(controller: FakeController, address: str, image: Image) -> None:
    controller.answers = {
        ELECT_LEADERS: elected(("a", 0, 0), ("a", 1, 84)),
        ALTER_REASSIGNMENTS: reassigned(("a", 0, 0, None), ("a", 1, 39, "no such broker")),
        UNREGISTER_BROKER: {"error_code": 102, "error_message": "it is not"},
    }
    asking = client(image, address)
    assert asking.elect(Election.PREFERRED, [("a", 0), ("a", 1)]).partitions == {
        ("a", 0): Answer(),
        ("a", 1): Answer(84),
    }
    assert asking.reassign({("a", 0): (1,), ("a", 1): None}).partitions == {
        ("a", 0): Answer(),
        ("a", 1): Answer(39, "no such broker"),
    }
    assert asking.unregister(3) == Answer(102, "it is not")
    assert [key for key, _ in controller.asked] == [ELECT_LEADERS, ALTER_REASSIGNMENTS, UNREGISTER_BROKER]


def test_another_broker_says_where_the_controller_is(
    controller: FakeController, address: str, image: Image
) -> None:
    controller.answers = {UNREGISTER_BROKER: {"error_code": 0, "error_message": None}}
    other = FakeController(CLUSTER, controller_id=2)
    other.others = {2: address}
    with other.serving() as server:
        assert client(image, server).unregister(3) == Answer()
    assert (len(controller.asked), other.asked) == (1, [])


@pytest.mark.parametrize("key", [UNREGISTER_BROKER, ALTER_REASSIGNMENTS])
def test_who_is_controller_no_more_is_left_for_the_next(
    controller: FakeController, address: str, image: Image, key: int
) -> None:
    other = FakeController(CLUSTER)
    done = {UNREGISTER_BROKER: {"error_code": 0}, ALTER_REASSIGNMENTS: reassigned(("a", 0, 0, None))}
    deposed = {
        UNREGISTER_BROKER: {"error_code": NOT_CONTROLLER},
        ALTER_REASSIGNMENTS: reassigned(("a", 0, NOT_CONTROLLER, None)),
    }
    controller.answers, other.answers = done, deposed

    def before(asked: int) -> None:
        if asked == key:  # the next one is elected while the request is under way
            other.controller_id, other.others = 2, {2: address}

    other.before = before
    with other.serving() as server:
        asking = client(image, server)
        if key == UNREGISTER_BROKER:
            assert asking.unregister(3) == Answer()
        else:
            assert asking.reassign({("a", 0): (1,)}).partitions == {("a", 0): Answer()}
    assert (len(other.asked), len(controller.asked)) == (1, 1)


def test_a_controller_that_was_killed_is_waited_for(
    controller: FakeController, address: str, image: Image
) -> None:
    controller.answers = {UNREGISTER_BROKER: {"error_code": 0, "error_message": None}}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    looks = []

    def before(_: int) -> None:
        looks.append(1)
        if len(looks) == 3:
            other.controller_id = 2

    other = FakeController(CLUSTER, controller_id=9, before=before)
    other.others = {9: dead, 2: address}
    with other.serving() as server:
        assert client(image, server).unregister(3) == Answer()
    assert len(looks) == 3


def test_nobody_is_waited_for_where_nobody_answers(image: Image) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
    clock = ManualClock()
    asking = ControllerClient(image, clock, bootstrap_servers=dead, timeout_ms=600_000)
    with pytest.raises(RetriableError, match=r"CONTROLLER_UNREACHABLE\] UnregisterBroker: .*refused"):
        asking.unregister(3)
    assert clock.monotonic_ms() == 0


def test_who_knows_of_no_controller_is_told_of(
    controller: FakeController, address: str, image: Image
) -> None:
    controller.controller_id = -1
    with pytest.raises(RetriableError, match=r"CONTROLLER_UNREACHABLE.*it knows of no controller now"):
        client(image, address, timeout_ms=250).unregister(3)


def test_a_controller_that_does_not_serve_it_is_told_of(
    controller: FakeController, address: str, image: Image
) -> None:
    controller.served = {UNREGISTER_BROKER: (0, 0), ELECT_LEADERS: (0, 1)}
    with pytest.raises(UnsupportedVersionError, match=r"API_NOT_SERVED.*does not serve ElectLeaders"):
        client(image, address).elect(Election.PREFERRED, None)
    assert controller.asked == []


def test_brokers_of_another_cluster_are_asked_nothing(
    controller: FakeController, address: str, image: Image
) -> None:
    controller.cluster_id = "D" * 22
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
        client(image, address).unregister(3)
    assert controller.asked == []


def test_a_root_whose_brokers_are_none_has_nobody_to_ask(image: Image) -> None:
    with pytest.raises(InvalidRequestError, match="NO_BROKER_RUNS"):
        ControllerClient(image, ManualClock())
