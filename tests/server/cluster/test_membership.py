"""When a broker may answer for groups and partitions: registered, as of a look that is new enough."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import FencedError, InvalidRequestError, StorageError
from sparklog_server.broker import Broker
from sparklog_server.runtime.lifecycle import BrokerState
from sparklog_server.settings.config import ServerConfig
from tests.server.api.group_requests import commit, join, sync
from tests.server.test_broker import with_broker
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker, ShiftedClock
from tests.support.several_brokers import take_over
from tests.support.wire_client import WireClient

FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND, HEARTBEAT, LIST, END_OF_EPOCH = 1, 2, 3, 9, 10, 12, 16, 23
BOUND_MS = 60_000


def test_a_newer_registration_ends_the_role_at_the_next_look(root: str) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.start()
        assert broker.membership.is_in_charge
        with sparklog.open(root) as other:
            await broker.root.run(take_over, other)
        async with asyncio.timeout(60):
            await broker.lifecycle.wait_for_stop()
        assert broker.groups.heartbeat("g", "m", None, 1).name == "not_coordinator"

    broker = with_broker(root, scenario)
    assert broker.lifecycle.state is BrokerState.FAILED
    assert "BROKER_FENCED" in str(broker.lifecycle.failure)


def test_an_image_ends_the_role_before_anybody_was_told_of_it(root: str) -> None:
    """A thread has seen the registration; the loop has not heard of it yet."""

    async def scenario(broker: Broker) -> None:
        await broker.start()
        broker.follower.stop()
        with sparklog.open(root) as other:
            take_over(other)
        broker.root.log.refresh()
        assert not broker.lifecycle.has_failed
        assert broker.groups.heartbeat("g", "m", None, 1).name == "not_coordinator"
        broker.root.show()
        assert broker.lifecycle.has_failed

    with_broker(root, scenario)


def test_a_broker_that_is_deposed_while_it_starts_does_not_start(root: str) -> None:
    async def scenario(broker: Broker) -> None:
        class Deposes:
            async def start(self) -> None:
                with sparklog.open(root) as other:
                    take_over(other)
                await broker.root.look()

            async def stop(self) -> None:
                pass

        broker.components.append(Deposes())
        with pytest.raises(FencedError, match="BROKER_FENCED"):
            await broker.start()

    assert with_broker(root, scenario).lifecycle.state is BrokerState.FAILED


def test_polling_must_be_more_frequent_than_the_bound() -> None:
    with pytest.raises(InvalidRequestError, match=r"expected more than .*poll\.ms, 9000"):
        ServerConfig.parse({"sparklog.metadata.poll.ms": "9000"})


class Outage:
    """A broker whose storage can go away, on a machine that can be suspended."""

    def __init__(
        self, start_broker: Callable[..., RunningBroker], root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._monkeypatch = monkeypatch
        with sparklog.open(str(root)) as log:
            log.create_topic("orders", 2)
        self.clock = ShiftedClock()
        self.broker = start_broker(
            {
                "broker.session.timeout.ms": str(BOUND_MS),
                "sparklog.metadata.poll.ms": "1",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "2",
            },
            clock=self.clock,
        )

    def begin(self) -> None:
        def exists(name: str) -> bool:
            raise StorageError("STORE_UNAVAILABLE", f"{name}: found no storage", fix="wait for it")

        self._monkeypatch.setattr(self.broker.broker.root.store, "exists", exists)

    def end(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def outage(
    start_broker: Callable[..., RunningBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Outage:
    return Outage(start_broker, tmp_path / "log", monkeypatch)


def heartbeat(asker: WireClient, joined: Any) -> str:
    fields = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
    return str(asker.ask(HEARTBEAT, 4, **fields).error_code.name)


def errors_of_everything(asker: WireClient, joined: Any) -> dict[str, str]:
    """What each kind of request is told, that only the broker in charge may answer."""
    group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None}
    listed = {"_": "ListOffsetsPartition", "partition_index": 0, "timestamp": -1}
    fetched = {"_": "FetchPartition", "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    ended = {"_": "OffsetForLeaderPartition", "partition": 0, "leader_epoch": 0}
    session = {"min_bytes": 0, "max_wait": 0, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1}
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": joined.generation_id}
    answers = {
        "Heartbeat": heartbeat(asker, joined),
        "OffsetCommit": commit(asker, {("orders", 0): 1}, **member)["orders", 0],
        "OffsetFetch": asker.ask(OFFSET_FETCH, 9, groups=[group], require_stable=False).groups[0].error_code,
        "ListGroups": asker.ask(LIST, 4, states_filter=()).error_code,
        "FindCoordinator": asker.ask(FIND, 3, key="g", key_type=0).error_code,
        "ListOffsets": asker.ask(
            LIST_OFFSETS,
            6,
            replica_id=-1,
            isolation_level=0,
            topics=[{"_": "ListOffsetsTopic", "name": "orders", "partitions": [listed]}],
        )
        .topics[0]
        .partitions[0]
        .error_code,
        "Fetch": asker.ask(
            FETCH, 11, topics=[{"_": "FetchTopic", "topic": "orders", "partitions": [fetched]}], **session
        )
        .responses[0]
        .partitions[0]
        .error_code,
        "OffsetForLeaderEpoch": asker.ask(
            END_OF_EPOCH, 4, topics=[{"_": "OffsetForLeaderTopic", "topic": "orders", "partitions": [ended]}]
        )
        .topics[0]
        .partitions[0]
        .error_code,
    }
    return {name: error if isinstance(error, str) else error.name for name, error in answers.items()}


def test_who_cannot_follow_the_log_answers_for_nothing_until_it_can(
    outage: Outage, connect: Callable[[RunningBroker], WireClient]
) -> None:
    asker = connect(outage.broker)
    joined = join(asker)
    assert sync(asker, joined).assignment == b"all"
    fine = errors_of_everything(asker, joined)
    assert set(fine.values()) == {"none"}

    outage.begin()
    # A moment does no harm: what needs no storage is answered.
    assert heartbeat(asker, joined) == "none"
    needs_storage = {
        "ListOffsets": "kafka_storage_error",
        "OffsetForLeaderEpoch": "kafka_storage_error",
        "OffsetCommit": "coordinator_not_available",
    }
    assert errors_of_everything(asker, joined) == {**fine, **needs_storage}
    outage.clock.suspended_ms += BOUND_MS
    refused = errors_of_everything(asker, joined)
    assert refused == {
        "Heartbeat": "not_coordinator",
        "OffsetCommit": "not_coordinator",
        "OffsetFetch": "not_coordinator",
        "ListGroups": "coordinator_not_available",
        "FindCoordinator": "coordinator_not_available",
        "ListOffsets": "not_leader_or_follower",
        "Fetch": "not_leader_or_follower",
        "OffsetForLeaderEpoch": "not_leader_or_follower",
    }
    # Where brokers are is said as far as it is known: clients ask that first.
    assert [one.node_id for one in asker.ask(METADATA, 9, topics=None).brokers] == [1]

    outage.end()
    # Not by heartbeats: they are told "none" also while the group is loaded again.
    until(lambda: set(errors_of_everything(asker, joined).values()) == {"none"}, what="its group is loaded")


def test_who_waits_for_a_rebalance_is_sent_away(
    outage: Outage, connect: Callable[[RunningBroker], WireClient]
) -> None:
    first, second = connect(outage.broker), connect(outage.broker)
    # Longer than this test waits: or the first member's session would end, and the wait with it.
    patient: dict[str, Any] = {"session_timeout": 600_000, "rebalance_timeout": 600_000}
    joined = join(first, **patient)
    assert sync(first, joined).assignment == b"all"
    outage.begin()

    # It waits for the first member to join again, which that does not do.
    def suspend_when_it_waits() -> None:
        groups = outage.broker.broker.groups
        group = groups.find("g")
        if group is not None and group.members.joining:
            outage.clock.suspended_ms = BOUND_MS
        else:
            outage.broker.loop.call_soon(suspend_when_it_waits)

    outage.broker.loop.call_soon_threadsafe(suspend_when_it_waits)
    answer = join(second, **patient)
    assert answer.error_code.name == "not_coordinator"
    outage.end()
    until(lambda: heartbeat(first, joined) == "none", what="the group is as it was in the log")
