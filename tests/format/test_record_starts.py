"""Finding the starts of records: all ways agree, and each is taken when it should be."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparklog.errors import CorruptLogError
from sparklog.format import record_starts
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.record_batch import HEADER
from sparklog.format.record_starts import Bodies, guess_starts, walk_starts

Build = Callable[..., Any]


def _bodies(data: bytes) -> Bodies:
    table = scan_batches(data, where="here")
    return Bodies(
        np.frombuffer(data, np.uint8),
        table.position + HEADER.size,
        table.position + table.size,
        table.record_count,
        lambda batch: f"batch {batch}",
    )


def _values(kind: str, count: int) -> list[bytes]:
    sizes = np.random.default_rng(count).integers(
        *{"short": (0, 40), "long": (100, 300), "wide": (7000, 9000)}[kind], count
    )
    return [b"x" * size for size in sizes.tolist()]


@pytest.mark.parametrize("kind", ["short", "long", "wide"])
@pytest.mark.parametrize("batches", [1, 5, 40])
def test_guesses_are_what_the_walk_finds(columns: Build, kind: str, batches: int) -> None:
    data = b"".join(
        encode_batches(columns(_values(kind, 20 + batch)), EncodeOptions()).to_bytes()
        for batch in range(batches)
    )
    bodies = _bodies(data)
    assert guess_starts(bodies).tolist() == walk_starts(bodies).tolist()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 300, 8192, 8193, 8300])
@pytest.mark.parametrize("size", [0, 49, 50, 100])
def test_records_of_one_length_need_no_loop(
    columns: Build, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_batches(columns([b"x" * size] * count), EncodeOptions(max_batch_bytes=1 << 20)).to_bytes()
    bodies = _bodies(data)
    expected = walk_starts(bodies).tolist()
    if (
        size != 50 or count < 64
    ):  # there the length itself grows to 2 bytes on the way, which is left to the loop
        monkeypatch.delattr(record_starts, "_hop")
    assert guess_starts(bodies).tolist() == expected


def test_sizes_that_add_up_by_chance_are_not_believed(columns: Build) -> None:
    values = [b"x" * 100, b"x" * 90, b"x" * 110, b"x" * 100] * 4
    data = encode_batches(columns(values), EncodeOptions()).to_bytes()
    bodies = _bodies(data)
    assert guess_starts(bodies).tolist() == walk_starts(bodies).tolist()


def test_a_wrong_guess_is_corrected(columns: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"x" * 100, b"y" * 90]
    data = encode_batches(columns(values), EncodeOptions()).to_bytes()
    monkeypatch.setattr(
        "sparklog.format.decode.guess_starts", lambda bodies: bodies.start + np.arange(2) * 50
    )
    assert decode_records(data, scan_batches(data, where="t"), where="t").value.to_pylist() == values


def test_a_guess_that_parses_but_is_no_chain_is_corrected(
    columns: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_batches(columns([b"x" * 100, b"y" * 90]), EncodeOptions()).to_bytes()
    monkeypatch.setattr("sparklog.format.decode.guess_starts", lambda bodies: bodies.start.repeat(2))
    assert decode_records(data, scan_batches(data, where="t"), where="t").offset.tolist() == [0, 1]


def test_batches_of_very_different_counts_are_not_walked_in_lockstep(columns: Build) -> None:
    data = b"".join(
        encode_batches(columns(_values("short", 2000 if batch == 0 else 2)), EncodeOptions()).to_bytes()
        for batch in range(30)
    )
    bodies = _bodies(data)
    assert guess_starts(bodies).tolist() == walk_starts(bodies).tolist()


def test_long_lengths_are_walked(raw_batch: Build, raw_record: Build) -> None:
    # Overlong varints: legal for a reader, never written.
    record = raw_record(offset_delta=0)
    padded = bytes([record[0] | 0x80, 0x80, 0x80, 0x00]) + record[1:]
    data = raw_batch(padded + raw_record(offset_delta=1), record_count=2)
    assert decode_records(data, scan_batches(data, where="t"), where="t").offset.tolist() == [0, 1]


def test_walk_names_the_record(raw_batch: Build, raw_record: Build) -> None:
    data = raw_batch(raw_record() + raw_record(offset_delta=1, length=40), record_count=2)
    with pytest.raises(CorruptLogError, match="batch 0, record 1: found length 40, expected 0 to 8"):
        walk_starts(_bodies(data))
