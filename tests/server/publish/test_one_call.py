"""The one call that validates a usual batch, against the three steps that know all kinds.

Wherever it finds a batch right, they do, and what is stored is the same; it may leave any batch to them, but
not one of those that clients send all the time.
"""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import SparklogError
from sparklog.format.codec import Codec
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.format.record_batch import HEADER
from sparklog_server.publish.parts import AppendPart
from sparklog_server.publish.produced_batches import BatchRules, check_produced, stored_at_once
from tests.server.publish.batches import NOW_MS, batch, rules, with_header
from tests.server.publish.test_part_checks import part_of

HEADER_VALUES = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 7, 8, 2**15, 2**31 - 1])
FIELDS = st.dictionaries(
    st.sampled_from(
        ["base_offset", "partition_leader_epoch", "last_offset_delta", "record_count", "base_sequence"]
    ),
    HEADER_VALUES,
    max_size=2,
)
TIMES = st.sampled_from([-(2**63), -1, 0, NOW_MS, NOW_MS + 5, 2**62, 2**62 + 1, 2**63 - 1])


def contents(encoded: EncodedBatches) -> dict[str, Any]:
    numbers = {
        name: getattr(encoded, name).tolist()
        for name in ("position", "size", "base_offset", "batch_record_count", "batch_max_timestamp_ms")
    }
    return {
        "bytes": encoded.to_bytes(),
        "size": encoded.size_bytes,
        "count": encoded.record_count,
        "max": encoded.max_timestamp_ms,
        **numbers,
    }


def assert_agrees(data: bytes, allowed: BatchRules) -> bool:
    """True: the one call found it right."""
    found = stored_at_once(memoryview(data), allowed, NOW_MS)
    if found is None:
        return False
    encoded, header, appended_ms = check_produced(data, allowed, where="t-0", now_ms=NOW_MS, api_version=9)
    assert contents(found[0]) == contents(encoded)
    said = found[1]
    assert (said.producer_id, said.producer_epoch, said.base_sequence) == (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    assert appended_ms == -1
    return True


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.none() | st.binary(max_size=200), min_size=1, max_size=30),
    has_keys=st.booleans(),
    times=st.lists(TIMES, min_size=30, max_size=30),
    producer=st.sampled_from(
        [(-1, -1, -1), (7, 0, 0), (7, 3, 2**31 - 1), (7, -1, 0), (-1, 0, 0), (-2, -1, -1)]
    ),
    fields=FIELDS,
    attributes=st.sampled_from([0, 0, 0, 1, 5, 8, 0x10, 0x20, 0x40, 0x100, -0x8000]),
    changed=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    options=st.sampled_from(
        [
            {},
            {"cleanup_policy": "compact"},
            {"message_timestamp_before_max_ms": "10"},
            {"compression_type": "lz4"},
        ]
    ),
)
def test_what_it_finds_right_is_right(
    values: list[bytes | None],
    has_keys: bool,
    times: list[int],
    producer: tuple[int, int, int],
    fields: dict[str, int],
    attributes: int,
    changed: list[tuple[int, int]],
    options: dict[str, str],
) -> None:
    usual = [time if abs(time) < 2**62 else NOW_MS for time in times[: len(values)]]
    data = bytearray(batch(values, keys=[b"k"] * len(values) if has_keys else None, timestamps=usual))
    for at, byte in changed:
        where = HEADER.size + at % (len(data) - HEADER.size)
        data[where] = byte
    extreme = {"first_timestamp_ms": times[0]} if times[0] % 2 else {}
    numbers = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    assert_agrees(
        with_header(bytes(data), attributes=attributes, **{**numbers, **extreme, **fields}), rules(**options)
    )


def test_what_clients_send_all_the_time_is_found_right() -> None:
    chance = random.Random(5)
    for count in (1, 2, 7, 500):
        values = [chance.randbytes(chance.randrange(300)) for _ in range(count)]
        times = [NOW_MS - chance.randrange(1000) for _ in range(count)]
        assert assert_agrees(batch(values, timestamps=times), rules())
        assert assert_agrees(
            batch(values, keys=values, timestamps=times, producer_id=9, producer_epoch=0, base_sequence=4),
            rules(cleanup_policy="compact"),
        )
    part = part_of(batch()).check()
    assert isinstance(part, AppendPart)
    assert part.encoded.record_count == 2


@pytest.mark.parametrize(
    ("data", "allowed"),
    [
        (batch()[:-1], rules()),
        (batch() + b"x", rules()),
        (batch()[: HEADER.size], rules()),
        (b"", rules()),
        (batch()[:17] + bytes([batch()[17] ^ 1]) + batch()[18:], rules()),  # the CRC
        (batch([bytes(500)], codec=Codec.LZ4), rules()),
        (batch(), rules(max_message_bytes="70")),
        (batch([bytes(2000)]), rules(1024)),  # max.decompressed.message.bytes, which readers have, too
        (batch(), rules(cleanup_policy="compact")),
        (batch(), rules(message_timestamp_type="LogAppendTime")),
        (batch(), rules(compression_type="zstd")),
        (batch(timestamps=[NOW_MS, NOW_MS + 7_200_000]), rules(message_timestamp_after_max_ms="3600000")),
        (batch(timestamps=[NOW_MS, NOW_MS - 7_200_000]), rules(message_timestamp_before_max_ms="3600000")),
        (with_header(batch(), max_timestamp_ms=NOW_MS + 1), rules()),
        (with_header(batch(), producer_id=5, producer_epoch=-1, base_sequence=0), rules()),
        (with_header(batch(), attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0), rules()),
    ],
)
def test_everything_else_is_left_to_the_steps(data: bytes, allowed: BatchRules) -> None:
    assert stored_at_once(memoryview(data), allowed, NOW_MS) is None


def test_errors_are_those_of_the_steps() -> None:
    data = bytearray(batch())
    data[-3] ^= 0x40
    with pytest.raises(SparklogError, match="CRC-32C"):
        part_of(bytes(data)).check()
    broken = bytearray(batch())
    broken[HEADER.size + 1] = 3  # the first record's attributes
    with pytest.raises(SparklogError, match="attributes 3"):
        part_of(with_header(bytes(broken))).check()


def test_the_numbers_that_batches_share_cannot_be_written() -> None:
    encoded = part_of(batch()).check().encoded
    assert not encoded.position.flags.writeable
    assert not encoded.base_offset.flags.writeable
    assert np.array_equal(encoded.position, [0])
