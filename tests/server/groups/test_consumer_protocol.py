"""The embedded consumer protocol: as Kafka writes it, and nothing else."""

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog_server.groups.consumer_protocol import (
    ConsumerAssignment,
    ConsumerSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)

# Written by Kafka 4.4.0's ConsumerProtocol, of topic t with the owned partitions 0 and 1, and rack r.
SUBSCRIPTIONS = {
    0: "0000000000010001 74ffffffff",
    1: "0001000000010001 74ffffffff 00000001 0001 74 00000002 00000000 00000001",
    2: "0002000000010001 74ffffffff 00000001 0001 74 00000002 00000000 00000001 00000007",
    3: "0003000000010001 74ffffffff 00000001 0001 74 00000002 00000000 00000001 00000007 0001 72",
}
ASSIGNMENT = "0003 00000001 0001 74 00000002 00000000 00000002 ffffffff"


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_subscriptions_of_all_versions(version: int) -> None:
    data = bytes.fromhex(SUBSCRIPTIONS[version])
    assert version_of(data) == version
    assert decode_subscription(data) == ConsumerSubscription(
        topics=("t",),
        owned={"t": frozenset({0, 1})} if version else {},
        rack_id="r" if version == 3 else None,
    )
    for end in range(len(data)):
        assert decode_subscription(data[:end]) is None


def test_later_versions_are_read_as_the_last_known_one() -> None:
    data = bytes.fromhex(SUBSCRIPTIONS[3])
    assert decode_subscription(b"\0\x09" + data[2:] + b"more") == decode_subscription(data)
    assert version_of(b"\0\x09") == 3
    assert version_of(b"\xff\xff") is None


def test_assignments() -> None:
    data = bytes.fromhex(ASSIGNMENT)
    partitions = {"t": frozenset({0, 2})}
    assert encode_assignment(partitions, 3) == data
    assert decode_assignment(data) == ConsumerAssignment(partitions=partitions, user_data=b"")
    assert decode_assignment(b"") == ConsumerAssignment(partitions={}, user_data=b"")
    assert decode_assignment(b"\xff\xff") is None
    for end in range(1, len(data)):
        assert decode_assignment(data[:end]) is None
    of_own_assignor = decode_assignment(data[:-4] + b"\0\0\0\1x")
    assert of_own_assignor is not None
    assert of_own_assignor.user_data == b"x"


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    decode_subscription(data)
    decode_assignment(data)
    decode_subscription(b"\0\3" + data)
    decode_assignment(b"\0\1" + data)


def test_counts_beyond_the_data_are_refused() -> None:
    assert decode_subscription(bytes.fromhex("0000 7fffffff ffffffff")) is None
    assert decode_assignment(bytes.fromhex("0000 00000001 0001 74 7fffffff")) is None


def test_a_topic_that_is_named_often_takes_no_more_work_than_its_bytes() -> None:
    count = 60_000  # 660 KB; with a copy of what was found before for each name it took many seconds
    named = b"".join(b"\0\1t" + struct.pack(">ii", 1, number) for number in range(count))
    data = b"\0\1" + struct.pack(">iii", 0, -1, count) + named
    began = time.thread_time()
    said = decode_subscription(data)
    assert time.thread_time() - began < 3
    assert said is not None
    assert said.owned == {"t": frozenset(range(count))}
