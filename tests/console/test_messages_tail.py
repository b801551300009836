"""The live tail: new records in order, what a slow reader misses, topics that change."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.console import messages as messages_module
from sparklog.console.messages import Dropped, Filters, Tail, TailStep
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.metadata import plan_advance_log_start


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path / "root", clock=ManualClock()) as log:
        log.create_topic("t", 2)
        log.append("t", pa.table({"value": ["before"]}), partition=0)
        yield log


def append(log: SparkLog, partition: int, *values: str) -> None:
    log.append("t", pa.table({"value": values}), partition=partition)


def found(step: TailStep) -> list[tuple[int, int, bytes | None]]:
    return [(message.partition, message.offset, message.value.data) for message in step.found]


def test_a_tail_begins_at_the_end_and_follows_commits(log: SparkLog) -> None:
    tail = Tail(log, "t")
    assert tail.poll() == TailStep(found=[])
    append(log, 0, "a", "b")
    append(log, 1, "c")
    assert sorted(found(tail.poll())) == [(0, 1, b"a"), (0, 2, b"b"), (1, 0, b"c")]
    assert tail.poll() == TailStep(found=[])
    append(log, 1, "d")
    assert found(tail.poll()) == [(1, 1, b"d")]


def test_a_tail_has_filters_and_partitions(log: SparkLog) -> None:
    tail = Tail(log, "t", (1,), Filters(value_contains="x"))
    append(log, 0, "x0")
    append(log, 1, "y", "x1")
    assert found(tail.poll()) == [(1, 1, b"x1")]
    with pytest.raises(UnknownTopicError):
        Tail(log, "t", (7,))
    with pytest.raises(UnknownTopicError):
        Tail(log, "nothing")
    with pytest.raises(InvalidRequestError):
        Tail(log, "t", (), Filters(regex="("))


def test_a_poll_is_bounded_and_the_next_goes_on(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "TAIL_RECORDS", 3)
    tail = Tail(log, "t")
    append(log, 0, *"abcde")
    append(log, 1, *"vwxyz")
    seen: list[tuple[int, int, bytes | None]] = []
    sizes = []
    while (step := tail.poll()).found:
        assert step.dropped == []
        sizes.append((len(step.found), step.is_behind))
        seen += found(step)
    assert sizes == [(3, True), (3, True), (3, True), (1, False)]
    assert sorted(seen) == [(0, 1 + at, b"%c" % char) for at, char in enumerate(b"abcde")] + [
        (1, at, b"%c" % char) for at, char in enumerate(b"vwxyz")
    ]


def test_a_slow_reader_gets_a_report_of_what_was_dropped(log: SparkLog) -> None:
    tail = Tail(log, "t", lag_bytes=20_000)
    for number in range(40):
        append(log, 0, f"{number:04}" + "x" * 2000)
    append(log, 1, "small")
    step = tail.poll()
    (dropped,) = step.dropped
    of_zero = [offset for partition, offset, _ in found(step) if partition == 0]
    assert dropped == Dropped(partition=0, start=1, end=of_zero[0])
    assert of_zero == list(range(of_zero[0], 41))  # what is not dropped is complete
    assert 3 <= len(of_zero) <= 10
    assert (1, 0, b"small") in found(step)
    assert tail.poll() == TailStep(found=[])


def test_what_expires_before_it_is_read_is_dropped(log: SparkLog) -> None:
    tail = Tail(log, "t")
    append(log, 0, *"abcde")
    action = plan_advance_log_start(log.image, log.image.topic("t").topic_id, 0, 4)
    assert action is not None
    log.metadata.publish(lambda _: [action])
    step = tail.poll()
    assert step.dropped == [Dropped(partition=0, start=1, end=4)]
    assert found(step) == [(0, 4, b"d"), (0, 5, b"e")]


def test_added_partitions_are_followed_from_their_beginning(log: SparkLog) -> None:
    tail, chosen = Tail(log, "t"), Tail(log, "t", (0,))
    log.add_partitions("t", 3)
    append(log, 2, "new")
    assert found(tail.poll()) == [(2, 0, b"new")]
    assert found(chosen.poll()) == []


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_tail_ends_with_its_topic(log: SparkLog, is_made_again: bool) -> None:
    tail = Tail(log, "t")
    log.delete_topic("t")
    if is_made_again:
        log.create_topic("t", 2)
        append(log, 0, "other")
    assert tail.poll() == TailStep(found=[], ended="the topic was deleted, or deleted and created again")


def test_a_damaged_batch_is_reported_once_and_dropped(log: SparkLog, tmp_path: Path) -> None:
    tail = Tail(log, "t")
    append(log, 0, "x" * 1000)
    (segment,) = [path for path in (tmp_path / "root").rglob("*.log") if path.stat().st_size > 1000]
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)
    step = tail.poll()
    ((partition, problem),) = step.problems
    assert (partition, step.dropped, step.found) == (0, [Dropped(partition=0, start=1, end=2)], [])
    assert "CRC" in problem
    append(log, 0, "good")
    assert found(tail.poll()) == [(0, 2, b"good")]
