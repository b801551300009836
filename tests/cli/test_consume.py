"""What a follow does when the topic itself changes: partitions are added, or it is deleted and made again."""

import functools
import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.cli.consume import (
    Cursor,
    Follower,
    Position,
    PositionError,
    Selection,
    parse_positions,
    resolve,
)
from sparklog.cli.record_format import ConsumedRecord, compile_format
from sparklog.clock import ManualClock
from sparklog.errors import OffsetOutOfRangeError, UnknownTopicError

Change = Callable[[sparklog.SparkLog], None]


class InterruptedFollow(Exception):
    pass


class IdleClock(ManualClock):
    """When a follow has nothing to print, the next thing happens; after the last one it is interrupted."""

    def __init__(self, *changes: Callable[[], None]) -> None:
        super().__init__()
        self._changes = list(changes)

    def sleep_ms(self, duration_ms: float) -> None:
        if not self._changes:
            raise InterruptedFollow
        self._changes.pop(0)()


@pytest.fixture
def log(tmp_path: Path) -> sparklog.SparkLog:
    """Topic t with old0 to old4 in partition 0."""
    log = sparklog.open(tmp_path / "log")
    log.create_topic("t")
    append(log, *(f"old{number}" for number in range(5)))
    return log


def append(log: sparklog.SparkLog, *values: str, partition: int = 0) -> None:
    log.append("t", pa.table({"value": list(values)}), partition=partition)


def make_again(*values: str, partitions: int = 1) -> Change:
    def change(log: sparklog.SparkLog) -> None:
        log.delete_topic("t")
        log.create_topic("t", partitions=partitions)
        if values:
            append(log, *values)

    return change


def add_partitions(log: sparklog.SparkLog) -> None:
    log.add_partitions("t", 3)
    for partition in range(3):
        append(log, f"in{partition}", partition=partition)


def follow(
    log: sparklog.SparkLog,
    *changes: Change,
    ended_by: type[BaseException] = InterruptedFollow,
    selection: Selection | None = None,
) -> list[str]:
    """What is printed, by another process than the one that makes the changes."""
    shown = io.BytesIO()
    clock = IdleClock(*(functools.partial(change, log) for change in changes))
    selection = selection or Selection(topic="t", group="g")
    follower = Follower(sparklog.open(log.url), selection, clock=clock)
    with pytest.raises(ended_by):
        follower.run(compile_format("%s "), shown)
    return shown.getvalue().decode().split()


OLD = [f"old{number}" for number in range(5)]
NEW = [f"new{number}" for number in range(8)]


@pytest.mark.parametrize("count", [8, 5, 2, 0])
def test_topic_made_again_is_printed_from_its_beginning(
    log: sparklog.SparkLog, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(log, make_again(*NEW[:count])) == [*OLD, *NEW[:count]]
    assert capsys.readouterr().err == (
        "Warning: topic t was deleted and made again: the records that follow are of the new one, "
        "from its beginning.\n"
    )
    assert log.committed_offsets("g") == {("t", 0): count}


def test_group_is_put_back_before_anything_is_printed(log: sparklog.SparkLog) -> None:
    committed = []

    def render(record: ConsumedRecord) -> bytes:
        if record.value == b"new0":
            committed.append(log.committed_offsets("g"))
        return b""

    clock = IdleClock(functools.partial(make_again(*NEW), log))
    follower = Follower(sparklog.open(log.url), Selection(topic="t", group="g"), clock=clock)
    with pytest.raises(InterruptedFollow):
        follower.run(render, io.BytesIO())
    assert committed == [{("t", 0): 0}]


def test_what_a_group_has_of_partitions_that_are_no_more_is_forgotten(log: sparklog.SparkLog) -> None:
    log.add_partitions("t", 3)
    log.create_topic("u")
    log.commit_offsets("g", {("t", 1): 0, ("u", 0): 0})
    assert follow(log, make_again(*NEW)) == [*OLD, *NEW]
    assert log.committed_offsets("g") == {("t", 0): 8, ("u", 0): 0}


def test_nothing_of_a_topic_that_is_gone_is_committed_for_the_next_one(log: sparklog.SparkLog) -> None:
    class Output(io.BytesIO):
        def flush(self) -> None:
            make_again(*NEW)(log)

    follower = Follower(sparklog.open(log.url), Selection(topic="t", group="g"), clock=IdleClock())
    follower.run(compile_format("%s "), Output(), max_messages=5)
    assert log.committed_offsets("g") == {}


def test_topic_that_is_deleted_ends_a_follow(log: sparklog.SparkLog) -> None:
    assert follow(log, lambda log: log.delete_topic("t"), ended_by=UnknownTopicError) == OLD


def test_chosen_partition_that_the_new_topic_lacks_ends_a_follow(log: sparklog.SparkLog) -> None:
    log.add_partitions("t", 2)
    append(log, "one", partition=1)
    selection = Selection(topic="t", group="g", partitions=(1,))
    assert follow(log, make_again(*NEW), selection=selection, ended_by=UnknownTopicError) == ["one"]


def test_log_that_ends_before_what_was_printed_is_an_error(log: sparklog.SparkLog) -> None:
    class Ahead(Follower):
        def _cursor(self, *_: object) -> Cursor:
            return Cursor(0, 7, None)

    follower = Ahead(sparklog.open(log.url), Selection(topic="t", group="g"), clock=IdleClock())
    with pytest.raises(OffsetOutOfRangeError, match="found next offset 7, expected at most 5"):
        follower.run(compile_format("%s "), io.BytesIO())
    assert log.committed_offsets("g") == {}


@pytest.mark.parametrize("anchor", [None, "beginning", "stored", "end"])
def test_partitions_that_are_added_are_followed_from_their_beginning(
    log: sparklog.SparkLog, anchor: str | None
) -> None:
    selection = Selection(topic="t", group="g", start=None if anchor is None else Position(anchor))
    old = [] if anchor == "end" else OLD
    assert follow(log, add_partitions, selection=selection) == [*old, "in0", "in1", "in2"]
    assert log.committed_offsets("g") == {("t", 0): 6, ("t", 1): 1, ("t", 2): 1}


def test_partitions_that_are_added_are_followed_from_where_the_group_is(log: sparklog.SparkLog) -> None:
    def add_and_read(log: sparklog.SparkLog) -> None:
        add_partitions(log)
        log.commit_offsets("g", {("t", 2): 1})

    assert follow(log, add_and_read) == [*OLD, "in0", "in1"]


def test_partitions_that_are_added_are_not_among_the_chosen(log: sparklog.SparkLog) -> None:
    assert follow(log, add_partitions, selection=Selection(topic="t", partitions=(0,))) == [*OLD, "in0"]


def test_a_follow_ends_when_no_record_has_come_for_so_long(log: sparklog.SparkLog) -> None:
    clock = ManualClock()
    stream = io.BytesIO()
    follower = Follower(log, Selection(topic="t", group="g"), clock=clock)
    follower.run(compile_format("%s "), stream, idle_timeout_ms=1000)
    assert stream.getvalue().split() == [b"old%d" % number for number in range(5)]
    assert 1000 <= clock.monotonic_ms() < 1200
    assert log.committed_offsets("g") == {("t", 0): 5}


def test_stopping_at_the_end_waits_for_no_partition_that_is_added(log: sparklog.SparkLog) -> None:
    class Output(io.BytesIO):
        def flush(self) -> None:
            if len(log.describe_topic("t").partitions) == 1:
                add_partitions(log)

    shown = Output()
    follower = Follower(sparklog.open(log.url), Selection(topic="t", exit_at_end=True), clock=IdleClock())
    follower.run(compile_format("%s "), shown)
    assert shown.getvalue().decode().split() == OLD


# --- positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "start", "end"),
    [
        ((), None, None),
        (("beginning",), Position("beginning"), None),
        (("latest",), Position("end"), None),
        (("17",), Position("offset", 17), None),
        (("-5",), Position("last", 5), None),
        (("s@100", "e@200"), Position("time", 100), Position("time", 200)),
        (("e@200",), None, Position("time", 200)),
        (("stored",), Position("stored"), None),
    ],
)
def test_words_of_kcat(texts: tuple[str, ...], start: Position | None, end: Position | None) -> None:
    assert parse_positions(texts) == (start, end)


@pytest.mark.parametrize("text", ["", "middle", "s@", "s@-1", "e@x", "1.5", "--5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PositionError):
        parse_positions((text,))


def test_two_starts_are_refused() -> None:
    with pytest.raises(PositionError, match="two starts"):
        parse_positions(("beginning", "end"))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("beginning"), 10),
        (Position("end"), 20),
        (Position("offset", 15), 15),
        (Position("last", 3), 17),
        (Position("last", 300), 10),
        (Position("time", 1_000), 12),
        (Position("time", 9_999), 20),
        (Position("stored"), 14),
    ],
)
def test_resolves_against_the_offsets_of_a_partition(position: Position, expected: int) -> None:
    found = resolve(
        position,
        log_start_offset=10,
        log_end_offset=20,
        offset_for_time=lambda ms: 12 if ms <= 1_000 else None,
        stored=14,
    )
    assert found == expected


@pytest.mark.parametrize(("stored", "expected"), [(None, 10), (3, 10), (12, 12)])
def test_stored_falls_back_to_the_beginning(stored: int | None, expected: int) -> None:
    found = resolve(
        Position("stored"),
        log_start_offset=10,
        log_end_offset=20,
        offset_for_time=lambda _ms: None,
        stored=stored,
    )
    assert found == expected
