import contextlib
import io
import os
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.cli import produce
from sparklog.cli.inputs import Stop
from sparklog.cli.produce import LineError, LineFormat
from tests.cli.conftest import Run


def read_line_batches(stream: BinaryIO, stop: Stop | None = None) -> Iterator[list[bytes]]:
    with contextlib.closing(stop or Stop()) as stop:
        yield from produce.read_line_batches(stream, stop)


def flat(batches: Iterator[list[bytes]]) -> list[bytes]:
    return [line for batch in batches for line in batch]


@given(st.binary(max_size=200))
def test_lines_are_what_split_says(data: bytes) -> None:
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert flat(read_line_batches(io.BytesIO(data))) == expected


def test_large_input_comes_in_bounded_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_BATCH_BYTES", 1000)
    monkeypatch.setattr(produce, "READ_BYTES", 100)
    batches = list(read_line_batches(io.BytesIO(b"0123456789\n" * 1000)))
    assert sum(map(len, batches)) == 1000
    assert max(map(len, batches)) <= 110


def test_silent_pipe_hands_over_what_it_has() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        os.write(write_end, b"one\ntwo\nthr")
        batches = read_line_batches(reader)
        assert next(batches) == [b"one", b"two"]

        def finish() -> None:
            os.write(write_end, b"ee\nfour")
            os.close(write_end)

        threading.Thread(target=finish).start()
        assert flat(batches) == [b"three", b"four"]


def test_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(produce, "READ_BYTES", 100)
    with pytest.raises(LineError, match="longer than 1,000 bytes"):
        flat(read_line_batches(io.BytesIO(b"x" * 2000)))


@pytest.mark.parametrize(
    ("line_format", "line", "expected"),
    [
        (LineFormat(), b"a:b", (None, b"a:b")),
        (LineFormat(key_delimiter=b":"), b"a:b:c", (b"a", b"b:c")),
        (LineFormat(key_delimiter=b":"), b"abc", (None, b"abc")),
        (LineFormat(key_delimiter=b"::"), b"a::b", (b"a", b"b")),
        (LineFormat(fixed_key=b"K"), b"v", (b"K", b"v")),
        (LineFormat(fixed_key=b"K", key_delimiter=b":"), b"v", (b"K", b"v")),
        (LineFormat(key_delimiter=b":", empty_is_null=True), b"a:", (b"a", None)),
        (LineFormat(key_delimiter=b":", empty_is_null=True), b":b", (None, b"b")),
        (LineFormat(key_delimiter=b":"), b"a:", (b"a", b"")),
        (LineFormat(key_delimiter=b":", null_marker=b"NULL"), b"a:NULL", (b"a", None)),
    ],
)
def test_line_becomes_key_and_value(
    line_format: LineFormat, line: bytes, expected: tuple[bytes | None, bytes | None]
) -> None:
    assert line_format.parse(line) == expected


def test_a_stop_drops_the_part_of_a_line() -> None:
    read_end, write_end = os.pipe()
    stop = Stop()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "wb", 0) as writer:
        writer.write(b"one\ntwo\nthr")
        batches = read_line_batches(reader, stop)
        assert next(batches) == [b"one", b"two"]
        writer.write(b"ee\nfo")
        stop.ask()
        assert flat(batches) in ([], [b"three"])


@pytest.mark.parametrize("fault", [0, 3, 9])
def test_lines_before_one_that_is_too_large_are_records(run: Run, fault: int) -> None:
    run("topics", "create", "t", "--config", "max.message.bytes=1000")
    lines = ["x" * 2_000 if number == fault else str(number) for number in range(10)]
    result = run("produce", "t", stdin="\n".join(lines), exit_code=1)
    assert f"[SPARKLOG_RECORD_TOO_LARGE] line {fault + 1}, of 2,000 bytes: " in result.stderr
    assert f"{fault} record{'' if fault == 1 else 's'} acknowledged" in result.stderr
    assert run("consume", "t", "-e").stdout.split() == lines[:fault]


def test_lines_before_one_without_a_key_are_records(run: Run) -> None:
    run("topics", "create", "t", "--config", "cleanup.policy=compact")
    result = run("produce", "t", "-K", ":", stdin="a:1\nb:2\nnone\nc:3\n", exit_code=1)
    assert "[SPARKLOG_INVALID_ROWS] line 3, of 4 bytes: " in result.stderr
    assert run("consume", "t", "-e").stdout.split() == ["1", "2"]
