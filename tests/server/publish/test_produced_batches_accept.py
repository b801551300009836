"""The one compiled call that accepts a usual batch, against the walk that knows all kinds.

Wherever it finds a batch right, they do, and what is stored is the same; it may leave any batch to them, but
not one of those that clients send all the time.
"""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import SparklogError
from sparklog.format.codec import XERIAL_HEADER, Codec, compress, decompress_at_once
from sparklog.format.encode import EncodedBatches
from sparklog.format.kernels import PlainBatch
from sparklog.format.record_batch import HEADER
from sparklog_server.publish.backlog import checked
from sparklog_server.publish.parts import AppendPart, RefusedBatchError
from sparklog_server.publish.produced_batches import (
    PLAIN_BYTES,
    SECONDS,
    BatchRules,
    CheckTerms,
    Scratch,
    UncheckedPart,
    accept,
    check_produced,
)
from tests.server.publish.batches import NOW_MS, batch, rules, with_header
from tests.server.publish.test_parts_checks import part_of

CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2)
HEADER_VALUES = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 7, 8, 2**15, 2**31 - 1])
FIELDS = st.dictionaries(
    st.sampled_from(
        ["base_offset", "partition_leader_epoch", "last_offset_delta", "record_count", "base_sequence"]
    ),
    HEADER_VALUES,
    max_size=2,
)
TIMES = st.sampled_from([-(2**63), -1, 0, NOW_MS, NOW_MS + 5, 2**62, 2**62 + 1, 2**63 - 1])


@pytest.fixture(autouse=True, scope="module")
def no_time_passes() -> Iterator[None]:
    """But in the test that is about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparklog_server.publish.produced_batches.thread_time", lambda: 0.0)
        yield


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


def at_once(
    data: bytes,
    allowed: BatchRules,
    *,
    api_version: int = 9,
    max_plain_bytes: int = 1 << 20,
    in_transaction: bool = False,
) -> tuple[EncodedBatches, PlainBatch] | None:
    return accept(
        data,
        allowed,
        NOW_MS,
        api_version=api_version,
        max_plain_bytes=max_plain_bytes,
        scratch=Scratch(),
        in_transaction=in_transaction,
    )


def assert_agrees(data: bytes, allowed: BatchRules, *, in_transaction: bool = False) -> bool:
    """True: the one call found it right."""
    found = at_once(data, allowed, in_transaction=in_transaction)
    if found is None:
        return False
    encoded, header, appended_ms = check_produced(
        data, allowed, where="t-0", now_ms=NOW_MS, api_version=9, in_transaction=in_transaction
    )
    assert contents(found[0]) == contents(encoded)
    said = found[1]
    assert (said.producer_id, said.producer_epoch, said.base_sequence) == (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    assert appended_ms == (NOW_MS if allowed.log_append_time else -1)
    return True


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Right ones and others, of all codecs, with a CRC that fits."""
    values = draw(st.lists(st.none() | st.binary(max_size=200), min_size=1, max_size=30))
    times = draw(st.lists(TIMES, min_size=len(values), max_size=len(values)))
    keys = [b"k"] * len(values) if draw(st.booleans()) else None
    codec = draw(st.sampled_from(Codec))
    usual = [time if abs(time) < 2**62 else NOW_MS for time in times]
    data = batch(values, keys=keys, timestamps=usual)
    plain = bytearray(data[HEADER.size :])
    for at, byte in draw(CHANGES):
        plain[at % len(plain)] = byte
    packed = bytearray(compress(codec, bytes(plain)))
    for at, byte in draw(CHANGES if codec else st.just([])):
        packed[at % len(packed)] = byte
    if codec and draw(st.integers(0, 9)) == 0:
        packed += draw(st.sampled_from([bytes(packed), bytes(compress(codec, b"")), b"\0"]))
    attributes = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 5, 8, 0x10, 0x20, 0x40, 0x100, -0x8000]))
    producer = draw(
        st.sampled_from([(-1, -1, -1), (7, 0, 0), (7, 3, 2**31 - 1), (7, -1, 0), (-1, 0, 0), (-2, -1, -1)])
    )
    return with_header(
        data[: HEADER.size] + packed,
        **{
            "attributes": attributes | codec,
            **dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True)),
            **({"first_timestamp_ms": times[0]} if times[0] % 2 else {}),
            **draw(FIELDS),
        },
    )


OPTIONS = st.sampled_from(
    [
        {},
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "10"},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "lz4"},
        {"max_message_bytes": "300"},
    ]
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(data=batches(), options=OPTIONS, in_transaction=st.booleans())
def test_what_it_finds_right_is_right(data: bytes, options: dict[str, str], in_transaction: bool) -> None:
    assert_agrees(data, rules(**options), in_transaction=in_transaction)


def outcome_of(check: Callable[[], Any]) -> Any:
    """What comes of it, so that two can be compared."""
    try:
        found = check()
    except SparklogError as error:
        found = error
    if isinstance(found, RefusedBatchError):
        return found.code, found.kafka_code, found.message, found.record_errors
    assert not isinstance(found, Exception), found
    return found


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    data=batches(),
    options=OPTIONS,
    api_version=st.sampled_from([3, 9]),
    max_plain=st.sampled_from([100, 1000, 1 << 20]),
    cut=st.sampled_from([0, 0, 0, 1, 30, 80]),
)
def test_the_verdict_is_that_of_the_steps(
    data: bytes, options: dict[str, str], api_version: int, max_plain: int, cut: int
) -> None:
    """And the words of an error, whoever finds it."""
    data, allowed = data[: len(data) - cut], rules(max_plain, **options)
    terms = CheckTerms(rules=allowed, topic_id="i", topic="t", now_ms=lambda: NOW_MS, api_version=api_version)
    part = UncheckedPart.of(data, terms, 0, 1)

    def steps() -> Any:
        encoded, header, appended_ms = check_produced(
            data, allowed, where="t-0", now_ms=NOW_MS, api_version=api_version
        )
        known = header.producer_id > -1
        producer = (header.producer_id, header.producer_epoch, header.base_sequence)
        return contents(encoded), producer if known else (-1, -1, -1), appended_ms

    def together() -> Any:
        found = checked(part, Scratch())
        if isinstance(found, Exception):
            raise found
        producer = (found.producer_id, found.producer_epoch, found.base_sequence)
        return contents(found.encoded), producer, found.log_append_time_ms

    assert outcome_of(together) == outcome_of(steps)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_what_clients_compress_is_found_right(codec: Codec) -> None:
    chance = random.Random(5)
    for count in (1, 2, 7, 300):
        values = [chance.randbytes(30).hex().encode() * chance.randrange(1, 6) for _ in range(count)]
        data = batch(values, codec=codec, producer_id=9, producer_epoch=0, base_sequence=4)
        assert assert_agrees(data, rules())
        assert assert_agrees(data, rules(compression_type=codec.label))
        assert at_once(data, rules(compression_type="uncompressed")) is None


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_bomb_finds_no_more_room_than_others(codec: Codec) -> None:
    data = batch([bytes(20 << 20)], codec=codec)
    room = Scratch()
    tracemalloc.start()
    try:
        found = accept(
            data,
            rules(128 << 20, max_message_bytes=str(32 << 20)),
            NOW_MS,
            api_version=9,
            max_plain_bytes=128 << 20,
            scratch=room,
        )
        assert found is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_the_limit_is_the_steps_limit(codec: Codec) -> None:
    data = batch([b"v" * 5000, b"w"], codec=codec)
    size = len(batch([b"v" * 5000, b"w"])) - HEADER.size
    assert at_once(data, rules(size)) is not None
    assert at_once(data, rules(size - 1)) is None
    assert at_once(data, rules(), max_plain_bytes=size) is not None
    assert at_once(data, rules(), max_plain_bytes=size - 1) is None
    check_produced(data, rules(size), where="t-0", now_ms=NOW_MS, api_version=9)
    with pytest.raises(SparklogError, match="bytes uncompressed"):
        check_produced(data, rules(size - 1), where="t-0", now_ms=NOW_MS, api_version=9)


def test_what_may_be_done_at_once_is_bounded_in_all() -> None:
    """However many batches a request has."""
    scratch = Scratch()
    half = part_of(batch([b"h" * (PLAIN_BYTES // 2 - 100)], codec=Codec.LZ4))
    tiny = part_of(batch([b"t" * 300], codec=Codec.LZ4))
    assert half.accept(scratch) is not None
    assert half.accept(scratch) is not None
    assert half.accept(scratch) is None
    assert tiny.accept(scratch) is None, "nothing more after one that found no room"
    scratch.begin()
    assert tiny.accept(scratch) is not None


def test_what_may_be_done_at_once_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    used = 0.0
    monkeypatch.setattr("sparklog_server.publish.produced_batches.thread_time", lambda: used)
    scratch = Scratch()
    tiny = part_of(batch([b"t" * 300], codec=Codec.LZ4))
    used = SECONDS
    assert tiny.accept(scratch) is not None
    used = SECONDS * 1.01
    assert tiny.accept(scratch) is None


def test_zstd_is_refused_to_those_that_cannot_know_it() -> None:
    data = batch([bytes(500)], codec=Codec.ZSTD)
    assert at_once(data, rules(), api_version=7) is not None
    assert at_once(data, rules(), api_version=6) is None


def test_many_tiny_blocks_of_snappy_are_not_looked_at() -> None:
    """Each takes 3 us, however small it is."""
    blocks = b"".join(bytes([0, 0, 0, 3, 1, 0, 97]) for _ in range(17))
    output = np.empty(100, np.uint8)
    assert decompress_at_once(Codec.SNAPPY, XERIAL_HEADER + blocks[7:], output) == 16
    assert decompress_at_once(Codec.SNAPPY, XERIAL_HEADER + blocks, output) == -1


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
        assert assert_agrees(
            batch(values, producer_id=9, producer_epoch=0, base_sequence=4, is_transactional=True),
            rules(),
            in_transaction=True,
        )
    assert assert_agrees(batch(), rules(message_timestamp_type="LogAppendTime"))
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
        (batch([bytes(500)], codec=Codec.LZ4), rules(compression_type="zstd")),
        (batch(), rules(max_message_bytes="70")),
        (batch([bytes(2000)]), rules(1024)),  # max.decompressed.message.bytes, which readers have, too
        (batch(), rules(cleanup_policy="compact")),
        (batch(), rules(compression_type="zstd")),
        (batch(timestamps=[NOW_MS, NOW_MS + 7_200_000]), rules(message_timestamp_after_max_ms="3600000")),
        (batch(timestamps=[NOW_MS, NOW_MS - 7_200_000]), rules(message_timestamp_before_max_ms="3600000")),
        (with_header(batch(), max_timestamp_ms=NOW_MS + 1), rules()),
        (with_header(batch(), producer_id=5, producer_epoch=-1, base_sequence=0), rules()),
        (with_header(batch(), attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0), rules()),
    ],
)
def test_everything_else_is_left_to_the_steps(data: bytes, allowed: BatchRules) -> None:
    assert at_once(data, allowed) is None


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
