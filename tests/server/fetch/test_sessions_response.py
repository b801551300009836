"""Fetch responses: byte for byte what kio writes, in every version."""

import dataclasses
import hashlib
import io
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_entity_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from sparklog_server.fetch.sessions import PartitionAnswer, encode_fetch_response
from sparklog_server.protocol.metadata_response import LeaderHint, Node
from sparklog_server.protocol.responses import make, topic_id_text
from sparklog_server.protocol.wire import Chunk, FileRegion

VERSIONS = range(4, 18)
ID_VERSIONS = range(13, 18)


def by_kio(
    version: int,
    answers: list[PartitionAnswer],
    error_code: int = 0,
    session_id: int = 0,
    nodes: Sequence[Node] = (),
) -> bytes:
    types: Any = load_entity_module("fetch", version, EntityType.response)
    topics: list[Any] = []
    for answer in answers:
        partition = make(
            types.PartitionData,
            partition_index=answer.partition,
            error_code=answer.error_code,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted_transactions=[] if answer.is_read_committed else None,
            preferred_read_replica=answer.preferred_read_replica,
            records=joined(answer.chunks),
            **leader_of(types, version, answer),
        )
        if topics and topics[-1][0] == answer.key[0]:
            topics[-1][1].append(partition)
        else:
            topics.append((answer.key[0], [partition]))
    told: dict[str, Any] = {}
    if version >= 16:
        told["node_endpoints"] = [make(types.NodeEndpoint, **node._asdict()) for node in nodes]
    response = make(
        types.FetchResponse,
        error_code=error_code,
        session_id=session_id,
        responses=[
            make(
                types.FetchableTopicResponse,
                partitions=partitions,
                **({"topic_id": topic} if version in ID_VERSIONS else {"topic": topic}),
            )
            for topic, partitions in topics
        ],
        **told,
    )
    buffer = io.BytesIO()
    entity_writer(types.FetchResponse)(buffer, response)
    return buffer.getvalue()


def leader_of(types: Any, version: int, answer: PartitionAnswer) -> dict[str, Any]:
    """Kafka's brokers leave it out in versions without endpoints, though it could be told since 12."""
    if version < 16 or answer.current_leader is None:
        return {}
    node_id, epoch = answer.current_leader
    return {"current_leader": make(types.LeaderIdAndEpoch, leader_id=node_id, leader_epoch=epoch)}


def joined(chunks: Any) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


def id_of(name: str) -> str:
    return topic_id_text(uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16]))


def answer(chunks: list[bytes], **fields: Any) -> PartitionAnswer:
    return PartitionAnswer(chunks=chunks, size=sum(map(len, chunks)), **fields)


offsets = st.integers(-1, 2**63 - 1)
numbers = st.integers(0, 2**31 - 1)
answers = st.builds(
    answer,
    chunks=st.lists(st.binary(max_size=200), max_size=3),
    topic=st.text(st.characters(codec="ascii", min_codepoint=45), min_size=1, max_size=249),
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 1, 3, 56, 74, 75]),
    high_watermark=offsets,
    last_stable_offset=offsets,
    log_start_offset=offsets,
    is_read_committed=st.booleans(),
    preferred_read_replica=numbers,
    current_leader=st.none() | st.builds(LeaderHint, numbers, numbers),
)
text = st.text(max_size=200)
nodes = st.lists(st.builds(Node, numbers, text, st.integers(0, 65_535), st.none() | text), max_size=3)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None)
@given(
    answers=st.lists(answers, max_size=5),
    error_code=st.sampled_from([0, 70, 71]),
    session_id=numbers,
    nodes=nodes,
)
def test_every_version_is_what_kio_writes(
    version: int, answers: list[PartitionAnswer], error_code: int, session_id: int, nodes: list[Node]
) -> None:
    if version in ID_VERSIONS:
        answers = [dataclasses.replace(one, topic_id=id_of(one.topic)) for one in answers]
    if version < 11:
        answers = [dataclasses.replace(one, preferred_read_replica=-1) for one in answers]
    answers = [part for part in answers for part in (part, part)]  # several partitions of a topic
    chunks = encode_fetch_response(
        version, answers, error_code=error_code, session_id=session_id, nodes=nodes
    )
    assert joined(chunks) == by_kio(version, answers, error_code, session_id, nodes)


@pytest.mark.parametrize("version", VERSIONS)
def test_many_topics_and_large_records(version: int) -> None:
    answers = [
        answer(
            [bytes(300)] if number % 2 else [],
            topic=f"topic-{number // 3:03d}" + "x" * 120,
            topic_id=id_of(str(number // 3)) if version in ID_VERSIONS else "",
            partition=number,
        )
        for number in range(600)
    ]
    assert joined(encode_fetch_response(version, answers)) == by_kio(version, answers)


@pytest.mark.parametrize("version", [4, 12])
def test_records_are_spliced_in_and_not_copied(version: int) -> None:
    records = memoryview(bytearray(b"records"))
    region = FileRegion(7, 100, 5000)
    answers = [
        PartitionAnswer(topic="t", partition=0, chunks=[records], size=7),
        PartitionAnswer(topic="t", partition=1, chunks=[region], size=5000),
    ]
    chunks: list[Chunk] = encode_fetch_response(version, answers)
    assert any(chunk is records for chunk in chunks)
    assert any(chunk is region for chunk in chunks)
