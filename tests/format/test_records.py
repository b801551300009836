"""How much work a produced batch is: it ends at the first wrong record, whatever comes before and after."""

from collections.abc import Callable

import cramjam
import pytest

from sparklog.errors import CorruptLogError
from sparklog.format import records
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.produced import MAX_RECORDS, inspect_records
from sparklog.format.record_batch import HEADER, BatchHeader
from sparklog.format.records import BadRecordError, inspect_body, walk_records
from tests.support.plain_records import record

Build = Callable[..., bytes]


def body_of(count: int) -> bytes:
    """Records without key and value."""
    return b"".join(record(0, row) for row in range(count))


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first record that the plain loop looks at, and the one that it refuses."""
    rows: list[int] = []

    def counted(
        body: bytes | memoryview,
        count: int,
        *,
        row: int = 0,
        at: int = 0,
        last_offset_delta: int | None = None,
    ) -> None:
        rows.append(row)
        try:
            walk_records(body, count, row=row, at=at, last_offset_delta=last_offset_delta)
        except BadRecordError as error:
            rows.append(error.row)
            raise

    monkeypatch.setattr(records, "walk_records", counted)
    return rows


@pytest.mark.parametrize("right", [0, 7, 20_000, 50_000])
def test_only_the_wrong_record_is_walked(walked: list[int], right: int) -> None:
    """The plain loop takes microseconds for a record; a request of 10 KB can have a million right ones."""
    body = body_of(right) + b"\x0c\0\0\x0d\x01\x01\0" + body_of(50_000)
    with pytest.raises(BadRecordError) as caught:
        inspect_body(body, 100_001)
    assert caught.value.row == right
    assert walked == [right, right]


@pytest.mark.parametrize("extra", [b"\0", b"\x0c"])
def test_bytes_behind_the_last_record(extra: bytes) -> None:
    with pytest.raises(BadRecordError, match="behind the last"):
        inspect_body(body_of(1000) + extra, 1000)


def test_what_is_right_is_not_walked(walked: list[int]) -> None:
    """One record may have thousands of headers."""
    inspect_body(record(0, 0, headers=[(b"a", None)] * 6000), 1)
    assert walked == []


def test_only_the_wrong_batch_is_walked(walked: list[int], raw_batch: Build, raw_record: Build) -> None:
    good = raw_batch(raw_record() + raw_record(offset_delta=1), record_count=2)
    bad = raw_batch(raw_record() + raw_record(offset_delta=1, length=40), record_count=2)
    data = good * 20 + bad + good
    with pytest.raises(CorruptLogError, match=f"here@{20 * len(good)}, record 1: found length 40, expected"):
        decode_records(data, scan_batches(data, where="here"), where="here")
    assert walked == [0, 1]


def test_overlong_varints_are_read(raw_batch: Build, raw_record: Build) -> None:
    """Legal for a reader, never written."""
    first = raw_record(offset_delta=0)
    padded = bytes([first[0] | 0x80, 0x80, 0x80, 0x00]) + first[1:]
    data = raw_batch(padded + raw_record(offset_delta=1), record_count=2)
    assert decode_records(data, scan_batches(data, where="t"), where="t").offset.tolist() == [0, 1]


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
