"""The compiled loops: there, refused where they do not fit, and reading nothing that is not theirs."""

import contextlib
import ctypes
import dataclasses
import mmap
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import SparklogError
from sparklog.format import kernels
from sparklog.format.byte_views import ByteViews, binary_column, cut_rows
from sparklog.format.encode import EncodeOptions, encode_batches, prepare_rows
from sparklog.format.key_hashes import murmur2
from sparklog.format.record_batch import HEADER
from tests.support.plain_records import record, sized, varint

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


def parse(body: np.ndarray[Any, np.dtype[np.uint8]], count: int) -> kernels.Int64Array | None:
    start, end, counts, last = np.array([[0], [len(body)], [count], [count - 1]], np.int64)
    return kernels.parse_records(body, start, end, counts, last)


@pytest.mark.parametrize("found", ["nothing", "no library", "another version", "a function less"])
def test_an_unusable_library_is_refused(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "none.so" if found == "nothing" else tmp_path / kernels.LIBRARY
    whole = kernels.PATH.read_bytes()
    if found == "no library":
        path.write_bytes(b"\x7fELF, or so")
    elif found == "another version":
        path.write_bytes(whole)
        monkeypatch.setattr(kernels, "VERSION", kernels.VERSION + 1)
    elif found == "a function less":
        assert whole.count(b"\0sparklog_views\0") in {1, 2}  # with and without those for debuggers
        path.write_bytes(whole.replace(b"\0sparklog_views\0", b"\0sparklog_other\0"))
    with pytest.raises(SparklogError, match=r"KERNELS_UNUSABLE.*expected the compiled loops"):
        kernels.load(path)


@pytest.mark.slow
def test_a_zip_on_the_python_path_works(tmp_path: Path) -> None:
    """As `spark-submit --py-files sparklog.whl` has it: a library cannot be loaded from within a zip."""
    package = kernels.PATH.parent.parent
    with zipfile.ZipFile(tmp_path / "sparklog.zip", "w") as archive:
        for path in [*package.rglob("*.py"), kernels.PATH]:
            archive.write(path, path.relative_to(package.parent))
    program = """if True:
        import pyarrow, sparklog
        from sparklog.format.key_hashes import murmur2
        print(sparklog.__file__, murmur2(pyarrow.array([b"21"])).tolist())"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "sparklog.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sparklog.zip" in done.stdout
    assert done.stdout.endswith("[-973932308]\n")


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
        expected_body = b"".join(record(0, row, None, word) for row, word in enumerate(WORDS))
        rows = columns([None])
        rows = dataclasses.replace(rows, value=same, timestamp_ms=rows.timestamp_ms.repeat(len(WORDS)))
        assert encode_batches(rows, EncodeOptions()).to_bytes()[HEADER.size :] == expected_body
        del same, shown, rows


def test_long_calls_which_release_the_interpreters_lock(columns: Callable[..., Any]) -> None:
    count = 3 * kernels.ROWS_WITH_LOCK
    data = encode_batches(columns([b"v"] * count), EncodeOptions(max_batch_bytes=1 << 20)).to_bytes()
    assert data[HEADER.size :] == b"".join(record(0, row, None, b"v") for row in range(count))


NAMES = [b"", b"h", b"a name of more than twelve bytes", b"x" * 300]
CONTENTS = [None, b"", b"v", b"y" * 9000]


def header_cases() -> list[list[tuple[bytes, bytes | None]]]:
    pairs = [(name, content) for name in NAMES for content in CONTENTS]
    return [[], pairs[:1], pairs, [], pairs[5:9]]


def test_nothing_behind_headers_is_read_or_written() -> None:
    cases = header_cases()
    sections = [b"".join(sized(name) + sized(content) for name, content in case) for case in cases]
    keys, values = zip(*[pair for case in cases for pair in case], strict=True)
    columns = [ByteViews.of(pa.array(column, pa.binary())) for column in (keys, values)]
    size = sum(int(column.length.sum()) for column in columns)
    laid_out, starts = kernels.lay_out_headers(columns[0], columns[1], size)
    assert bytes(laid_out) == b"".join(sections)
    assert len(starts) == len(keys) + 1
    with pytest.raises(RuntimeError, match="not that of the keys"):
        kernels.lay_out_headers(columns[0], columns[1], size - 10 * len(keys) - 1)
    count = np.array([len(case) for case in cases], np.int64)
    end = np.cumsum([len(section) for section in sections])
    position = end - [len(section) for section in sections]
    with guarded(b"".join(sections)) as whole:
        right, spans = kernels.parse_headers(whole, count, position, end)
        assert right == len(cases)
        assert cut_rows(whole, spans[0], spans[1]).to_pylist() == list(keys)
        assert cut_rows(whole, spans[2], spans[3]).to_pylist() == list(values)
    random = np.random.default_rng(7)
    section = sections[4][-400:]
    for cut in range(len(section)):
        damaged = bytearray(section[:cut])
        for _ in range(cut and int(random.integers(3))):
            damaged[int(random.integers(cut))] = int(random.integers(256))
        with guarded(bytes(damaged)) as whole:
            kernels.parse_headers(whole, np.array([3]), np.array([0]), np.array([cut]))


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


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which calls release the interpreter's lock."""
    found: list[bool] = []
    call = kernels.Library.call

    def watched(library: kernels.Library, name: str, rows: int, *arguments: object) -> int:
        found.append(rows > kernels.ROWS_WITH_LOCK)
        return call(library, name, rows, *arguments)

    monkeypatch.setattr(kernels.Library, "call", watched)
    return found


@pytest.mark.parametrize(("size", "given_away"), [(250_000, False), (270_000, True)])
def test_what_takes_long_gives_the_interpreters_lock_away(
    raw_record: Callable[..., bytes],
    raw_batch: Callable[..., bytes],
    released: list[bool],
    size: int,
    *,
    given_away: bool,
) -> None:
    """However few records it is: headers of two bytes each take 3 ns a byte."""
    count = size // 2
    record = raw_record(header_count=varint(count), headers=b"\0\1" * count)
    batch, body = np.frombuffer(raw_batch(record), np.uint8), np.frombuffer(record, np.uint8)
    assert kernels.inspect_records(body, 1)[0] == 1
    kernels.inspect_batch(batch)
    head = batch[: HEADER.size].copy()
    kernels.inspect_batch(head, body)
    assert released == [given_away] * 3


@pytest.mark.parametrize(("size", "given_away"), [(1_000_000, False), (1_100_000, True)])
def test_copying_much_gives_the_interpreters_lock_away(
    columns: Callable[..., Any], released: list[bool], size: int, *, given_away: bool
) -> None:
    data = np.zeros(size, np.uint8)
    cut_rows(data, np.zeros(1, np.int64), np.array([size]))
    encode_batches(columns([b"v" * size]), EncodeOptions(max_batch_bytes=1 << 21, max_message_bytes=1 << 21))
    assert released[0] == given_away
    assert released.count(given_away) >= 2
