"""Answers about all topics: made once an image."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader
from kio.static.constants import EntityType

from sparklog.metadata import Image, new_id, plan_create_topic
from sparklog_server.api import listings
from sparklog_server.api.listings import TopicListing
from sparklog_server.protocol.messages import message_codec
from sparklog_server.protocol.metadata_response import Led, after_topics, count_bytes, encode_topic, rows_led
from sparklog_server.protocol.responses import make
from tests.metadata.cluster_roots import applied, cluster, fenced, led


class Made:
    """What has been made since it was asked last: topics, by name, and how often partitions."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.topics: list[str | None] = []
        self.rows = 0

        def topic(version: int, *, name: str | None, **fields: object) -> list[bytes]:
            self.topics.append(name)
            return encode_topic(version, name=name, **fields)  # type: ignore[arg-type]

        def rows(version: int, first: int, partitions: Sequence[Led]) -> bytes:
            self.rows += 1
            return rows_led(version, first, partitions)

        patch.setattr(listings, "encode_topic", topic)
        patch.setattr(listings, "rows_led", rows)

    def taken(self) -> tuple[int, int]:
        counts = len(self.topics), self.rows
        self.topics, self.rows = [], 0
        return counts


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def told(listing: TopicListing, image: Image, version: int, operations: int = 0) -> list[bytes]:
    return asyncio.run(listing.of(image, version, operations))


def with_topics(image: Image, count: int, partitions: int) -> Image:
    return applied(
        image, *(plan_create_topic(image, f"t{n}", partitions, topic_id=new_id()) for n in range(count))
    )


def test_nothing_is_made_anew_while_nothing_has_changed(made: Made) -> None:
    """Another version, or a commit that only added records, had all of 150,000 partitions made anew."""
    image = with_topics(cluster(partitions=1), 4, 100)
    listing = TopicListing()
    first = told(listing, image, 12)
    assert made.taken() == (5, 4)  # of one partition they are made at once
    assert told(listing, image, 12) is first
    assert told(listing, image, 10) is first
    assert made.taken() == (0, 0)
    assert told(listing, image, 9) is not first  # without ids; partitions are alike
    assert made.taken() == (5, 0)
    assert told(listing, image, 12, operations=1) is not first
    made.taken()
    later = dataclasses.replace(image, commit=image.commit + 1)
    assert told(listing, later, 12) is first
    assert made.taken() == (0, 0)
    for version in range(14):
        told(listing, image, version)
    assert made.taken() == (5 * 5, 3 * 4)  # 0, 1, 5, 7 and 8 differ; of partitions 0, 5 and 7 do
    assert told(listing, fenced(image, 3), 12) is not first


def partitions_told(listing: TopicListing, image: Image, version: int = 12) -> list[tuple[Any, ...]]:
    """As a client reads them."""
    types = load_payload_module(3, version, EntityType.response)
    empty = make(types.MetadataResponse, brokers=(), cluster_id="c", controller_id=1, topics=())
    encoded = b"".join(message_codec(3, version).write(empty))
    after = len(encoded) - after_topics(version)
    array = b"".join(told(listing, image, version))
    body = encoded[: after - count_bytes(version)] + array + encoded[after:]
    response, _ = entity_reader(types.MetadataResponse)(memoryview(body), 0)
    return [
        (one.leader_id, one.leader_epoch, one.replica_nodes, one.isr_nodes, one.offline_replicas)
        for topic in response.topics
        for one in topic.partitions
    ]


def test_leaders_and_fenced_brokers_are_those_of_the_image() -> None:
    listing = TopicListing()
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


def test_what_is_kept_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    image = with_topics(cluster(partitions=1), 3, 100)
    monkeypatch.setattr(listings, "MAX_PARTITION_BYTES", 4_000)
    monkeypatch.setattr(listings, "MAX_ANSWERS_BYTES", 30_000)
    listing = TopicListing()
    for version in (0, 1, 5, 7, 8, 9, 10):
        told(listing, image, version)
    assert 1 < len(listing.as_of(image)) < 7
    monkeypatch.setattr(listings, "MAX_ANSWERS_BYTES", 0)
    for version in (0, 1, 5, 7):
        told(listing, image, version)
    assert len(listing.as_of(image)) == 1
    made.taken()
    told(listing, image, 1)
    assert made.taken() == (4, 2)  # of the topics with many partitions two are kept


def test_others_have_turns_and_who_asks_meanwhile_waits(made: Made) -> None:
    """Of 150,000 partitions the event loop stood still for 300 ms."""
    image = with_topics(cluster(partitions=1), 1, 10_000)
    listing = TopicListing()
    turns = 0

    async def main() -> list[list[bytes]]:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        answers = await asyncio.gather(*(listing.of(image, 12, 0) for _ in range(5)))
        beside.cancel()
        return answers

    first, *others = asyncio.run(main())
    assert all(one is first for one in others)
    assert made.taken()[0] == 2
    assert turns > 2
