"""JoinGroup in every version, and a member's life from there on."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sparklog_server.dispatch import dispatcher
from sparklog_server.protocol import messages
from sparklog_server.protocol.wire import HeldAnswer
from tests.server.api.group_requests import (
    GROUP_SETTINGS,
    GROUP_TOPICS,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SUBSCRIPTION,
    SYNC,
    commit,
    join,
    sync,
)
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


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
    _second_member(asker, running_broker, connect)
    running_broker.stop()  # in less than sparklog.shutdown.timeout.ms, or it fails


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can be asked")
def test_who_leaves_while_it_joins_is_not_waited_with(
    asker: WireClient, running_broker: RunningBroker, connect: Callable[[RunningBroker], WireClient]
) -> None:
    """Also in the middle of its next request: its connection stayed for as long as the members may take."""
    second = _second_member(asker, running_broker, connect)
    second.socket.sendall(b"\0")
    second.close()
    before = running_broker.broker.clock.monotonic_ms()
    while len(running_broker.broker.network.connections) > 1:
        assert running_broker.broker.clock.monotonic_ms() - before < 60_000
        threading.Event().wait(0.002)


def _second_member(
    asker: WireClient, running_broker: RunningBroker, connect: Callable[[RunningBroker], WireClient]
) -> WireClient:
    """Joins, and waits for the first member, which never comes."""
    sync(asker, join(asker, session_timeout=600_000))
    second = connect(running_broker)
    asked = {
        "group_id": "g",
        "member_id": "",
        "session_timeout": 10_000,
        "rebalance_timeout": 300_000,
        "protocol_type": "consumer",
        "protocols": [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": SUBSCRIPTION}],
    }
    pending = second.ask(JOIN, 9, **asked)
    before = running_broker.broker.clock.monotonic_ms()
    second.send(JOIN, 9, **{**asked, "member_id": pending.member_id})
    while not running_broker.call_soon(_is_joining, running_broker):
        assert running_broker.broker.clock.monotonic_ms() - before < 60_000
    return second


def _is_joining(running: RunningBroker) -> bool:
    group = running.broker.groups.find("g")
    return group is not None and group.members.joining > 0


@pytest.mark.parametrize("api", ["join", "sync"])
def test_a_large_answer_waits_before_it_is_made(
    asker: WireClient, running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """A hundred of a leader, of 100 bytes each, were 567 MiB: encoded first, and counted afterwards."""
    large = bytes(100_000)
    protocols = [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": large}]
    joined = join(asker, protocols=protocols)
    if api == "join":
        fields = {"member_id": joined.member_id, "protocols": protocols, "protocol_type": "consumer",
                  "session_timeout": 10_000, "rebalance_timeout": 10_000}  # fmt: skip
    else:
        given = [{"_": "SyncGroupRequestAssignment", "member_id": joined.member_id, "assignment": large}]
        as_leader = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
        assert asker.ask(SYNC, 4, **as_leader, assignments=given).assignment == large
        fields = {"member_id": joined.member_id, "generation_id": 1, "assignments": [],
                  "protocol_type": "consumer", "protocol_name": "range"}  # fmt: skip
    made: list[object] = []

    def encode(*given: Any) -> Any:
        made.append(given)
        return messages.encode_response(*given)

    monkeypatch.setattr(dispatcher, "encode_response", encode)
    answers = running_broker.broker.dispatcher.answers
    others = [HeldAnswer(answers), HeldAnswer(answers)]
    running_broker.call(others[0].take(answers.limit_bytes))
    running_broker.call(others[1].take(1))  # one may overdraw
    asker.send(JOIN if api == "join" else SYNC, 5, group_id="g", **fields)
    until(lambda: answers.waiting == 1, what="it waits")
    assert not made
    for other in others:
        running_broker.call_soon(other.release)
    frame = asker.receive_frame()
    assert frame is not None
    assert len(frame) > len(large)
    until(lambda: answers.used_bytes == 0, what="it is given back")
