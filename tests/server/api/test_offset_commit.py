"""OffsetCommit: what is kept, and what is refused partition by partition."""

import logging

import pytest

import sparklog
from tests.server.api.group_requests import GROUP_SETTINGS, GROUP_TOPICS, commit, fetch, join, sync
from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


def test_bad_partitions_are_refused_and_the_others_committed(
    asker: WireClient, caplog: pytest.LogCaptureFixture, told: Told
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
    refused = [message for message in told("sparklog_server.coordinator") if "not committed" in message]
    start = "client 'test': offsets of group 'g' not committed: "
    assert refused == [
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
