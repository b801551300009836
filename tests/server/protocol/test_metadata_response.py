"""The hand-written topics of Metadata, against kio's, in every version."""

import io
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.metadata_response import (
    Led,
    Replicas,
    after_topics,
    count_bytes,
    encode_topic,
    encode_topics,
    partition_bytes,
    partitions_led,
    partitions_like,
    rows_led,
    topics_like,
)
from sparklog_server.protocol.responses import make

NODE = st.integers(-1, 2**31 - 1)
NODES = st.lists(NODE, max_size=3).map(tuple)
REPLICAS = st.builds(Replicas, NODES, NODES, NODES)
LED = st.builds(Led, st.sampled_from([0, 5]), NODE, st.integers(0, 2**31 - 1), REPLICAS)


def repeated(led: Led, count: int) -> list[Led]:
    return [led] * count


TOPIC = st.fixed_dictionaries(
    {
        "name": st.text("abc.-_0", min_size=1, max_size=200),
        "topic_id": st.uuids(),
        "error_code": st.sampled_from([0, 3, 100]),
        "is_internal": st.booleans(),
        "led": st.lists(LED, max_size=3) | st.builds(repeated, LED, st.sampled_from([1, 2, 130])),
        "operations": st.integers(-(2**31), 2**31 - 1),
    }
)


def by_kio(version: int, topics: list[dict[str, Any]]) -> bytes:
    types = load_payload_module(3, version, EntityType.response)

    def partitions(topic: dict[str, Any]) -> list[Any]:
        return [
            make(
                types.MetadataResponsePartition,
                error_code=one.error_code,
                partition_index=number,
                leader_id=one.node_id,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replicas.replicas,
                isr_nodes=one.replicas.in_sync,
                offline_replicas=one.replicas.offline,
            )
            for number, one in enumerate(topic["led"])
        ]

    entity = make(
        types.MetadataResponse,
        brokers=[make(types.MetadataResponseBroker, node_id=1, host="h", port=9)],
        cluster_id="c",
        controller_id=1,
        cluster_authorized_operations=77,
        error_code=0,
        topics=[
            make(
                types.MetadataResponseTopic,
                error_code=topic["error_code"],
                name=topic["name"],
                topic_id=topic["topic_id"],
                is_internal=topic["is_internal"],
                topic_authorized_operations=topic["operations"],
                partitions=partitions(topic),
            )
            for topic in topics
        ],
    )
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def by_hand(version: int, topic: dict[str, Any]) -> list[bytes]:
    fields = dict(topic)
    led = fields.pop("led")
    return encode_topic(version, partitions=partitions_led(version, led), **fields)


@pytest.mark.parametrize("version", range(14))
@settings(max_examples=12, deadline=None)
@given(topics=st.lists(TOPIC, max_size=4))
def test_is_what_kio_writes(version: int, topics: list[dict[str, Any]]) -> None:
    empty = by_kio(version, [])
    after = len(empty) - after_topics(version)
    ours = b"".join(encode_topics([by_hand(version, topic) for topic in topics], version))
    whole = empty[: after - count_bytes(version)] + ours + empty[after:]
    assert whole == by_kio(version, topics)


def test_a_topic_without_a_name() -> None:
    topic_id = uuid.UUID(int=7)
    (array,) = encode_topics([encode_topic(12, name=None, topic_id=topic_id, error_code=100)], 12)
    assert array == b"\x02\x00\x64\x00" + topic_id.bytes + b"\x00\x01" + bytes(4) + b"\x00"


@pytest.mark.parametrize("version", range(14))
def test_what_a_partition_takes_is_known_before(version: int) -> None:
    led = Led(0, 1, 1, Replicas((1, 2, 3), (1, 2), (3,)))
    two, three = (len(partitions_led(version, repeated(led, count))) for count in (2, 3))
    assert partition_bytes(version, led.replicas) == three - two


MANY = st.lists(LED, min_size=1, max_size=3).flatmap(
    lambda some: st.lists(st.sampled_from(some), min_size=12, max_size=40)
)


@pytest.mark.parametrize("version", [0, 5, 7, 9])
@settings(max_examples=30, deadline=None)
@given(partitions=MANY, first=st.integers(0, 2**31 - 41))
def test_partitions_that_are_led_like_others_are_as_if_each_was_made(
    version: int, partitions: list[Led], first: int
) -> None:
    each = [rows_led(version, first + number, [one]) for number, one in enumerate(partitions)]
    assert rows_led(version, first, partitions) == b"".join(each)


@pytest.mark.parametrize("version", range(14))
def test_versions_that_are_alike_have_the_same_bytes(version: int) -> None:
    led = [Led(0, 1, 1, Replicas((1, 2, 3), (1, 2), (3,)))]
    like = partitions_like(version)
    assert partitions_led(version, led) == partitions_led(like, led)
    assert like == 0 or partitions_led(like - 1, led) != partitions_led(like, led)

    def topic(version: int) -> list[bytes]:
        fields = {"name": "t", "topic_id": uuid.UUID(int=7), "partitions": partitions_led(version, led)}
        return encode_topics([encode_topic(version, is_internal=True, **fields)], version)  # type: ignore[arg-type]

    like = topics_like(version)
    assert topic(version) == topic(like)
    assert like == 0 or topic(like - 1) != topic(like)
