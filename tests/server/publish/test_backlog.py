"""What waits to be published: counted as large as it has become, and kept from becoming too large."""

import asyncio
import contextlib
import threading

import pytest

from sparklog.client import SparkLog
from sparklog.errors import RetriableError
from sparklog.format.codec import Codec
from sparklog.storage import MemoryStore
from sparklog_server.publish.backlog import PART_BYTES, REQUESTS_AT_LEAST, Backlog, Checkers, Submission
from sparklog_server.publish.parts import AppendPart, SentAwayError
from sparklog_server.publish.produced_batches import CheckTerms, UncheckedPart
from tests.server.publish.batches import NOW_MS, FakePart, batch, rules
from tests.server.publish.surroundings import Surroundings
from tests.server.publish.test_parts_checks import part_of
from tests.server.publish.test_publisher import Gate, orders, run

ZEROS = batch([bytes(100_000)], codec=Codec.ZSTD)
PLAIN_BYTES = 100_000


class WatchedBacklog(Backlog):
    """Tells when somebody wants room."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.wanted = threading.Event()

    def wait_for_room(self) -> None:
        self.wanted.set()
        super().wait_for_room()


def growing(data: bytes = ZEROS, codec: str = "uncompressed") -> UncheckedPart:
    return part_of(data, compression_type=codec)


def submission_of(*parts: UncheckedPart) -> Submission:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return Submission(list(parts), loop.create_future(), sum(part.size_bytes for part in parts))


def validate(backlog: Backlog, submission: Submission) -> None:
    checkers = Checkers(lambda: None, backlog)
    checkers.submit(submission)
    checkers.start()
    checkers.finish()
    checkers.join()
    assert submission.unchecked == 0


def test_a_part_counts_as_it_is_stored() -> None:
    backlog = Backlog(1 << 30)
    submission = submission_of(*[growing()] * 3)
    backlog.add(submission)
    assert backlog.used_bytes == 3 * (len(ZEROS) + PART_BYTES)
    validate(backlog, submission)
    stored = sum(part.size_bytes for part in submission.parts)
    assert stored > 3 * PLAIN_BYTES
    assert submission.size_bytes == stored
    assert backlog.used_bytes == stored + 3 * PART_BYTES
    backlog.remove(submission)
    assert (backlog.used_bytes, backlog.submissions) == (0, 0)


def test_what_shrinks_counts_less() -> None:
    backlog = Backlog(1 << 30)
    submission = submission_of(growing(batch([bytes(PLAIN_BYTES)]), "zstd"))
    backlog.add(submission)
    validate(backlog, submission)
    assert backlog.used_bytes < PART_BYTES + 1000


def test_what_is_given_up_before_it_is_validated_counts_no_more() -> None:
    backlog = Backlog(1 << 30)
    submission = submission_of(growing())
    backlog.add(submission)
    backlog.remove(submission)
    validate(backlog, submission)
    assert backlog.used_bytes == 0


def test_what_may_grow_is_begun_when_there_is_room() -> None:
    backlog = WatchedBacklog(1 << 20)
    before = submission_of(part_of(batch([bytes(1 << 20)])))
    submission = submission_of(growing())
    for one in (before, submission):
        backlog.add(one)
    checkers = Checkers(lambda: None, backlog)
    checkers.submit(submission)
    checkers.start()
    assert backlog.wanted.wait(20)
    assert submission.unchecked == 1
    backlog.remove(before)
    checkers.finish()
    checkers.join()
    assert isinstance(submission.parts[0], AppendPart)


def test_nobody_waits_for_a_publisher_that_has_nothing_to_do() -> None:
    """What takes the room may be behind what waits for it, in its partition."""
    backlog = Backlog(1 << 20)
    backlog.add(submission_of(part_of(batch([bytes(1 << 20)]))))
    submission = submission_of(growing())
    backlog.add(submission)
    with backlog.idle():
        validate(backlog, submission)
    assert isinstance(submission.parts[0], AppendPart)


def test_one_request_becomes_no_more_than_its_share() -> None:
    """The rest comes again, and most of it is not even made."""
    backlog = Backlog(REQUESTS_AT_LEAST * 5 * PLAIN_BYTES)
    made: list[int] = []

    def counted(number: int) -> UncheckedPart:
        part = growing()

        def check() -> AppendPart:
            made.append(number)
            return part.check()

        fake = FakePart.like(part.check(), check, part.size_bytes)
        fake.may_grow = True
        return fake

    submission = submission_of(*map(counted, range(500)))
    backlog.add(submission)
    validate(backlog, submission)
    refused = list(submission.errors.values())
    assert len(refused) == 500 - 4
    assert {type(one) for one in refused} == {RetriableError}
    assert "PUBLISH_BACKLOG_FULL" in str(refused[0])
    assert backlog.used_bytes <= 5 * PLAIN_BYTES + 500 * PART_BYTES
    assert len(made) <= 4 * 16 + 16  # what the checkers had begun


def test_what_was_refused_for_its_request_gets_on_when_it_comes_again() -> None:
    backlog = Backlog(1024)
    submission = submission_of(growing(), growing())
    for _ in range(2):
        backlog.add(submission)
        with backlog.idle():
            validate(backlog, submission)
        backlog.remove(submission)
        assert len(submission.errors) == len(submission.parts) - 1
        submission = submission_of(*[growing() for _ in submission.errors])
    assert submission.parts == []


def test_what_comes_again_for_lack_of_room_keeps_its_place(log: SparkLog) -> None:
    """A producer's first batch, while its second one was on its way, in a request that has room."""
    log.alter_topic("orders", {"compression.type": "uncompressed"})
    terms = CheckTerms(
        rules=rules(compression_type="uncompressed"),
        topic_id=log.image.topic("orders").topic_id,
        topic="orders",
        now_ms=lambda: NOW_MS,
        api_version=9,
    )

    def zeros(partition: int, sequence: int) -> UncheckedPart:
        data = batch(
            [bytes(PLAIN_BYTES)], codec=Codec.ZSTD, producer_id=5, producer_epoch=0, base_sequence=sequence
        )
        part = UncheckedPart.of(data, terms, partition, 1)
        assert part.may_grow
        return part

    async def scenario(broker: Surroundings) -> None:
        submit = broker.publisher.submit
        (one, refused), (behind,) = await asyncio.gather(
            submit([zeros(1, 0), zeros(0, 0)]), submit([zeros(0, 1)])
        )
        assert one.error is None
        assert "PUBLISH_BACKLOG_FULL" in str(refused.error)
        assert "OUT_OF_ORDER_SEQUENCE" in str(behind.error)
        for sequence in (0, 1):
            (again,) = await submit([zeros(0, sequence)])
            assert (again.error, again.base_offset) == (None, sequence)

    run(log, scenario, sparklog_publish_backlog_bytes=str(REQUESTS_AT_LEAST * PLAIN_BYTES))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "uncompressed"])
def test_what_is_compressed_anew_is_not_quick(codec: str) -> None:
    """Gzip takes 40 ms for what 9 KB of zstd may become; the publisher's thread is everybody's."""
    part = growing(batch([b"a" * 100], codec=Codec.ZSTD), codec)
    assert (part.is_small, part.may_grow) == (False, True)


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_what_is_stored_as_it_came_may_be_quick(codec: str) -> None:
    part = growing(batch([b"a" * 100], codec=Codec.ZSTD), codec)
    assert (part.is_small, part.may_grow) == (True, False)


def test_push_back_by_parts(log: SparkLog, store: MemoryStore) -> None:
    """A part of 70 bytes takes 2 KB while it waits, also when its client was told that its time is over."""
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        second = broker.publisher.submit([orders(log)] * 8)
        second.cancel()
        with pytest.raises(RetriableError, match="PUBLISH_BACKLOG_FULL"):
            await broker.publisher.submit([orders(log)])
        gate.open.set()
        await first

    run(log, scenario, sparklog_publish_backlog_bytes=str(9 * PART_BYTES + 2000))


def test_what_is_sent_away_is_begun_by_nobody_and_what_is_begun_is_told_that_it_may_be_there() -> None:
    """Also in the moment between the publisher's look at it and its beginning with it."""
    backlog = Backlog(1 << 20)
    waiting, begun, of_a_coordinator = (submission_of(growing()) for _ in range(3))
    waiting.is_for_producer = begun.is_for_producer = True
    for one in (waiting, begun, of_a_coordinator):
        backlog.add(one)
    assert backlog.begin(begun)
    backlog.send_away()
    assert isinstance(waiting.future.exception(), SentAwayError)
    error = begun.future.exception()
    assert isinstance(error, RetriableError)
    assert error.code == "PUBLISH_UNRESOLVED"
    assert not of_a_coordinator.future.done()
    assert [backlog.begin(one) for one in (waiting, of_a_coordinator)] == [False, True]
    for one in (waiting, begun, of_a_coordinator):
        backlog.remove(one)
    assert (backlog.submissions, backlog.used_bytes) == (0, 0)
