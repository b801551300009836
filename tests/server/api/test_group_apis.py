"""The group APIs over a socket, in every version that is advertised."""

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

import sparklog
from sparklog_server.protocol.entities import make
from sparklog_server.security.access import NOT_ASKED_FOR, Access
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x06orders"
FIND, JOIN, SYNC, HEARTBEAT, LEAVE = 10, 11, 14, 12, 13
COMMIT, FETCH, DESCRIBE, LIST, DELETE, OFFSET_DELETE = 8, 9, 15, 16, 42, 47


@pytest.fixture
def running_broker(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> RunningBroker:
    with sparklog.open(str(tmp_path / "log")) as log:
        log.create_topic("orders", 2)
        log.create_topic("returns", 1)
    return start_broker(
        {
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offsets.topic.num.partitions": "2",
            "offset.metadata.max.bytes": "10",
            "sparklog.shutdown.timeout.ms": "600000",
        }
    )


def join(asker: WireClient, version: int = 9, member_id: str = "", group: str = "g", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "session_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": SUBSCRIPTION}],
    }
    if version >= 1:
        fields["rebalance_timeout"] = 10_000
    answer = asker.ask(JOIN, version, **{**fields, **more})
    if answer.error_code.name == "member_id_required":
        assert version >= 4
        return join(asker, version, answer.member_id, group, **more)
    return answer


def sync(asker: WireClient, joined: Any, version: int = 5, group: str = "g", **more: Any) -> Any:
    given = [
        {"_": "SyncGroupRequestAssignment", "member_id": one.member_id, "assignment": b"all"}
        for one in joined.members
    ]
    if version >= 5:
        more = {"protocol_type": "consumer", "protocol_name": "range", **more}
    return asker.ask(
        SYNC,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=given,
        **more,
    )


def commit(
    asker: WireClient,
    offsets: dict[tuple[str, int], int],
    version: int = 9,
    metadata: str = "note",
    **more: Any,
) -> dict[tuple[str, int], str]:
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", **more}
    topics = [
        {
            "_": "OffsetCommitRequestTopic",
            "name": topic,
            "partitions": [
                {
                    "_": "OffsetCommitRequestPartition",
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                    **({"committed_leader_epoch": 3} if version >= 6 else {}),
                }
            ],
        }
        for (topic, partition), offset in offsets.items()
    ]
    answer = asker.ask(COMMIT, version, topics=topics, **fields)
    return {
        (topic.name, one.partition_index): one.error_code.name
        for topic in answer.topics
        for one in topic.partitions
    }


def fetch(
    asker: WireClient, asked: dict[str, list[int]] | None, version: int = 9
) -> dict[tuple[str, int], Any]:
    """(offset, metadata) of each."""
    suffix = "Topics" if version >= 8 else "Topic"
    topics = None
    if asked is not None:
        topics = [
            {"_": f"OffsetFetchRequest{suffix}", "name": name, "partition_indexes": tuple(partitions)}
            for name, partitions in asked.items()
        ]
    if version >= 8:
        group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}
        answer = asker.ask(FETCH, version, groups=[group], require_stable=True)
        (answer,) = answer.groups
    else:
        answer = asker.ask(FETCH, version, group_id="g", topics=topics)
    if version >= 2:
        assert answer.error_code.name == "none"
    return {
        (topic.name, one.partition_index): (one.committed_offset, one.metadata, one.error_code.name)
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", range(5))
def test_find_coordinator(asker: WireClient, running_broker: RunningBroker, version: int) -> None:
    if version < 4:
        found = [asker.ask(FIND, version, key="g")]
    else:
        found = list(asker.ask(FIND, version, key_type=0, coordinator_keys=("g", "h")).coordinators)
        assert [one.key for one in found] == ["g", "h"]
    for one in found:
        assert (one.error_code.name, one.node_id) == ("none", 1)
        assert (one.host, one.port) == (running_broker.host, running_broker.port)


@pytest.mark.parametrize("version", range(1, 5))
def test_transactions_are_refused_clearly(
    asker: WireClient, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    if version < 4:
        found = asker.ask(FIND, version, key="t", key_type=1)
    else:
        (found,) = asker.ask(FIND, version, key_type=1, coordinator_keys=("t",)).coordinators
    assert found.error_code.name == "transactional_id_authorization_failed"
    assert "not supported" in found.error_message
    assert found.node_id == -1
    # Clients show the error's name, and people look for ACLs: the broker's log says what it is.
    (told,) = [message for message in caplog.messages if "transactions" in message]
    assert "'test'" in told
    assert "remove transactional.id" in told


def test_other_coordinators_are_unknown(asker: WireClient) -> None:
    (found,) = asker.ask(FIND, 4, key_type=2, coordinator_keys=("t",)).coordinators
    assert found.error_code.name == "invalid_request"


@pytest.mark.parametrize("version", range(10))
def test_join_sync_heartbeat_leave(asker: WireClient, version: int) -> None:
    """A life in the versions of one time."""
    joined = join(asker, version)
    assert (joined.error_code.name, joined.generation_id) == ("none", 1)
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("test-")
    assert [one.metadata for one in joined.members] == [SUBSCRIPTION]
    assert joined.protocol_name == "range"
    if version >= 7:
        assert joined.protocol_type == "consumer"
    synced = sync(asker, joined, min(version, 5))
    assert (synced.error_code.name, synced.assignment) == ("none", b"all")
    beat = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    assert asker.ask(HEARTBEAT, min(version, 4), **beat).error_code.name == "none"
    leaving = min(version, 5)
    if leaving < 3:
        left = asker.ask(LEAVE, leaving, group_id="g", member_id=joined.member_id)
        assert left.error_code.name == "none"
        left = asker.ask(LEAVE, leaving, group_id="g", member_id="stranger")
        assert left.error_code.name == "unknown_member_id"
    else:
        members = [{"_": "MemberIdentity", "member_id": one} for one in (joined.member_id, "stranger")]
        left = asker.ask(LEAVE, leaving, group_id="g", members=members)
        assert left.error_code.name == "none"
        assert [one.error_code.name for one in left.members] == ["none", "unknown_member_id"]
    assert asker.ask(HEARTBEAT, min(version, 4), **beat).error_code.name == "unknown_member_id"


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join(asker: WireClient, version: int) -> None:
    refused = asker.ask(
        JOIN, version, group_id="g", member_id="", session_timeout=99, protocol_type="consumer"
    )
    assert refused.error_code.name == "invalid_session_timeout"
    assert refused.generation_id == -1
    assert refused.protocol_name == (None if version >= 7 else "")


def test_sync_must_name_the_protocol(asker: WireClient) -> None:
    joined = join(asker)
    assert sync(asker, joined, protocol_name=None).error_code.name == "inconsistent_group_protocol"
    assert sync(asker, joined, protocol_type="other").error_code.name == "inconsistent_group_protocol"


@pytest.mark.parametrize("version", range(5, 10))
def test_static_members(asker: WireClient, version: int) -> None:
    joined = join(asker, version, group_instance_id="i")
    assert joined.error_code.name == "none"
    assert [one.group_instance_id for one in joined.members] == ["i"]
    assert sync(asker, joined, group_instance_id="i").assignment == b"all"
    again = join(asker, version, group_instance_id="i")
    assert (again.error_code.name, again.generation_id) == ("none", 1)
    assert again.member_id.startswith("i-")
    if version >= 9:
        assert again.skip_assignment
    beat = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id, "group_instance_id": "i"}
    assert asker.ask(HEARTBEAT, 4, **beat).error_code.name == "fenced_instance_id"
    fenced = commit(
        asker,
        {("orders", 0): 1},
        generation_id_or_member_epoch=1,
        member_id=joined.member_id,
        group_instance_id="i",
    )
    assert fenced == {("orders", 0): "fenced_instance_id"}
    members = [{"_": "MemberIdentity", "member_id": "", "group_instance_id": "i"}]
    left = asker.ask(LEAVE, 3, group_id="g", members=members)
    assert [(one.group_instance_id, one.error_code.name) for one in left.members] == [("i", "none")]


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_in_every_version(asker: WireClient, version: int) -> None:
    assert fetch(asker, {"orders": [0]}) == {("orders", 0): (-1, "", "none")}
    ok = {("orders", 0): "none", ("returns", 0): "none"}
    assert commit(asker, {("orders", 0): 5, ("returns", 0): 6}, version) == ok
    asked = {"orders": [0, 1], "unknown": [0]}
    expected = {
        ("orders", 0): (5, "note", "none"),
        ("orders", 1): (-1, "", "none"),
        ("unknown", 0): (-1, "", "none"),
    }
    for fetch_version in range(1, 10):
        assert fetch(asker, asked, fetch_version) == expected
        assert fetch(asker, {}, fetch_version) == {}
        if fetch_version >= 2:
            assert fetch(asker, None, fetch_version) == {
                ("orders", 0): (5, "note", "none"),
                ("returns", 0): (6, "note", "none"),
            }


def test_leader_epochs_come_back(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 5})
    topics = [{"_": "OffsetFetchRequestTopic", "name": "orders", "partition_indexes": (0, 1)}]
    (topic,) = asker.ask(FETCH, 5, group_id="g", topics=topics).topics
    assert [one.committed_leader_epoch for one in topic.partitions] == [3, -1]


@pytest.mark.parametrize("version", range(1, 10))
def test_while_offsets_are_loaded_every_partition_says_so(
    asker: WireClient, running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    loading = ErrorCode.coordinator_load_in_progress
    monkeypatch.setattr(running_broker.broker.groups, "fetch", lambda _: (loading, {}))
    suffix = "Topics" if version >= 8 else "Topic"
    topics = [{"_": f"OffsetFetchRequest{suffix}", "name": "orders", "partition_indexes": (0, 1)}]
    if version >= 8:
        group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}
        (answer,) = asker.ask(FETCH, version, groups=[group]).groups
    else:
        answer = asker.ask(FETCH, version, group_id="g", topics=topics)
    assert version < 2 or answer.error_code == loading
    (topic,) = answer.topics
    assert [(one.committed_offset, one.error_code) for one in topic.partitions] == [(-1, loading)] * 2


def test_several_groups_at_once(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 5})
    groups = [
        {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None},
        {"_": "OffsetFetchRequestGroup", "group_id": "other", "topics": None},
    ]
    answer = asker.ask(FETCH, 8, groups=groups)
    assert [(one.group_id, len(one.topics)) for one in answer.groups] == [("g", 1), ("other", 0)]


def test_bad_partitions_are_refused_and_the_others_committed(
    asker: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.coordinator")
    assert commit(
        asker, {("orders", 0): 5, ("orders", 2): 5, ("orders", -1): 5, ("nix", 0): 5, ("returns", 0): 7}
    ) == {
        ("orders", 0): "none",
        ("orders", 2): "unknown_topic_or_partition",
        ("orders", -1): "unknown_topic_or_partition",
        ("nix", 0): "unknown_topic_or_partition",
        ("returns", 0): "none",
    }
    assert commit(asker, {("orders", 1): 5}, metadata="ö" * 6) == {("orders", 1): "offset_metadata_too_large"}
    assert fetch(asker, None) == {
        ("orders", 0): (5, "note", "none"),
        ("returns", 0): (7, "note", "none"),
    }
    told = [message for message in caplog.messages if "not committed" in message]
    start = "client 'test': offsets of group 'g' not committed: "
    assert told == [
        start + "3 partitions, orders-2 first: unknown_topic_or_partition",
        start + "1 partitions, orders-1 first: offset_metadata_too_large",
    ]


@pytest.mark.parametrize("version", range(2, 10))
def test_negative_offsets_are_kept_as_in_kafka_and_read_as_none(
    asker: WireClient, running_broker: RunningBroker, version: int
) -> None:
    """What administrators' tools reset groups with: -1 and -2, to be looked up later."""
    reset = {("orders", 0): -1, ("orders", 1): -2}
    assert set(commit(asker, {("orders", 0): 5, ("orders", 1): 5}).values()) == {"none"}
    assert set(commit(asker, reset, version).values()) == {"none"}
    assert {where: offset for where, (offset, _, _) in fetch(asker, None).items()} == reset
    with sparklog.open(running_broker.root, create=False) as log:
        assert log.committed_offsets("g") == {}
        assert log.groups() == []


def test_a_topic_that_was_just_made_beside_the_broker_is_known(
    asker: WireClient, running_broker: RunningBroker
) -> None:
    with sparklog.open(running_broker.root, create=False) as log:
        log.create_topic("new", 1)
        assert commit(asker, {("new", 0): 0}) == {("new", 0): "none"}
        log.add_partitions("new", 2)
        assert commit(asker, {("new", 1): 0}) == {("new", 1): "none"}


def test_commits_of_members(asker: WireClient) -> None:
    joined = join(asker)
    sync(asker, joined)
    one = {("orders", 0): 1}
    assert commit(asker, one) == {("orders", 0): "unknown_member_id"}
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert commit(asker, one, **member) == {("orders", 0): "none"}
    member["generation_id_or_member_epoch"] = 2
    assert commit(asker, one, **member) == {("orders", 0): "illegal_generation"}


@pytest.mark.parametrize("version", range(2, 5))
def test_a_retention_of_the_clients_own(
    asker: WireClient, running_broker: RunningBroker, version: int
) -> None:
    commit(asker, {("orders", 0): 1}, version, retention_time=0)
    commit(asker, {("orders", 1): 1}, version, retention_time=1_000_000)
    running_broker.call(running_broker.broker.groups.expire())
    assert fetch(asker, None) == {("orders", 1): (1, "note", "none")}


@pytest.mark.parametrize("version", range(6))
def test_describe_groups(asker: WireClient, version: int) -> None:
    joined = join(asker)
    sync(asker, joined)
    commit(asker, {("orders", 0): 1}, group_id="query")
    answer = asker.ask(DESCRIBE, version, groups=("g", "query", "nobody"))
    group, query, nobody = answer.groups
    assert (group.error_code.name, group.group_state, group.protocol_type, group.protocol_data) == (
        "none",
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "test",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"all")
    assert (query.error_code.name, query.group_state, query.members) == ("none", "Empty", ())
    assert (nobody.error_code.name, nobody.group_state) == ("none", "Dead")
    if version >= 3:
        assert group.authorized_operations == NOT_ASKED_FOR
        (asked,) = asker.ask(DESCRIBE, version, groups=("g",), include_authorized_operations=True).groups
        assert asked.authorized_operations == Access().group_operations


@pytest.mark.parametrize("version", range(6))
def test_list_groups(asker: WireClient, version: int) -> None:
    sync(asker, join(asker))
    commit(asker, {("orders", 0): 1}, group_id="query")
    listed = asker.ask(LIST, version)
    assert listed.error_code.name == "none"
    assert {(one.group_id, one.protocol_type) for one in listed.groups} == {("g", "consumer"), ("query", "")}
    if version >= 4:
        assert {one.group_id: one.group_state for one in listed.groups} == {"g": "Stable", "query": "Empty"}
        stable = asker.ask(LIST, version, states_filter=("stable", "Dead"))
        assert [one.group_id for one in stable.groups] == ["g"]
    if version >= 5:
        assert {one.group_type for one in listed.groups} == {"classic"}
        assert asker.ask(LIST, version, types_filter=("consumer",)).groups == ()
        assert len(asker.ask(LIST, version, types_filter=("Classic",)).groups) == 2


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(asker: WireClient, version: int) -> None:
    sync(asker, join(asker))
    commit(asker, {("orders", 0): 1}, group_id="query")
    answer = asker.ask(DELETE, version, groups_names=("g", "query", "nobody", "query"))
    assert {one.group_id: one.error_code.name for one in answer.results} == {
        "g": "non_empty_group",
        "query": "none",
        "nobody": "group_id_not_found",
    }
    assert [one.group_id for one in asker.ask(LIST, 4).groups] == ["g"]


def test_offset_delete(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 1, ("orders", 1): 1, ("returns", 0): 1})

    def delete(group: str = "g") -> Any:
        topics = [
            {
                "_": "OffsetDeleteRequestTopic",
                "name": name,
                "partitions": [{"_": "OffsetDeleteRequestPartition", "partition_index": number}],
            }
            for name, number in (("orders", 0), ("returns", 0), ("returns", 7), ("nix", 0))
        ]
        answer = asker.ask(OFFSET_DELETE, 0, group_id=group, topics=topics)
        partitions = {
            (topic.name, one.partition_index): one.error_code.name
            for topic in answer.topics
            for one in topic.partitions
        }
        return answer.error_code.name, partitions

    unknown = "unknown_topic_or_partition"
    assert delete() == (
        "none",
        {
            ("orders", 0): "none",
            ("returns", 0): "none",
            ("returns", 7): unknown,
            ("nix", 0): unknown,
        },
    )
    assert fetch(asker, None) == {("orders", 1): (1, "note", "none")}
    assert delete("nobody") == ("group_id_not_found", {})
    joined = join(asker)
    sync(asker, joined)
    assert delete()[1]["orders", 0] == "group_subscribed_to_topic"


def test_a_waiting_member_whose_client_is_gone_is_not_waited_for_for_ever(
    asker: WireClient, running_broker: RunningBroker, connect: Callable[[RunningBroker], WireClient]
) -> None:
    joined = join(asker)
    sync(asker, joined)
    other = connect(running_broker)
    pending = other.ask(
        JOIN,
        9,
        group_id="g",
        member_id="",
        session_timeout=100,
        rebalance_timeout=100,
        protocol_type="consumer",
        protocols=[{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": SUBSCRIPTION}],
    )
    assert pending.error_code.name == "member_id_required"
    other.close()
    again = join(asker, member_id=joined.member_id)  # waits until the id that was given out has expired
    assert (again.error_code.name, again.generation_id) == ("none", 2)
    assert [one.member_id for one in again.members] == [joined.member_id]


def test_a_stopping_broker_does_not_wait_for_members(
    asker: WireClient, running_broker: RunningBroker, connect: Callable[[RunningBroker], WireClient]
) -> None:
    sync(asker, join(asker, session_timeout=600_000))
    second = connect(running_broker)
    pending = second.ask(
        JOIN,
        9,
        group_id="g",
        member_id="",
        session_timeout=10_000,
        rebalance_timeout=300_000,
        protocol_type="consumer",
        protocols=[{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": SUBSCRIPTION}],
    )
    before = running_broker.broker.clock.monotonic_ms()
    # Joins, and waits for the first member, which never comes.
    second.send_frame(_join_frame(pending.member_id))
    while not running_broker.call_soon(_is_joining, running_broker):
        assert running_broker.broker.clock.monotonic_ms() - before < 10_000
    running_broker.stop()  # in less than sparklog.shutdown.timeout.ms, or it fails


def _join_frame(member_id: str) -> bytes:
    types = load_payload_module(JOIN, 9, EntityType.request)
    request = make(
        types.JoinGroupRequest,
        group_id="g",
        member_id=member_id,
        session_timeout=10_000,
        rebalance_timeout=300_000,
        protocol_type="consumer",
        protocols=[make(types.JoinGroupRequestProtocol, name="range", metadata=SUBSCRIPTION)],
    )
    body = io.BytesIO()
    entity_writer(types.JoinGroupRequest)(body, request)
    return b"\x00\x0b\x00\x09\x00\x00\x00\x07\x00\x04test\x00" + body.getvalue()


def _is_joining(running: RunningBroker) -> bool:
    group = running.broker.groups.find("g")
    return group is not None and group.roster.joining > 0
