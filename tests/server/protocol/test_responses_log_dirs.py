"""The hand-written response to DescribeLogDirs, against kio's, in every version."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.responses import FLEXIBLE_FROM, encode_log_dir, encode_log_dir_topic, make

MOST = (1 << 63) - 1
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, MOST)), max_size=20)
Topics = list[tuple[str, list[tuple[int, int]]]]
TOPICS = st.lists(st.tuples(st.text("abc.-_0", min_size=1, max_size=249), PARTITIONS), max_size=3)


def by_kio(version: int, log_dir: str, topics: Topics, space: tuple[int, int]) -> bytes:
    types = load_payload_module(35, version, EntityType.response)

    def partition(number: int, size: int) -> Any:
        return make(types.DescribeLogDirsPartition, partition_index=number, partition_size=size)

    result = make(
        types.DescribeLogDirsResult,
        log_dir=log_dir,
        topics=[
            make(types.DescribeLogDirsTopic, name=name, partitions=[partition(*one) for one in partitions])
            for name, partitions in topics
        ],
        total_bytes=space[0],
        usable_bytes=space[1],
    )
    body = io.BytesIO()
    entity_writer(types.DescribeLogDirsResponse)(body, make(types.DescribeLogDirsResponse, results=[result]))
    return body.getvalue()


def by_hand(version: int, log_dir: str, topics: Topics, space: tuple[int, int]) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    encoded = [
        encode_log_dir_topic(name, [one[0] for one in some], [one[1] for one in some], flexible=flexible)
        for name, some in topics
    ]
    return b"".join(encode_log_dir(version, log_dir, len(topics), b"".join(encoded), space))


@pytest.mark.parametrize("version", range(1, 5))
@given(log_dir=st.text(max_size=200), topics=TOPICS, space=st.tuples(st.integers(-1, MOST), st.just(-1)))
def test_the_bytes_are_those_of_kio(
    version: int, log_dir: str, topics: Topics, space: tuple[int, int]
) -> None:
    assert by_hand(version, log_dir, topics, space) == by_kio(version, log_dir, topics, space)


@pytest.mark.parametrize("count", [1, 100])
def test_what_is_more_than_can_be_said_is_told_as_the_most(count: int) -> None:
    """Sizes are what documents say."""
    numbers = list(range(count))
    told = encode_log_dir_topic("t", numbers, [MOST + 1] * count, flexible=True)
    assert told == encode_log_dir_topic("t", numbers, [MOST] * count, flexible=True)
