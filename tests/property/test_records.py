"""Property: the plain loop over records refuses exactly the bodies that the compiled one refuses."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.format import kernels
from sparklog.format.records import BadRecordError, inspect_body, walk_records
from tests.support.plain_records import record

LIKELY = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 14, 16, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
JUNK = st.one_of(st.binary(max_size=120), st.lists(LIKELY, max_size=120).map(bytes))
OPTIONAL = st.none() | st.binary(max_size=70)
DELTAS = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))


@st.composite
def records(draw: st.DrawFn, row: int) -> bytes:
    headers = draw(st.lists(st.tuples(st.binary(max_size=5), OPTIONAL), max_size=3))
    return record(draw(DELTAS), row, draw(OPTIONAL), draw(OPTIONAL), headers)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Bodies of records, perhaps damaged; and a count, perhaps wrong."""
    if draw(st.booleans()):
        return draw(JUNK), draw(st.integers(1, 12))
    count = draw(st.integers(1, 12))
    data = bytearray(b"".join(draw(records(row)) for row in range(count)))
    match draw(st.integers(0, 5)):
        case 0:
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        case 1:
            del data[draw(st.integers(0, len(data) - 1)) :]
        case 2:
            data += draw(JUNK)
        case 3:
            count = draw(st.integers(1, 20))
    return bytes(data), count


def is_refused(check: Any, *arguments: Any, **named: Any) -> bool:
    try:
        check(*arguments, **named)
    except BadRecordError:
        return True
    return False


@settings(max_examples=900, deadline=None)
@given(bodies())
def test_produced_bodies(case: tuple[bytes, int]) -> None:
    body, count = case
    assert is_refused(inspect_body, body, count) == is_refused(walk_records, body, count)


@settings(max_examples=900, deadline=None)
@given(bodies(), st.integers(-3, 12))
def test_stored_bodies(case: tuple[bytes, int], more: int) -> None:
    """Whose offset deltas may have gaps; what is within headers is looked at by a second call."""
    body, count = case
    last = max(0, count - 1 + more)
    data = np.frombuffer(body, np.uint8)
    columns = [np.array([number], np.int64) for number in (0, len(body), count, last)]
    fields = kernels.parse_records(data, *columns)
    is_right = fields is not None and kernels.parse_headers(data, fields[6], fields[7], fields[8])[0] == count
    assert is_right != is_refused(walk_records, body, count, last_offset_delta=last)
