"""TxnOffsetCommit over a socket: staged, unstable, and committed or dropped with its transaction."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sparklog
from sparklog_server.coordination.records import Reading
from sparklog_server.coordination.state_log import StateLog
from tests.server.api.group_requests import (
    DELETE,
    FETCH,
    GROUP_SETTINGS,
    GROUP_TOPICS,
    OFFSET_DELETE,
    commit,
    fetch,
    join,
    sync,
)
from tests.server.api.transacting import TransactionClient, producer_of
from tests.support.running_broker import RunningBroker

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS
STAGE = 28
Producer = tuple[int, int]
UNSTABLE = (-1, "", "unstable_offset_commit")
NOTHING = (-1, "", "none")
VERSIONS = range(6)


@pytest.fixture
def client(running_broker: RunningBroker) -> Iterator[TransactionClient]:
    with TransactionClient(running_broker.host, running_broker.port) as client:
        yield client


@pytest.fixture
def producer(client: TransactionClient) -> Producer:
    return producer_of(client.initialise())


def stage(
    client: TransactionClient,
    producer: Producer,
    offsets: dict[tuple[str, int], int],
    version: int = 5,
    *,
    name: str = "app",
    **more: Any,
) -> dict[tuple[str, int], str]:
    topics = [
        {
            "_": "TxnOffsetCommitRequestTopic",
            "name": topic,
            "partitions": [
                {
                    "_": "TxnOffsetCommitRequestPartition",
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": more.get("metadata", "note"),
                    **({"committed_leader_epoch": 3} if version >= 2 else {}),
                }
            ],
        }
        for (topic, partition), offset in offsets.items()
    ]
    said = {"member_id": "", "generation_id": -1, "group_instance_id": None} if version >= 3 else {}
    answer = client.ask(
        STAGE,
        version,
        transactional_id=name,
        group_id=more.get("group_id", "g"),
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=topics,
        **{key: more.get(key, value) for key, value in said.items()},
    )
    return {
        (topic.name, one.partition_index): one.error_code.name
        for topic in answer.topics
        for one in topic.partitions
    }


def added(client: TransactionClient, producer: Producer, version: int) -> None:
    """The first protocol's clients add the group before."""
    if version < 5:
        assert client.add_offsets(producer) == "none"


def ended(client: TransactionClient, producer: Producer, version: int = 5, *, commits: bool = True) -> None:
    found = client.end(producer, commits=commits, version=5 if version == 5 else 3)
    assert found[0] == "none"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commits", [True, False])
def test_every_version(client: TransactionClient, producer: Producer, version: int, commits: bool) -> None:
    assert set(commit(client, {("orders", 0): 1}).values()) == {"none"}
    added(client, producer, version)
    offsets = {("orders", 0): 5, ("returns", 0): 6}
    assert set(stage(client, producer, offsets, version).values()) == {"none"}
    asked = {"orders": [0, 1], "returns": [0]}
    assert fetch(client, asked) == {("orders", 0): UNSTABLE, ("orders", 1): NOTHING, ("returns", 0): UNSTABLE}
    assert fetch(client, None)["orders", 0] == UNSTABLE
    assert fetch(client, asked, 6)["orders", 0] == (1, "note", "none")  # who does not ask for stable ones
    ended(client, producer, version, commits=commits)
    before = (1, "note", "none"), NOTHING
    after = (5, "note", "none"), (6, "note", "none")
    orders, returns = after if commits else before
    assert fetch(client, asked) == {("orders", 0): orders, ("orders", 1): NOTHING, ("returns", 0): returns}


@pytest.mark.parametrize("version", [6, 9])
def test_what_was_answered_as_committed_is_told(
    client: TransactionClient, producer: Producer, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it has to be read from the log first, and to those who do not ask for what is stable."""
    asked, settled, read = asyncio.Event(), StateLog.settled, Reading.read

    async def wanted(log: StateLog[Any, Any]) -> None:
        asked.set()
        await settled(log)

    async def late(reading: Reading[Any], *args: Any) -> Any:
        await asked.wait()
        return await read(reading, *args)

    monkeypatch.setattr(StateLog, "settled", wanted)
    monkeypatch.setattr(Reading, "read", late)
    stage(client, producer, {("orders", 0): 5})
    ended(client, producer)
    assert fetch(client, {"orders": [0]}, version) == {("orders", 0): (5, "note", "none")}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_that_was_not_added(client: TransactionClient, producer: Producer, version: int) -> None:
    assert client.add(producer, ("orders", 0)) == ["none"]  # its transaction is open all the same
    expected = {4: "transaction_abortable", 5: "none"}.get(version, "invalid_txn_state")
    assert set(stage(client, producer, {("orders", 0): 5}, version).values()) == {expected}
    assert fetch(client, {"orders": [0]})["orders", 0] == (UNSTABLE if version == 5 else NOTHING)


@pytest.mark.parametrize("version", VERSIONS)
def test_whose_producer_it_is_not(client: TransactionClient, producer: Producer, version: int) -> None:
    newer = producer_of(client.initialise())
    added(client, newer, version)

    def told(producer: Producer, name: str = "app") -> set[str]:
        return set(stage(client, producer, {("orders", 0): 5}, version, name=name).values())

    assert told(producer) == {"invalid_producer_epoch"}
    assert told((99, 0)) == {"invalid_producer_id_mapping"}
    assert told(newer, "nobodys") == {"invalid_producer_id_mapping"}
    assert told(newer) == {"none"}


def test_bad_partitions_are_refused_and_the_others_staged(
    client: TransactionClient, producer: Producer
) -> None:
    assert stage(client, producer, {("orders", 0): 5, ("orders", 9): 5, ("nix", 0): 5}) == {
        ("orders", 0): "none",
        ("orders", 9): "unknown_topic_or_partition",
        ("nix", 0): "unknown_topic_or_partition",
    }
    told = stage(client, producer, {("orders", 1): 5}, metadata="ö" * 6)
    assert told == {("orders", 1): "offset_metadata_too_large"}
    assert set(stage(client, producer, {("orders", 1): 5}, group_id="").values()) == {"invalid_group_id"}
    ended(client, producer)
    assert fetch(client, {"orders": [0]}) == fetch(client, None) == {("orders", 0): (5, "note", "none")}


@pytest.mark.parametrize("version", range(3, 6))
def test_members_are_checked_when_offsets_are_staged(
    client: TransactionClient, producer: Producer, version: int
) -> None:
    joined = join(client)
    sync(client, joined)
    added(client, producer, version)

    def told(**said: Any) -> set[str]:
        return set(stage(client, producer, {("orders", 0): 5}, version, **said).values())

    mine = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assert told(**mine) == {"none"}
    assert told(**{**mine, "generation_id": 7}) == {"illegal_generation"}
    assert told(**{**mine, "member_id": "somebody"}) == {"unknown_member_id"}
    assert told(**mine, group_instance_id="nobody") == {"unknown_member_id"}
    added(client, producer, version)
    assert told(generation_id=3, member_id="x", group_id="unknown") == {"illegal_generation"}
    assert told() == {"none"}  # older clients say nothing of themselves


def test_a_client_that_has_its_share_of_open_transactions_waits(
    client: TransactionClient, producer: Producer, running_broker: RunningBroker
) -> None:
    shares = running_broker.broker.transactions.shares
    most, shares.max_weight = shares.max_weight, 0
    assert stage(client, producer, {("orders", 0): 5}) == {("orders", 0): "coordinator_not_available"}
    shares.max_weight = most
    assert stage(client, producer, {("orders", 0): 5}) == {("orders", 0): "none"}


def test_the_last_one_in_the_log_counts(client: TransactionClient, producer: Producer) -> None:
    """A commit between staging and the end is before it."""
    stage(client, producer, {("orders", 0): 5})
    stage(client, producer, {("orders", 0): 6})
    commit(client, {("orders", 0): 9})
    assert fetch(client, {"orders": [0]}, 6)["orders", 0] == (9, "note", "none")
    ended(client, producer)
    assert fetch(client, {"orders": [0]})["orders", 0] == (6, "note", "none")


def test_what_is_pending_is_not_deleted(client: TransactionClient, producer: Producer) -> None:
    commit(client, {("orders", 0): 1, ("orders", 1): 1})
    stage(client, producer, {("orders", 0): 5})

    def deleted(*partitions: int) -> dict[int, str]:
        topics = [
            {
                "_": "OffsetDeleteRequestTopic",
                "name": "orders",
                "partitions": [
                    {"_": "OffsetDeleteRequestPartition", "partition_index": number} for number in partitions
                ],
            }
        ]
        answer = client.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)
        return {
            one.partition_index: one.error_code.name for topic in answer.topics for one in topic.partitions
        }

    def group_deleted() -> str:
        (answer,) = client.ask(DELETE, 2, groups_names=["g"]).results
        return str(answer.error_code.name)

    assert deleted(0, 1) == {0: "unstable_offset_commit", 1: "none"}
    assert group_deleted() == "non_empty_group"
    ended(client, producer, commits=False)
    assert group_deleted() == "none"
    assert fetch(client, None) == {}


def test_a_coordinator_that_starts_again_knows_what_is_pending(
    start_broker: Callable[..., RunningBroker], running_broker: RunningBroker
) -> None:
    with TransactionClient(running_broker.host, running_broker.port) as client:
        producer = producer_of(client.initialise())
        commit(client, {("orders", 0): 1})
        stage(client, producer, {("orders", 0): 5})
    running_broker.stop()
    again = start_broker(BROKER_SETTINGS, root=running_broker.root)
    again.settle()
    with TransactionClient(again.host, again.port) as client:
        while (found := fetch_any(client)) == "coordinator_load_in_progress":
            pass
        assert found == "unstable_offset_commit"
        ended(client, producer)
        assert fetch(client, {"orders": [0]})["orders", 0] == (5, "note", "none")


def fetch_any(client: TransactionClient) -> str:
    topics = [{"_": "OffsetFetchRequestTopics", "name": "orders", "partition_indexes": (0,)}]
    group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}
    (answer,) = client.ask(FETCH, 9, groups=[group], require_stable=True).groups
    return str(answer.topics[0].partitions[0].error_code.name)


def test_another_process_reads_what_was_committed(
    client: TransactionClient, producer: Producer, running_broker: RunningBroker
) -> None:
    stage(client, producer, {("orders", 0): 5})
    with sparklog.open(running_broker.root, create=False) as log:
        assert log.committed_offsets("g") == {}
        ended(client, producer)
        log.refresh()
        assert len(log.committed_offsets("g")) == 1
