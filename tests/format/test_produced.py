"""Rules for batches that clients hand in."""

from collections.abc import Callable

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.format.produced import inspect_records, validate_produced_header
from sparklog.format.record_batch import parse_header
from tests.support.plain_records import varint

Build = Callable[..., bytes]


def test_ordinary_and_idempotent_batches_pass(raw_batch: Build, raw_record: Build) -> None:
    two = raw_batch(
        raw_record() + raw_record(offset_delta=1),
        record_count=2,
        producer_id=0,
        producer_epoch=0,
        base_sequence=0,
        attributes=0x10,
    )
    for data in (raw_batch(), two):
        validate_produced_header(parse_header(data, 0, "here"), where="here")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"record_count": 0, "last_offset_delta": 0, "body": b""}, "record_count 0"),
        ({"record_count": 1, "last_offset_delta": 1}, r"last_offset_delta \+ 1 of 2"),
        ({"attributes": 0x20}, "a control batch"),
        ({"producer_id": 5, "producer_epoch": -1, "base_sequence": 0}, "producer_epoch -1"),
        ({"producer_id": 5, "producer_epoch": 0}, "base_sequence -1"),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -7}, "base_sequence -7"),
        ({"attributes": 0x10}, "producer_id -1 in a transaction"),
    ],
)
def test_what_producers_may_not_write(raw_batch: Build, fields: dict[str, int], found: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"INVALID_BATCH.*here: found {found}"):
        validate_produced_header(parse_header(raw_batch(**fields), 0, "here"), where="here")


LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("more", [0, 300])
@pytest.mark.parametrize(
    ("first", "deltas", "lowest", "highest"),
    [
        (1_000, [0, 5, -3], 997, 1_005),
        (-1, [0, LOWEST], -1, HIGHEST),
        (HIGHEST, [0, 1], LOWEST, HIGHEST),
        (LOWEST, [0, HIGHEST, -1], LOWEST, HIGHEST),
    ],
)
def test_the_times_of_a_batch_are_those_of_its_records(
    raw_batch: Build, raw_record: Build, first: int, deltas: list[int], lowest: int, highest: int, more: int
) -> None:
    """Which wrap, as readers add them: the smallest delta may make the largest time."""
    deltas = [*deltas, *[0] * more]
    body = b"".join(
        raw_record(timestamp_delta=varint(delta), offset_delta=row) for row, delta in enumerate(deltas)
    )
    batch = raw_batch(body, record_count=len(deltas), first_timestamp_ms=first, max_timestamp_ms=highest)
    found = inspect_records(batch, parse_header(batch, 0, "here"), where="here")
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (lowest, highest)
