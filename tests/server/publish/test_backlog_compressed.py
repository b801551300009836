"""Compressed parts that the publisher tries by itself, and what it hands over to the checkers then."""

import asyncio
import random
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.errors import SparklogError
from sparklog.format.codec import Codec
from sparklog.storage import MemoryStore
from sparklog_server.publish.backlog import Backlog, Checkers, Submission
from sparklog_server.publish.parts import AppendPart, RefusedBatchError
from sparklog_server.publish.produced_batches import (
    PLAIN_BYTES,
    SMALL_COMPRESSED_BYTES,
    SMALL_GZIP_BYTES,
    CheckTerms,
    UncheckedPart,
)
from tests.server.publish.batches import NOW_MS, batch, rules
from tests.server.publish.surroundings import Surroundings
from tests.server.publish.test_parts_checks import part_of
from tests.server.publish.test_publisher import Gate, run

NOISE = random.Random(1).randbytes(6000)
LARGE = batch([NOISE * (PLAIN_BYTES // 6000 + 1)], codec=Codec.ZSTD)  # uncompressed more than is tried
BOMB = batch([NOISE * 600], codec=Codec.ZSTD)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog_server.publish.produced_batches.thread_time", lambda: 0.0)


def usual(codec: Codec, size: int = 2000) -> bytes:
    return batch([b"value-%07d" % number for number in range(size // 20)], codec=codec)


def submission_of(*batches: bytes) -> Submission:
    parts = [part_of(data) for data in batches]
    loop = asyncio.new_event_loop()
    try:
        return Submission(list(parts), loop.create_future(), sum(part.size_bytes for part in parts))
    finally:
        loop.close()


def codes(submission: Submission) -> list[str | None]:
    found: list[str | None] = []
    for index, part in enumerate(submission.parts):
        error = submission.errors.get(index)
        assert isinstance(part, AppendPart) or error is not None, "neither right nor wrong"
        found.append(error.code if isinstance(error, SparklogError) else None)
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_usual_ones_need_no_other_thread(codec: Codec) -> None:
    checkers = Checkers(lambda: None, Backlog(1 << 30))  # none is started
    submission = submission_of(*[usual(codec)] * 8)
    checkers.submit(submission)
    assert not submission.in_checkers
    checkers.check(submission)
    assert submission.unchecked == 0
    assert codes(submission) == [None] * 8


def test_what_was_tried_in_vain_is_handed_over() -> None:
    told = []
    checkers = Checkers(lambda: told.append(submission.unchecked), Backlog(1 << 30))
    broken = bytearray(usual(Codec.LZ4))
    broken[-3] ^= 1
    submission = submission_of(usual(Codec.LZ4), bytes(broken), LARGE, BOMB, usual(Codec.NONE))
    checkers.submit(submission)
    assert (submission.in_checkers, submission.unchecked) == (False, 5)
    checkers.check(submission)
    assert (submission.in_checkers, submission.unchecked) == (True, 3)
    assert isinstance(submission.parts[0], AppendPart)
    assert isinstance(submission.parts[4], AppendPart)
    checkers.start()
    checkers.finish()
    checkers.join()
    assert told == [0]
    assert codes(submission) == [None, "CORRUPT_BATCH", None, "BATCH_TOO_LARGE", None]


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_only_small_ones_are_tried(codec: Codec) -> None:
    most = SMALL_GZIP_BYTES if codec is Codec.GZIP else SMALL_COMPRESSED_BYTES
    data = batch([b"x" * 100], codec=codec)
    assert part_of(data).is_small
    assert part_of(data.ljust(most, b"\0")).is_small
    assert not part_of(data.ljust(most + 1, b"\0")).is_small
    assert part_of(data[:30]).is_small


def test_a_panic_when_it_is_small_fails_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> Any:
        raise PanicException("index out of bounds")

    submission = submission_of(usual(Codec.NONE), usual(Codec.LZ4), usual(Codec.ZSTD))
    checkers = Checkers(lambda: None, Backlog(1 << 30))
    checkers.submit(submission)
    monkeypatch.setattr("sparklog.format.codec.cramjam.lz4.decompress_into", panic)
    checkers.check(submission)
    checkers.start()
    checkers.finish()
    checkers.join()
    assert submission.unchecked == 0
    assert codes(submission) == [None, "INTERNAL", None]


def of_topic(log: SparkLog, data: bytes) -> UncheckedPart:
    topic_id = log.image.topic("orders").topic_id
    terms = CheckTerms(rules=rules(), topic_id=topic_id, topic="orders", now_ms=lambda: NOW_MS, api_version=9)
    return UncheckedPart.of(data, terms, 0, 1)


def test_order_and_errors_are_kept(log: SparkLog) -> None:
    async def scenario(broker: Surroundings) -> None:
        batches = [LARGE, usual(Codec.LZ4), BOMB, LARGE, usual(Codec.SNAPPY), LARGE]
        futures = [broker.publisher.submit([of_topic(log, data)]) for data in batches]
        outcomes = [outcome for (outcome,) in await asyncio.gather(*futures)]
        assert isinstance(outcomes[2].error, RefusedBatchError)
        assert [outcome.base_offset for outcome in outcomes] == [0, 1, -1, 101, 102, 202]

    run(log, scenario)


def test_what_is_handed_over_while_the_broker_stops_is_still_published(
    log: SparkLog, store: MemoryStore
) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        first = broker.publisher.submit([of_topic(log, usual(Codec.NONE))])
        await gate.until_reached()
        second = broker.publisher.submit([of_topic(log, LARGE)])
        stopping = asyncio.ensure_future(broker.publisher.stop())
        await asyncio.sleep(0)
        assert broker.publisher.is_stopping
        gate.open.set()
        await stopping
        assert [(await one)[0].base_offset for one in (first, second)] == [0, 100]

    run(log, scenario)
