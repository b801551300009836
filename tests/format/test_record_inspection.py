"""How much work a produced batch is: it ends at the first wrong record, whatever comes before and after."""

import cramjam
import numpy as np
import pytest

from sparklog.errors import CorruptLogError
from sparklog.format import record_inspection
from sparklog.format.arrow_bytes import Int64Array, Words
from sparklog.format.produced import MAX_RECORDS, inspect_records
from sparklog.format.record_batch import HEADER, BatchHeader
from sparklog.format.record_fields import BadRecordError, RecordFields, parse_fields
from sparklog.format.record_inspection import inspect_body, inspect_slices
from sparklog.format.record_walk import walk_records
from sparklog.format.varint import encode_varints


def body_of(count: int) -> bytes:
    """Records without key and value."""
    (deltas,) = encode_varints(np.arange(count))
    out = []
    for word, size in zip(deltas.word.tolist(), np.broadcast_to(deltas.size, count).tolist(), strict=True):
        record = b"\0\0" + word.to_bytes(8, "little")[:size] + b"\x01\x01\0"
        out.append(bytes([len(record) << 1]) + record)
    return b"".join(out)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The records that the plain loop looks at."""
    rows: list[int] = []

    def counted(body: bytes | memoryview, count: int, *, row: int = 0, at: int = 0) -> object:
        try:
            found = walk_records(body, count, row=row, at=at)
        except BadRecordError as error:
            rows.extend(range(row, error.row + 1))
            raise
        rows.extend(range(row, count))
        return found

    monkeypatch.setattr(record_inspection, "walk_records", counted)
    return rows


@pytest.mark.parametrize("right", [0, 7, 20_000, 50_000])
def test_only_the_wrong_record_is_walked(twin: str, walked: list[int], right: int) -> None:
    """The plain loop takes microseconds for a record; a request of 10 KB can have a million right ones."""
    body = body_of(right) + b"\x0c\0\0\x0d\x01\x01\0" + body_of(50_000)
    with pytest.raises(BadRecordError) as caught:
        inspect_body(body, 100_001)
    assert caught.value.row == right
    assert len(walked) <= (1 if twin == "compiled" else record_inspection.SLICE_RECORDS + 1)


def test_the_pure_twin_takes_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's columns take hundreds of bytes a record: never for all of them."""
    sizes: list[int] = []

    def counted(words: Words, starts: Int64Array, size: int) -> RecordFields:
        sizes.append(len(starts))
        return parse_fields(words, starts, size)

    monkeypatch.setattr(record_inspection, "parse_fields", counted)
    deltas, keyless = inspect_slices(np.frombuffer(body_of(30_000), np.uint8), 30_000)
    assert (len(deltas), len(keyless), sum(sizes)) == (30_000, 30_000, 30_000)
    assert max(sizes) <= record_inspection.SLICE_RECORDS


@pytest.mark.parametrize("extra", [b"\0", b"\x0c"])
def test_bytes_behind_the_last_record(extra: bytes) -> None:
    with pytest.raises(BadRecordError, match="behind the last"):
        inspect_body(body_of(1000) + extra, 1000)


def test_large_records_of_few_are_not_walked(walked: list[int]) -> None:
    """One record may have thousands of headers."""
    headers = b"\x02a\x01" * 6000
    record = b"\0\0\0\x01\x01" + b"\xe0\x5d" + headers
    length = encode_varints(np.array([len(record)]))[0]
    body = int(length.word[0]).to_bytes(8, "little")[: int(np.max(length.size))] + record
    inspect_body(body, 1)
    assert walked == []


def test_a_batch_has_a_bound_on_records() -> None:
    body = b"\0" * (7 * (MAX_RECORDS + 1))
    header = BatchHeader(record_count=MAX_RECORDS + 1, last_offset_delta=MAX_RECORDS)
    with pytest.raises(CorruptLogError, match=f"{MAX_RECORDS + 1} records, expected at most") as caught:
        inspect_records(bytes(61) + body, header, where="here")
    assert caught.value.code == "BATCH_TOO_LARGE"


def test_memory_is_asked_for_before_it_is_taken() -> None:
    """Of the body and the columns; a claim of records that cannot be asks for no more than the bound."""
    asked: list[int] = []
    header = BatchHeader(record_count=2**31 - 1, last_offset_delta=2**31 - 2, attributes=4)
    body = HEADER.size * b"\0" + bytes(cramjam.zstd.compress(bytes(300_000)))
    with pytest.raises(CorruptLogError, match="records in 300000 bytes"):
        inspect_records(body, header, where="here", reserve=asked.append)
    columns = 9 * MAX_RECORDS
    assert asked[0] == columns + (64 << 10)
    assert columns + 300_000 <= asked[-1] <= columns + (4 * 300_000)
