"""The compiled loops: there, refused where they do not fit, and reading nothing that is not theirs."""

import contextlib
import ctypes
import dataclasses
import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format import kernels
from sparklog.format.arrow_bytes import binary_column, cut_rows
from sparklog.format.byte_views import ByteViews
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.murmur2 import murmur2
from sparklog.format.record_batch import HEADER
from sparklog.format.record_layout import prepare_rows
from tests.format.conftest import varint
from tests.twins import without_kernels

WORDS = [b"", b"a", b"twelve bytes", b"thirteen bytes", None, b"y" * 16, b"z" * 200, b"end", b"x" * 15]


@contextlib.contextmanager
def guarded(content: bytes) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    """The bytes at the very end of a page, in front of one that kills whoever touches it."""
    pages = -(-len(content) // mmap.PAGESIZE) + 1
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    end = (pages - 1) * mmap.PAGESIZE
    address = whole.__array_interface__["data"][0] + end
    libc = ctypes.CDLL(None, use_errno=True)
    whole[end - len(content) : end] = np.frombuffer(content, np.uint8)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    try:
        yield whole[end - len(content) : end]
    finally:
        libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 3)


@pytest.fixture(autouse=True)
def twin() -> None:
    """Here it is the compiled ones that are meant: once, and no test is run without them."""


def parse(body: np.ndarray[Any, np.dtype[np.uint8]], count: int) -> kernels.Int64Array | None:
    start, end, counts, last = np.array([[0], [len(body)], [count], [count - 1]], np.int64)
    return kernels.parse_records(body, start, end, counts, last)


def test_they_are_built_and_used() -> None:
    assert kernels.are_loaded(), "did the build leave the library out?"


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_a_switch_turns_them_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.load() is not None
    monkeypatch.setenv(kernels.SWITCH, value)
    assert kernels.load() is None


@pytest.mark.parametrize("found", ["nothing", "no library", "another version", "a function less"])
def test_what_does_not_fit_is_not_used(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / kernels.LIBRARY
    whole = kernels.PATH.read_bytes()
    if found == "no library":
        path.write_bytes(b"\x7fELF, or so")
    elif found == "another version":
        path.write_bytes(whole)
        monkeypatch.setattr(kernels, "VERSION", kernels.VERSION + 1)
    elif found == "a function less":
        assert whole.count(b"\0sparklog_views\0") in {
            1,
            2,
        }  # with and without those for debuggers
        path.write_bytes(whole.replace(b"\0sparklog_views\0", b"\0sparklog_other\0"))
    assert kernels.load(path) is None


@pytest.mark.parametrize("headers", [False, True])
def test_nothing_behind_a_body_is_read(columns: Callable[..., Any], headers: bool) -> None:
    rows = columns(WORDS, keys=WORDS[::-1], headers=[[{"key": "h", "value": b"v"}]] * 9 if headers else None)
    body = encode_batches(rows, EncodeOptions()).to_bytes()[HEADER.size :]
    random = np.random.default_rng(5)
    with guarded(body) as whole:
        found = parse(whole, len(WORDS))
        assert found is not None
        assert cut_rows(whole, *found[4:6]).to_pylist() == WORDS
        assert cut_rows(whole, *found[2:4]).to_pylist() == WORDS[::-1]
        assert found[6].tolist() == [headers] * len(WORDS)
    for end in range(len(body)):  # every way to be cut off, and damaged before that
        damaged = bytearray(body[:end])
        for _ in range(end and int(random.integers(3))):
            damaged[int(random.integers(end))] = int(random.integers(256))
        with guarded(bytes(damaged)) as whole:
            found = parse(whole, len(WORDS))
            if found is not None:
                assert (found[8] <= end).all()


@pytest.mark.parametrize("headers", [False, True])
def test_nothing_behind_a_batch_is_read(columns: Callable[..., Any], headers: bool) -> None:
    rows = columns(WORDS, keys=WORDS[::-1], headers=[[{"key": "h", "value": b"v"}]] * 9 if headers else None)
    data = encode_batches(rows, EncodeOptions()).to_bytes()
    random = np.random.default_rng(6)
    with guarded(data) as whole:
        found = kernels.inspect_batch(whole)
        assert found is not None
        assert (found.record_count, found.keyless) == (len(WORDS), WORDS.count(None))
    for end in range(len(data)):
        damaged = bytearray(data[:end])
        if end >= HEADER.size:  # a length that fits, so that the records are looked at
            struct.pack_into(">i", damaged, 8, end - 12)
        for _ in range(end and int(random.integers(3))):
            damaged[int(random.integers(HEADER.size if end > HEADER.size else 0, end))] = int(
                random.integers(256)
            )
        with guarded(bytes(damaged)) as whole:
            assert kernels.inspect_batch(whole) is None, "cut off, and said to be whole"


def test_a_count_of_headers_that_cannot_be_is_refused_at_once(raw_record: Callable[..., bytes]) -> None:
    """What follows makes room for as many."""
    for count in (1, 2, 2**31 - 1):
        body = raw_record(header_count=varint(count), headers=b"\0")
        assert parse(np.frombuffer(body, np.uint8), 1) is None


def test_nothing_behind_a_column_is_read(columns: Callable[..., Any]) -> None:
    array = pa.array(WORDS, pa.binary())
    column = binary_column(array)
    expected = [None if word is None else murmur2(pa.array([word], pa.binary()))[0] for word in WORDS]
    with guarded(bytes(column.data)) as data:
        buffers = array.buffers()
        same = pa.Array.from_buffers(pa.binary(), len(WORDS), [*buffers[:2], pa.py_buffer(data)])
        assert same.to_pylist() == WORDS
        hashes = murmur2(same).tolist()
        assert [None if word is None else hashes[row] for row, word in enumerate(WORDS)] == expected
        views = ByteViews.of(same).views
        shown = pa.Array.from_buffers(
            pa.binary_view(), len(WORDS), [buffers[0], pa.py_buffer(views), pa.py_buffer(data)]
        )
        assert shown.to_pylist() == WORDS
        with without_kernels():
            expected_bytes = encode_batches(columns(WORDS), EncodeOptions()).to_bytes()
        rows = columns([None])
        rows = dataclasses.replace(rows, value=same, timestamp_ms=rows.timestamp_ms.repeat(len(WORDS)))
        assert encode_batches(rows, EncodeOptions()).to_bytes() == expected_bytes
        del same, shown, rows


def test_long_calls_which_give_the_interpreters_lock_away(columns: Callable[..., Any]) -> None:
    rows = columns([b"v"] * 3 * kernels.ROWS_WITH_LOCK)
    data = encode_batches(rows, EncodeOptions(max_batch_bytes=1 << 20)).to_bytes()
    with without_kernels():
        assert encode_batches(rows, EncodeOptions(max_batch_bytes=1 << 20)).to_bytes() == data


def test_a_column_that_was_not_filled_is_not_given_away() -> None:
    """The sum of these lengths is 0 in 64 bits."""
    with pytest.raises(RuntimeError, match="the sum of the lengths"):
        kernels.cut(np.zeros(8, np.uint8), np.zeros(4, np.int64), np.full(4, 1 << 62, np.int64))


@pytest.mark.parametrize("off_by", [-1, 1])
def test_records_that_were_not_laid_out_are_not_given_away(off_by: int) -> None:
    rows = prepare_rows(None, pa.array([b"one", b"two"], pa.binary()), None, 2)
    zeros = np.zeros(2, np.int64)
    with pytest.raises(RuntimeError, match="rest is not the size"):
        kernels.lay_out(zeros, zeros, rows.rest + off_by, (None, rows.value, None), None)


class Watched(kernels.Library):
    """Which calls give the lock away."""

    def __init__(self) -> None:
        super().__init__(kernels.PATH)
        self.given_away: list[bool] = []

    def call(self, name: str, rows: int, *arguments: object) -> int:
        self.given_away.append(rows > kernels.ROWS_WITH_LOCK)
        return super().call(name, rows, *arguments)


@pytest.mark.parametrize(("size", "given_away"), [(250_000, False), (270_000, True)])
def test_what_takes_long_gives_the_interpreters_lock_away(
    raw_record: Callable[..., bytes], raw_batch: Callable[..., bytes], size: int, *, given_away: bool
) -> None:
    """However few records it is: headers of two bytes each take 3 ns a byte."""
    count = size // 2
    record = raw_record(header_count=varint(count), headers=b"\0\1" * count)
    batch, body = np.frombuffer(raw_batch(record), np.uint8), np.frombuffer(record, np.uint8)
    watched = Watched()
    before = kernels.use(watched)
    try:
        assert kernels.inspect_records(body, 1)[0] == 1
        kernels.inspect_batch(batch)
        head = batch[: HEADER.size].copy()
        kernels.inspect_batch(head, body)
    finally:
        kernels.use(before)
    assert watched.given_away == [given_away] * 3


@pytest.mark.parametrize(("size", "given_away"), [(1_000_000, False), (1_100_000, True)])
def test_copying_much_gives_the_interpreters_lock_away(
    columns: Callable[..., Any], size: int, *, given_away: bool
) -> None:
    watched = Watched()
    before = kernels.use(watched)
    try:
        data = np.zeros(size, np.uint8)
        cut_rows(data, np.zeros(1, np.int64), np.array([size]))
        encode_batches(
            columns([b"v" * size]), EncodeOptions(max_batch_bytes=1 << 21, max_message_bytes=1 << 21)
        )
    finally:
        kernels.use(before)
    assert watched.given_away[0] == given_away
    assert watched.given_away.count(given_away) >= 2
