"""Answers about all topics: made once an image."""

import dataclasses
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader
from kio.static.constants import EntityType

import sparklog
from sparklog.metadata import Image
from sparklog_server.api import topic_listing
from sparklog_server.api.topic_listing import MAX_KEPT, TopicListing
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.messages import message_codec
from sparklog_server.protocol.metadata_response import after_topics, count_bytes, encode_topic
from tests.metadata.cluster_roots import cluster, fenced, led
from tests.support.running_broker import RunningBroker


def test_nothing_is_made_anew_while_nothing_has_changed(
    running_broker: RunningBroker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        log.create_topic(f"t{number}")
    image = log.image
    made: list[str | None] = []

    def counted(version: int, *, name: str | None, **fields: object) -> list[bytes]:
        made.append(name)
        return encode_topic(version, name=name, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(topic_listing, "encode_topic", counted)
    listing = TopicListing(1)
    first = listing.of(image, 12, 0)
    assert listing.of(image, 12, 0) is first
    assert len(made) == 5
    assert listing.of(image, 9, 0) is not first
    newer = dataclasses.replace(image, commit=image.commit + 1)
    assert listing.of(newer, 12, 0) is not first
    assert len(made) == 15
    for version in range(14):
        listing.of(newer, version, 0)
    assert len(listing) == MAX_KEPT


def partitions_told(listing: TopicListing, image: Image, version: int = 12) -> list[tuple[Any, ...]]:
    """As a client reads them."""
    types = load_payload_module(3, version, EntityType.response)
    empty = make(types.MetadataResponse, brokers=(), cluster_id="c", controller_id=1, topics=())
    encoded = b"".join(message_codec(3, version).write(empty))
    after = len(encoded) - after_topics(version)
    array = b"".join(listing.of(image, version, 0))
    body = encoded[: after - count_bytes(version)] + array + encoded[after:]
    response, _ = entity_reader(types.MetadataResponse)(memoryview(body), 0)
    return [
        (one.leader_id, one.leader_epoch, one.replica_nodes, one.isr_nodes, one.offline_replicas)
        for topic in response.topics
        for one in topic.partitions
    ]


def test_leaders_and_fenced_brokers_are_those_of_the_image() -> None:
    listing = TopicListing(1)
    everybody = (1, 2, 3)
    image = led(cluster(), [2, 3, 1])
    assert partitions_told(listing, image) == [
        (2, 1, everybody, (2, 1, 3), ()),
        (3, 1, everybody, (3, 1, 2), ()),
        (1, 1, everybody, (1, 2, 3), ()),
    ]
    # The leadership of the others is the same object as before, and what is told of it is not.
    image = fenced(image, 3)
    assert partitions_told(listing, image) == [
        (2, 1, everybody, (2, 1), (3,)),
        (-1, 2, everybody, (1, 2), (3,)),
        (1, 1, everybody, (1, 2), (3,)),
    ]
    image = led(image, {1: 2})
    assert partitions_told(listing, image)[1] == (2, 3, everybody, (2, 1), (3,))
