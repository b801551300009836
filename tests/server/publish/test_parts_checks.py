"""What the bytes of a produced batch can make the broker do: decompress, look at records, keep memory."""

import gc
import threading
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from sparklog.errors import SparklogError
from sparklog.format.codec import Codec
from sparklog.format.record_batch import HEADER, LENGTH_END, parse_header
from sparklog_server.publish.backlog import checked
from sparklog_server.publish.parts import AppendPart, InTransaction, RefusedBatchError
from sparklog_server.publish.produced_batches import (
    MAX_GRANTED_BYTES,
    MAX_RATIO,
    CheckMemory,
    CheckTerms,
    Scratch,
    UncheckedPart,
)
from tests.server.publish.asking import ProducingClient
from tests.server.publish.batches import NOW_MS, FakePart, batch, rules, with_header
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker

MIB = 1 << 20


def part_of(
    data: bytes,
    *,
    parts: int = 1,
    memory: CheckMemory | None = None,
    leader_epoch: int = 0,
    transaction: InTransaction | None = None,
    **configs: str,
) -> UncheckedPart:
    terms = CheckTerms(
        rules=rules(128 * MIB, **configs),
        topic_id="i",
        topic="t",
        now_ms=lambda: NOW_MS,
        api_version=9,
        parts=parts,
        memory=memory,
        transaction=transaction,
        client="10.0.0.1",
    )
    return UncheckedPart.of(data, terms, 0, leader_epoch)


def bomb(size: int, *, count: int = 2) -> bytes:
    """Zeros as zstd has them: some thousand times smaller."""
    body = bytes(cramjam.zstd.compress(bytes(size), level=19))
    return with_header(
        batch()[: HEADER.size] + body,
        batch_length=HEADER.size - LENGTH_END + len(body),
        record_count=count,
        last_offset_delta=count - 1,
        attributes=int(Codec.ZSTD),
    )


def test_a_batch_decompresses_to_a_multiple_of_its_size_only() -> None:
    data = bomb(100 * MIB)
    memory = CheckMemory(64 * MIB)
    with pytest.raises(RefusedBatchError, match="bytes uncompressed") as caught:
        part_of(data, memory=memory).check()
    assert caught.value.kafka_code is ErrorCode.message_too_large
    assert memory.most_bytes <= MAX_RATIO * len(data) + 100
    assert memory.used_bytes == 0


def test_what_may_be_sent_uncompressed_may_be_sent_compressed() -> None:
    """However well it compresses."""
    zeros = batch([bytes(1_000_000)], codec=Codec.ZSTD)
    assert len(zeros) * MAX_RATIO < 1_000_000
    assert part_of(zeros).check().encoded.record_count == 1
    large = batch([bytes(3_000_000)], codec=Codec.ZSTD)
    with pytest.raises(RefusedBatchError, match="bytes uncompressed"):
        part_of(large).check()
    assert part_of(large, max_message_bytes="4000000").check().encoded.record_count == 1


def test_parts_of_a_request_share_what_each_may_become() -> None:
    zeros = batch([bytes(1_000_000)], codec=Codec.ZSTD)
    most = MAX_GRANTED_BYTES // MIB
    assert part_of(zeros, parts=most).check().encoded.record_count == 1
    with pytest.raises(RefusedBatchError, match="bytes uncompressed"):
        part_of(zeros, parts=2 * most).check()


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_part_keeps_the_leader_epoch_in_which_it_was_accepted(timestamp_type: str) -> None:
    """Both of those that are of the usual kind, and of those that take all steps."""
    part = part_of(batch(), leader_epoch=7, message_timestamp_type=timestamp_type)
    assert part.check().leader_epoch == 7
    accepted = part.accept(None)
    assert accepted is not None
    assert (accepted.leader_epoch, accepted.client) == (7, "10.0.0.1")


def kept(error: BaseException) -> list[object]:
    return [one for one in (error.__traceback__, error.__cause__, error.__context__) if one is not None]


@pytest.mark.parametrize("data", [bomb(5 * MIB), bomb(MIB), bomb(MIB)[:-3], batch()[:-1], b"", batch()[:40]])
def test_an_error_that_is_kept_holds_nothing(data: bytes) -> None:
    error = checked(part_of(data), Scratch())
    assert isinstance(error, RefusedBatchError)
    assert kept(error) == []


def test_a_panic_fails_one_part_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Compiled code that panics raises what is no Exception."""

    class PanicException(BaseException):
        pass

    def panic() -> AppendPart:
        raise PanicException("index out of bounds")

    good = part_of(batch())
    bad = FakePart.like(good.check(), panic)
    first, error, last = (checked(one, Scratch()) for one in (good, bad, good))
    assert isinstance(first, AppendPart)
    assert isinstance(last, AppendPart)
    assert isinstance(error, SparklogError)
    assert error.code == "INTERNAL"
    assert "PanicException: index out of bounds" in str(error)
    assert kept(error) == []
    assert "validating a batch of t-0 failed" in caplog.text


def test_refused_requests_leave_nothing_without_a_collector(running_broker: RunningBroker) -> None:
    """A cycle of an error and its frames holds the request, and what it became, until a full collection."""
    running_broker.broker.root.log.create_topic("t", 1)
    topics = [("t", 0, bomb(3 * MIB)), ("t", 0, bomb(MIB)), ("t", 0, batch()[:-1]), ("t", 7, batch())]
    with ProducingClient(running_broker.host, running_broker.port) as client:
        for topic in topics:
            client.produce(topic)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                for topic in topics:
                    client.produce(topic)
            # The last answer may arrive before those who have made it let go.
            until(lambda: not any(isinstance(one, RefusedBatchError) for one in gc.get_objects()))
        finally:
            gc.enable()


# --- memory that threads share ------------------------------------------------------------------------


def test_a_reservation_that_grows_gives_back_first() -> None:
    """Two that hold half each, and want more, would wait for each other forever."""
    memory = CheckMemory(100)
    begun, done = threading.Barrier(2), []

    def grow() -> None:
        with memory.reservation() as resize:
            resize(50)
            begun.wait(60)
            resize(100)
            done.append(1)

    threads = [threading.Thread(target=grow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 2
    assert (memory.used_bytes, memory.most_bytes) == (0, 100)


def test_what_is_larger_than_all_goes_alone() -> None:
    memory = CheckMemory(100)
    memory.take(30)
    granted = threading.Event()

    def take() -> None:
        memory.take(500)
        granted.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not granted.is_set()
    memory.give_back(30)
    assert granted.wait(60)
    memory.give_back(500)
    thread.join(60)
    assert (memory.used_bytes, memory.most_bytes) == (0, 500)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=6))
def test_reservations_stay_within_the_limit(steps: list[list[int]]) -> None:
    memory = CheckMemory(64)

    def run(sizes: list[int]) -> Callable[[], None]:
        def go() -> None:
            with memory.reservation() as resize:
                for size in sizes:
                    resize(size)

        return go

    threads = [threading.Thread(target=run(sizes)) for sizes in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert memory.used_bytes == 0
    assert memory.most_bytes <= 64


# --- transactions ------------------------------------------------------------------------------------------

MINE = InTransaction(transactional_id="mine")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.GZIP])
@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_a_batch_of_a_transaction_is_stored_as_it_came(codec: Codec, time_type: str) -> None:
    """Each way of checking has it say so to whoever publishes, and to consumers."""
    data = batch(codec=codec, producer_id=5, producer_epoch=1, base_sequence=7, is_transactional=True)
    part = part_of(data, transaction=MINE, message_timestamp_type=time_type)
    outcomes = [part.check(), checked(part, Scratch())]
    for found in outcomes:
        assert isinstance(found, AppendPart)
        assert found.transaction is MINE
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == (5, 1, 7)
        stored = parse_header(found.encoded.to_bytes(), 0, "stored")
        assert stored.is_transactional
        if time_type == "CreateTime":
            assert found.encoded.to_bytes()[16:] == data[16:]


def test_a_batch_that_names_no_transaction_is_of_none() -> None:
    """As in Kafka, whatever transactional id its request has."""
    plain = batch(producer_id=5, producer_epoch=1, base_sequence=7)
    assert part_of(plain, transaction=MINE).check().transaction is None


@pytest.mark.parametrize(
    ("data", "transaction", "code"),
    [
        (batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True), None, 53),
        (with_header(batch(), attributes=0x10), MINE, 87),  # nobody's
        (
            with_header(batch(), attributes=0x30, producer_id=5, producer_epoch=0, base_sequence=0),
            MINE,
            87,
        ),  # a marker
    ],
)
def test_batches_that_are_no_transactions(data: bytes, transaction: InTransaction | None, code: int) -> None:
    part = part_of(data, transaction=transaction)
    with pytest.raises(RefusedBatchError) as caught:
        part.check()
    assert caught.value.kafka_code is ErrorCode(code)
