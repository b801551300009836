"""The hand-written response, against that made of entities, in every version."""

import hashlib
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from sparklog_server.protocol.messages import encode_response, message_codec
from sparklog_server.protocol.responses import ProducedPartition, encode_produce, make
from sparklog_server.protocol.wire import Chunk, FileRegion, Response

INT32 = st.integers(0, 2**31 - 1)
OFFSET = st.integers(-1, 2**63 - 1)
TIME_MS = st.sampled_from([-1, 0, 1_700_000_000_123])
ERROR = st.sampled_from([0, 2, 87])
MESSAGE = st.none() | st.text(max_size=300)
PARTITION = st.builds(ProducedPartition, INT32, OFFSET, TIME_MS, OFFSET, ERROR, MESSAGE)
NAME = st.text("abc.-_0", min_size=1, max_size=200)
TOPICS = st.dictionaries(NAME, st.lists(PARTITION, max_size=140), max_size=3)


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks if not isinstance(chunk, FileRegion))


def id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


@pytest.mark.parametrize("version", range(3, 14))
@settings(max_examples=30, deadline=None)
@given(topics=TOPICS)
def test_is_what_kio_writes(version: int, topics: dict[str, list[ProducedPartition]]) -> None:
    types = load_payload_module(0, version, EntityType.response)
    entity = make(
        types.ProduceResponse,
        responses=[
            make(
                types.TopicProduceResponse,
                **({"name": name} if version < 13 else {"topic_id": uuid.UUID(bytes=id_of(name))}),
                partition_responses=[
                    make(
                        types.PartitionProduceResponse,
                        index=one.partition,
                        error_code=one.error_code,
                        error_message=one.message,
                        base_offset=one.base_offset,
                        log_append_time=one.log_append_time_ms,
                        log_start_offset=one.log_start_offset,
                    )
                    for one in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
        throttle_time=0,
    )
    codec = message_codec(0, version)
    keyed = {name if version < 13 else id_of(name): parts for name, parts in topics.items()}
    ours = encode_response(codec, 7, Response(chunks=[encode_produce(version, keyed)]))
    theirs = encode_response(codec, 7, entity)
    assert joined(ours) == joined(theirs)
