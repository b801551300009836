"""The hand-written response of DescribeProducers, against that made of entities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.messages import encode_response, message_codec
from sparklog_server.protocol.responses import (
    Producers,
    encode_partition,
    encode_producers,
    encode_topics,
    make,
)
from sparklog_server.protocol.wire import Chunk, FileRegion, Response

DESCRIBE_PRODUCERS = 61
INT32, INT64 = st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
PRODUCER = st.tuples(INT64, INT32, INT32, INT64)
PARTITION = st.tuples(
    st.integers(0, 2**31 - 1),
    st.sampled_from([ErrorCode.none, ErrorCode.unknown_server_error]),
    st.lists(PRODUCER, max_size=140),
)
TOPICS = st.dictionaries(
    st.text("abc.-_0", min_size=1, max_size=200), st.lists(PARTITION, max_size=140), max_size=3
)
Topics = dict[str, list[tuple[int, ErrorCode, list[tuple[int, int, int, int]]]]]


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks if not isinstance(chunk, FileRegion))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(topics=TOPICS)
def test_is_what_kio_writes(topics: Topics) -> None:
    types = load_payload_module(DESCRIBE_PRODUCERS, 0, EntityType.response)
    names = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp")
    entity = make(
        types.DescribeProducersResponse,
        topics=[
            make(
                types.TopicResponse,
                name=name,
                partitions=[
                    make(
                        types.PartitionResponse,
                        partition_index=number,
                        error_code=error,
                        error_message=None,
                        active_producers=[
                            make(
                                types.ProducerState,
                                **dict(zip(names, one, strict=True)),
                                coordinator_epoch=-1,
                                current_txn_start_offset=-1,
                            )
                            for one in producers
                        ],
                    )
                    for number, error, producers in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )
    body = encode_topics(
        {
            name: [encode_partition(number, error, _encoded(producers)) for number, error, producers in some]
            for name, some in topics.items()
        }
    )
    codec = message_codec(DESCRIBE_PRODUCERS, 0)
    assert joined(encode_response(codec, 7, Response(chunks=body))) == joined(
        encode_response(codec, 7, entity)
    )


def _encoded(producers: list[tuple[int, int, int, int]]) -> bytes:
    rows = np.array(producers, np.int64).reshape(len(producers), 4)
    return encode_producers(Producers(*rows.T))
