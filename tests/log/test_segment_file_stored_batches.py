"""Batches that are not those of their extents are told, with their place; all five readers ask here."""

from collections.abc import Sequence

import numpy as np
import pytest

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.record_batch import BatchHeader
from sparklog.log.segment_file import (
    Span,
    Stretches,
    first_batch_bytes,
    scan_stretches,
    validate_batches,
    validate_next,
)
from tests.format.conftest import _batch as build_raw_batch

DENSE, MERGED = "segments/w/00000000.log", "orders-0/00000000000000000100-x.log"
SIZE = 100


def table(*batches: tuple[int, int]) -> BatchTable:
    """Batches of (first, last) stored offsets, each of SIZE bytes."""
    columns = {name: np.zeros(len(batches), np.int64) for name in BatchTable.__slots__}
    columns["position"] = np.arange(len(batches)) * SIZE
    columns["size"] = np.full(len(batches), SIZE)
    columns["base_offset"], columns["last_offset"] = np.array(batches, np.int64).T
    return BatchTable(**columns)


def stretches(
    *extents: tuple[int, int],
    batches: Sequence[int] = (),
    segment: str = DENSE,
    begins_at: int | None = None,
    reaches_end: bool = True,
    is_cut: bool = False,
    delta: int = 0,
) -> Stretches:
    """Extents of [start, end) offsets, 1,000 bytes apart; `batches`: how many each has, 1 by default."""
    counts = batches or [1] * len(extents)

    def place(index: int) -> tuple[Span, int]:
        position = 1000 * (index + 1)
        span = Span(topic="t", partition=0, segment=segment, position=position, size=counts[index] * SIZE)
        return span, position

    return Stretches(
        size=[count * SIZE for count in counts],
        offset_delta=[delta] * len(extents),
        segment=[segment] * len(extents),
        start_offset=[start for start, _ in extents],
        end_offset=[end for _, end in extents],
        begins_at=begins_at,
        reaches_end=reaches_end,
        is_cut=is_cut,
        place=place,
    )


@pytest.mark.parametrize(
    ("found", "known"),
    [
        ([(10, 14), (15, 19)], stretches((10, 20), batches=[2], begins_at=10)),
        ([(0, 4), (5, 9)], stretches((10, 20), batches=[2], begins_at=10, delta=10)),
        ([(10, 14), (15, 19)], stretches((10, 15), (15, 20), begins_at=10)),
        ([(12, 14)], stretches((10, 20), reaches_end=False)),
        ([(10, 14), (15, 19)], stretches((12, 18), batches=[2], is_cut=True)),
        ([(10, 30)], stretches((12, 18), is_cut=True)),
        ([(10, 12), (15, 16)], stretches((10, 20), batches=[2], segment=MERGED, begins_at=10)),
        ([(11, 12), (25, 26)], stretches((10, 20), (20, 30), segment=MERGED, begins_at=10)),
        ([(14, 15)], stretches((10, 20), segment=MERGED, is_cut=True)),
    ],
)
def test_batches_that_follow_each_other_within_their_extents(
    found: list[tuple[int, int]], known: Stretches
) -> None:
    assert set(validate_batches(table(*found), known)) == set(known.offset_delta)


@pytest.mark.parametrize(
    ("found", "known", "message"),
    [
        ([(11, 19)], stretches((10, 20), begins_at=10), r"@1000: found a batch of offsets 11 to 19"),
        ([(9, 19)], stretches((10, 20)), "offsets 9 to 19, expected it .* within 10 to 19"),
        ([(10, 20)], stretches((10, 20)), "offsets 10 to 20"),
        ([(10, 18)], stretches((10, 20)), "@1100: found the end at offset 19, expected 20"),
        ([(10, 14), (16, 19)], stretches((10, 20), batches=[2]), "@1100: found a batch of offsets 16 to 19"),
        ([(10, 14), (14, 19)], stretches((10, 20), batches=[2]), "@1100: found a batch of offsets 14 to 19"),
        ([(10, 14), (16, 19)], stretches((10, 15), (15, 20)), "@2000: found a batch of offsets 16 to 19"),
        ([(10, 13), (15, 19)], stretches((10, 15), (15, 20)), "@1100: found the end at offset 14"),
        ([(10, 14), (15, 19)], stretches((15, 20), batches=[2], is_cut=True), "offsets 10 to 14"),
        ([(16, 19)], stretches((15, 20), is_cut=True), "offsets 16 to 19"),
        ([(15, 17)], stretches((15, 20), is_cut=True), "found the end at offset 18"),
        ([(20, 24)], stretches((15, 20), is_cut=True, begins_at=20), "offsets 20 to 24"),
        ([(5, 9), (5, 9)], stretches((0, 20), batches=[2], segment=MERGED), "@1100: .* offsets 5 to 9"),
        ([(5, 9)], stretches((0, 20), segment=MERGED, begins_at=6), "offsets 5 to 9"),
        ([(10, 19)], stretches((10, 15), (15, 20), batches=[0.5, 0.5]), "offsets 10 to 19"),  # type: ignore[list-item]
    ],
)
def test_batches_that_are_not_those_of_their_extents(
    found: list[tuple[int, int]], known: Stretches, message: str
) -> None:
    with pytest.raises(CorruptLogError, match=message) as caught:
        validate_batches(table(*found), known)
    assert caught.value.code == "EXTENT_MISMATCH"


def test_headers_are_held_against_the_same_rules() -> None:
    def check(segment: str, next_offset: int | None, within: tuple[int, int] | None, first: int) -> None:
        span = Span(topic="t", partition=0, segment=segment, position=0, size=500)
        validate_next(span, 61, BatchHeader(base_offset=first, last_offset_delta=4), next_offset, within)

    check(DENSE, 10, None, 10)
    check(MERGED, 10, (10, 20), 12)
    check(DENSE, None, (10, 20), 15)
    for segment, next_offset, within, first in (
        (DENSE, 10, None, 11),
        (MERGED, 10, (0, 20), 9),
        (DENSE, None, (10, 20), 9),
        (MERGED, None, (10, 20), 16),
    ):
        with pytest.raises(CorruptLogError, match=r"t-0 in .*@61: found a batch"):
            check(segment, next_offset, within, first)


def test_damaged_batches_are_told_with_their_place_in_the_segment() -> None:
    batch = build_raw_batch()
    known = stretches((0, 2), (2, 4), begins_at=0, delta=0)
    object.__setattr__(known, "size", [len(batch)] * 2)
    damaged = bytearray(2 * batch)
    damaged[len(batch) + 16] = 9  # the second one's magic
    with pytest.raises(SparklogError, match=r"00000000\.log@2000"):
        scan_stretches(memoryview(damaged), known)


def test_a_batch_that_is_larger_than_what_was_read_must_fit_into_its_span() -> None:
    batch = build_raw_batch()
    span = Span(topic="t", partition=0, segment=DENSE, position=0, size=len(batch))
    assert first_batch_bytes(memoryview(batch)[:20], span, 0) == len(batch)
    for data, position in ((batch, 1), (b"", 0), (b"\0" * 12, 0)):
        with pytest.raises(CorruptLogError, match=f"@{position}: found a batch of"):
            first_batch_bytes(memoryview(data), span, position)
    assert len(scan_batches(batch, where="here")) == 1
