"""Topics by id: Fetch since version 13, Produce since version 13."""

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog_server.protocol.responses import topic_uuid
from tests.server.api.controlling import settled
from tests.server.api.fetching import FETCH, asked, fetch, offsets, partitions_of
from tests.server.api.producing import ONE
from tests.server.fetch.stored import TOPIC, StoredLog
from tests.server.publish.asking import ProducingClient
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient, request_types

UNKNOWN_ID = "x" * 21 + "A"
VERSION = 17


def by_id(*partitions: tuple[int, int], topic_id: str | None, **fields: Any) -> list[Any]:
    return asked(*partitions, version=VERSION, topic_id=topic_id, **fields)


def errors(response: Any) -> list[tuple[uuid.UUID | None, int, str]]:
    return [
        (topic.topic_id, one.partition_index, one.error_code.name)
        for topic in response.responses
        for one in topic.partitions
    ]


# --- Fetch -----------------------------------------------------------------------------------------------


def test_ids_that_no_topic_has_harm_no_other(client: WireClient, stored: StoredLog) -> None:
    stored.append(10)
    topic_id = stored.state.topic_id
    topics = [
        *by_id((0, 0), (9, 0), topic_id=topic_id),
        *by_id((0, 0), topic_id=UNKNOWN_ID),
        *by_id((0, 0), topic_id=None),
    ]
    response = fetch(client, topics, version=VERSION, max_wait=30_000, min_bytes=1 << 20)
    assert errors(response) == [
        (topic_uuid(topic_id), 0, "none"),
        (topic_uuid(topic_id), 9, "unknown_topic_or_partition"),
        (topic_uuid(UNKNOWN_ID), 0, "unknown_topic_id"),
        (None, 0, "unknown_topic_id"),
    ]
    assert offsets(partitions_of(dataclasses.replace(response, responses=response.responses[:1]))[0]) == list(
        range(10)
    )


def test_a_topic_of_the_same_name_is_another_one(client: WireClient, stored: StoredLog) -> None:
    stored.append(10)
    old = stored.state.topic_id
    session_id = fetch(client, by_id((0, 0), topic_id=old), version=VERSION, session_epoch=0).session_id
    stored.log.delete_topic(TOPIC)
    stored.log.create_topic(TOPIC, 1)
    stored.append(3)
    response = fetch(client, [], version=VERSION, session_id=session_id, session_epoch=1)
    assert errors(response) == [(topic_uuid(old), 0, "unknown_topic_id")]
    assert not partitions_of(response)[0].records
    # As a client that has looked the topic up again goes on: the new one in the old one's place.
    forgotten = request_types(FETCH, VERSION).ForgottenTopic(topic_id=topic_uuid(old), partitions=(0,))
    response = fetch(
        client,
        by_id((0, 0), topic_id=stored.state.topic_id),
        version=VERSION,
        session_id=session_id,
        session_epoch=2,
        forgotten_topics_data=[forgotten],
    )
    assert errors(response) == [(topic_uuid(stored.state.topic_id), 0, "none")]
    assert offsets(partitions_of(response)[0]) == [0, 1, 2]


def test_a_session_does_not_change_from_names_to_ids(client: WireClient, stored: StoredLog) -> None:
    stored.append(3)
    topics = by_id((0, 0), topic_id=stored.state.topic_id)
    session_id = fetch(client, asked((0, 0)), session_epoch=0).session_id
    response = fetch(client, topics, version=VERSION, session_id=session_id, session_epoch=1)
    assert (response.error_code, response.responses) == (ErrorCode.fetch_session_topic_id_error, ())


@pytest.mark.parametrize("version", [14, 15, 17])
def test_a_forged_replica_id_is_refused(client: WireClient, stored: StoredLog, version: int) -> None:
    """Since version 15 it stands in a tagged field."""
    stored.append(3)
    fields: dict[str, Any] = {"replica_id": 1}
    if version >= 15:
        fields = {"replica_state": {"_": "ReplicaState", "replica_id": 1, "replica_epoch": 1}}
    topics = asked((0, 0), version=version, topic_id=stored.state.topic_id)
    response = fetch(client, topics, version=version, **fields)
    assert errors(response) == [(topic_uuid(stored.state.topic_id), 0, "topic_authorization_failed")]


@pytest.mark.parametrize("version", [15, 16])
def test_an_older_epoch_is_answered_with_the_leaders(
    client: WireClient, broker: RunningBroker, stored: StoredLog, version: int
) -> None:
    stored.append(3)
    topics = asked((0, 0), version=version, topic_id=stored.state.topic_id, epoch=-2)
    response = fetch(client, topics, version=version)
    (one,) = response.responses[0].partitions
    assert one.error_code is ErrorCode.fenced_leader_epoch
    told = one.current_leader
    if version < 16:
        assert (told.leader_id, told.leader_epoch) == (-1, -1)
        return
    assert (told.leader_id, told.leader_epoch) == (1, stored.state.leadership.leader_epoch)
    (node,) = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (1, broker.host, broker.port, None)
    # What is led here, and fine, says nothing of the kind.
    fine = fetch(client, by_id((0, 0), topic_id=stored.state.topic_id), version=version)
    assert fine.node_endpoints == ()
    assert partitions_of(fine)[0].current_leader.leader_id == -1


def test_traffic_is_counted_under_the_topics_name(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    stored.append(3)
    fetch(client, by_id((0, 0), topic_id=stored.state.topic_id), version=VERSION)
    fetch(client, by_id((0, 0), topic_id=UNKNOWN_ID), version=VERSION)
    topics = broker.broker.metrics.topics
    assert topics[TOPIC].bytes_out > 0
    assert UNKNOWN_ID not in topics


# --- Produce ---------------------------------------------------------------------------------------------


def test_records_for_a_topic_that_was_deleted_go_nowhere(
    start_broker: Callable[..., RunningBroker],
) -> None:
    broker = start_broker()
    with sparklog.open(broker.root) as log:
        log.create_topic("orders", 2)
        old = topic_uuid(log.image.topic("orders").topic_id)
        log.delete_topic("orders")
        log.create_topic("orders", 2)
        settled(log)
        new = topic_uuid(log.image.topic("orders").topic_id)
        broker.call(broker.broker.root.look())
        with ProducingClient(broker.host, broker.port) as client:
            client.send_produce(
                (old, 1, ONE), (new, 1, ONE), (new, 2, ONE), (uuid.UUID(int=0), 0, ONE), version=13
            )
            _, response = client.receive(0, 13)
        told = [
            (topic.topic_id, one.index, one.error_code.name, one.base_offset)
            for topic in response.responses
            for one in topic.partition_responses
        ]
        assert told == [
            (old, 1, "unknown_topic_id", -1),
            (new, 1, "none", 0),
            (new, 2, "unknown_topic_or_partition", -1),
            (None, 0, "unknown_topic_id", -1),
        ]
        log.refresh()
        assert [log.log_end_offset("orders", partition) for partition in range(2)] == [0, 2]
