"""Coordinators of groups that move, fail, or answer with a stranger's bytes. Real ones: tests/cli."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sparklog.client.group_coordinators import GroupCoordinators, GroupDescription, Member
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError
from tests.client.fake_broker import fake_broker, string
from tests.client.fake_controller import metadata, request, response
from tests.support.ports import reserved_port

METADATA, OFFSET_COMMIT, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = 3, 8, 10, 15, 16
DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_DESCRIBE = 42, 47, 69
VERSIONS = {
    OFFSET_COMMIT: 6,
    FIND_COORDINATOR: 4,
    DESCRIBE_GROUPS: 4,
    LIST_GROUPS: 5,
    CONSUMER_GROUP_DESCRIBE: 0,
    DELETE_GROUPS: 1,
    OFFSET_DELETE: 0,
}
FLEXIBLE = {FIND_COORDINATOR, LIST_GROUPS, CONSUMER_GROUP_DESCRIBE}
LOADING, NOT_COORDINATOR = 14, 16
CLUSTER = "cluster"
Answers = dict[int, list[dict[str, Any]]]  # by API key, one after the other; the last one stays


class FakeCoordinator:
    """One broker, which is every group's coordinator."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[tuple[int, Any]] = []
        self.address = ""

    def answer(self, key: int) -> bytes:
        if key == METADATA:
            return metadata(CLUSTER, {1: self.address}, 1)
        queue = self.answers[key]
        fields = queue.pop(0) if len(queue) > 1 else queue[0]
        if key == FIND_COORDINATOR:
            host, _, port = self.address.rpartition(":")
            where = {"node_id": 1, "host": host, "port": int(port), "error_message": None}
            fields = {"coordinators": [{"_": "Coordinator", **where, **one} for one in fields["found"]]}
        return b"\0" * (key in FLEXIBLE) + response(key, VERSIONS[key], fields)

    def see(self, data: bytes) -> None:
        key, version, _, length = struct.unpack_from(">hhih", data)
        if key != METADATA:
            body = data[10 + length + (key in FLEXIBLE) :]
            self.asked.append((key, request(key, version, body)))


@contextmanager
def serving(answers: Answers) -> Iterator[tuple[FakeCoordinator, GroupCoordinators]]:
    found = {"found": [{"key": name, "error_code": 0} for name in ("g", "h")]}
    coordinator = FakeCoordinator({FIND_COORDINATOR: [found], **answers})
    with fake_broker(coordinator.answer, seen=coordinator.see) as coordinator.address:
        yield coordinator, GroupCoordinators(CLUSTER, ManualClock(), coordinator.address)


def deleted(*codes: tuple[str, int]) -> dict[str, Any]:
    results = [{"_": "DeletableGroupResult", "group_id": name, "error_code": code} for name, code in codes]
    return {"results": results}


def test_a_coordinator_that_loads_or_has_moved_is_asked_again() -> None:
    answers = [deleted(("g", LOADING), ("h", 0)), deleted(("g", NOT_COORDINATOR)), deleted(("g", 68))]
    with serving({DELETE_GROUPS: answers}) as (coordinator, client):
        assert client.delete_groups(["g", "h"]) == {"g": "NON_EMPTY_GROUP", "h": None}
    asked = [asked.groups_names for key, asked in coordinator.asked if key == DELETE_GROUPS]
    assert asked == [("g", "h"), ("g",), ("g",)]


def test_a_group_without_a_coordinator_is_looked_for_again() -> None:
    found = [{"found": [{"key": "g", "error_code": code}]} for code in (15, 0)]
    with serving({FIND_COORDINATOR: found, DELETE_GROUPS: [deleted(("g", 0))]}) as (_, client):
        assert client.delete_groups(["g"]) == {"g": None}


def test_what_does_not_come_in_time_is_unreachable() -> None:
    with serving({DELETE_GROUPS: [deleted(("g", LOADING))]}) as (coordinator, _):
        client = GroupCoordinators(CLUSTER, ManualClock(), coordinator.address, timeout_ms=300)
        with pytest.raises(RetriableError, match="no coordinator answered") as raised:
            client.delete_groups(["g"])
        assert raised.value.code == "COORDINATOR_UNREACHABLE"


def test_offsets_are_committed_without_a_member() -> None:
    partitions = [
        {"_": "OffsetCommitResponsePartition", "partition_index": number, "error_code": code}
        for number, code in ((0, 0), (3, 25))
    ]
    answer = {"topics": [{"_": "OffsetCommitResponseTopic", "name": "t", "partitions": partitions}]}
    with serving({OFFSET_COMMIT: [answer]}) as (coordinator, client):
        found = client.commit_offsets("g", {("t", 0): 5, ("t", 3): 1 << 40})
    assert found == {("t", 0): None, ("t", 3): "UNKNOWN_MEMBER_ID"}
    asked = dict(coordinator.asked)[OFFSET_COMMIT]
    assert (asked.group_id, asked.generation_id_or_member_epoch, asked.member_id) == ("g", -1, "")
    (topic,) = asked.topics
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(0, 5), (3, 1 << 40)]


def test_offsets_are_deleted() -> None:
    partition = {"_": "OffsetDeleteResponsePartition", "partition_index": 0, "error_code": 86}
    topic = {"_": "OffsetDeleteResponseTopic", "name": "t", "partitions": [partition]}
    answers = [{"error_code": 0, "topics": [topic]}, {"error_code": 69, "topics": []}]
    with serving({OFFSET_DELETE: answers}) as (_, client):
        assert client.delete_offsets("g", [("t", 0)]) == (None, {("t", 0): "GROUP_SUBSCRIBED_TO_TOPIC"})
        assert client.delete_offsets("g", [("t", 0)]) == ("GROUP_ID_NOT_FOUND", {})


# --- descriptions -------------------------------------------------------------------------------------


def described(assignment: bytes, protocol_type: str = "consumer", code: int = 0) -> dict[str, Any]:
    member = {
        "_": "DescribedGroupMember",
        "member_id": "m",
        "group_instance_id": "static",
        "client_id": "c",
        "client_host": "/127.0.0.1",
        "member_metadata": b"\0",
        "member_assignment": assignment,
    }
    group = {
        "_": "DescribedGroup",
        "error_code": code,
        "group_id": "g",
        "group_state": "Stable",
        "protocol_type": protocol_type,
        "protocol_data": "range",
        "members": [member],
    }
    return {"groups": [group]}


TOPICS = struct.pack(">hi", 0, 2) + string("u") + struct.pack(">ii", 1, 7) + string("t")
ASSIGNMENT = TOPICS + struct.pack(">iii", 2, 1, 0) + struct.pack(">i", -1)


@pytest.mark.parametrize(
    ("assignment", "protocol_type", "partitions"),
    [
        (ASSIGNMENT, "consumer", (("t", 0), ("t", 1), ("u", 7))),
        (ASSIGNMENT, "connect", ()),
        (ASSIGNMENT[:-9], "consumer", ()),
        (b"\0\0\x7f\xff\xff\xff", "consumer", ()),
        (b"", "consumer", ()),
    ],
)
def test_members_and_what_they_have(
    assignment: bytes, protocol_type: str, partitions: tuple[tuple[str, int], ...]
) -> None:
    with serving({DESCRIBE_GROUPS: [described(assignment, protocol_type)]}) as (coordinator, client):
        found = client.describe(["g"])
    assert found["g"] == GroupDescription(
        group="g",
        state="Stable",
        coordinator=f"{coordinator.address} (1)",
        assignment_strategy="range",
        members=(
            Member(
                consumer_id="m", instance_id="static", client_id="c", host="/127.0.0.1", partitions=partitions
            ),
        ),
    )


def test_a_name_that_is_no_groups() -> None:
    with serving({DESCRIBE_GROUPS: [described(b"", code=code) for code in (24, 30)]}) as (_, client):
        with pytest.raises(InvalidRequestError, match="INVALID_GROUP"):
            client.describe(["g"])
        with pytest.raises(RetriableError, match="group 'g': GROUP_AUTHORIZATION_FAILED"):
            client.describe(["g"])


def listed(**types: str) -> dict[str, Any]:
    groups = [
        {
            "_": "ListedGroup",
            "group_id": name,
            "protocol_type": "consumer",
            "group_state": "Stable",
            "group_type": kind,
        }
        for name, kind in types.items()
    ]
    return {"error_code": 0, "groups": groups}


def test_groups_are_listed() -> None:
    answers = [listed(h="classic", g="consumer"), {"error_code": LOADING, "groups": []}]
    with serving({LIST_GROUPS: answers}) as (_, client):
        assert client.list_groups() == {"g": "consumer", "h": "classic"}
        with pytest.raises(RetriableError, match="error 14"):
            client.list_groups()


def test_groups_of_the_consumer_protocol_are_described() -> None:
    def assignment(*partitions: int) -> dict[str, Any]:
        topic = {"_": "TopicPartitions", "topic_id": "A" * 22, "topic_name": "t", "partitions": partitions}
        return {"_": "Assignment", "topic_partitions": [topic] if partitions else []}

    member = {
        "_": "Member",
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 4,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ["t", "u"],
        "subscribed_topic_regex": None,
        "assignment": assignment(1, 0),
        "target_assignment": assignment(2),
    }
    group = {
        "_": "DescribedGroup",
        "error_code": 0,
        "error_message": None,
        "group_id": "g",
        "group_state": "Reconciling",
        "group_epoch": 5,
        "assignment_epoch": 4,
        "assignor_name": "uniform",
        "members": [member],
    }
    dead = {
        "_": "DescribedGroup",
        "error_code": 0,
        "group_id": "g",
        "group_state": "Dead",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
    answers: Answers = {
        DESCRIBE_GROUPS: [{"groups": [dead]}],
        LIST_GROUPS: [listed(g="consumer")],
        CONSUMER_GROUP_DESCRIBE: [{"groups": [group]}],
    }
    with serving(answers) as (_, client):
        found = client.describe(["g"])["g"]
    assert (found.type, found.state, found.has_members) == ("consumer", "Reconciling", True)
    assert (found.epoch, found.target_epoch, found.assignment_strategy) == (5, 4, "uniform")
    (one,) = found.members
    assert (one.consumer_id, one.epoch, one.host) == ("m", 4, "/h")
    assert (one.partitions, one.target) == ((("t", 0), ("t", 1)), (("t", 2),))


# --- other servers ------------------------------------------------------------------------------------

Ask = Callable[[GroupCoordinators], object]
ASKING: list[Ask] = [
    lambda client: client.list_groups(),
    lambda client: client.describe(["g"]),
    lambda client: client.commit_offsets("g", {("t", 0): 1}),
    lambda client: client.delete_offsets("g", [("t", 0)]),
    lambda client: client.delete_groups(["g"]),
]


@pytest.mark.parametrize("ask", ASKING)
def test_nothing_is_asked_of_another_cluster(ask: Ask) -> None:
    with serving({}) as (coordinator, _):
        client = GroupCoordinators("another", ManualClock(), coordinator.address)
        with pytest.raises(InvalidRequestError, match="found cluster 'cluster', expected 'another'"):
            ask(client)
    assert coordinator.asked == []


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack(">i", 4) + b"\0" * 4])
def test_who_is_no_broker_is_unreachable(ask: Ask, raw: bytes) -> None:
    with fake_broker(lambda _: b"", raw=raw) as server, pytest.raises(RetriableError) as raised:
        ask(GroupCoordinators(CLUSTER, ManualClock(), server))
    assert raised.value.code == "COORDINATOR_UNREACHABLE"


def test_an_answer_that_ends_too_early_is_a_coordinator_that_is_not_found() -> None:
    with serving({DELETE_GROUPS: [deleted(("g", 0))]}) as (coordinator, _):

        def cut(key: int) -> bytes:
            whole = coordinator.answer(key)
            return whole[:-3] if key == FIND_COORDINATOR else whole

        with fake_broker(cut) as address:
            client = GroupCoordinators(CLUSTER, ManualClock(), address, timeout_ms=300)
            with pytest.raises(RetriableError) as raised:
                client.delete_groups(["g"])
    assert raised.value.code == "COORDINATOR_UNREACHABLE"


def test_the_next_server_is_asked_where_one_is_silent() -> None:
    with serving({DELETE_GROUPS: [deleted(("g", 0))]}) as (coordinator, _), reserved_port() as taken:
        servers = f"127.0.0.1:{taken.getsockname()[1]},{coordinator.address}"
        assert GroupCoordinators(CLUSTER, ManualClock(), servers).delete_groups(["g"]) == {"g": None}
