"""Which rows of an array are null, by its validity bitmap, wherever a slice of it begins."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.format.byte_views import null_mask


@given(st.lists(st.none() | st.binary(max_size=3), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_null_where_arrow_says_so(values: list[bytes | None], start: int, size: int) -> None:
    array = pa.array(values, pa.binary()).slice(min(start, len(values)), size)
    mask = null_mask(array)
    expected = [value is None for value in array.to_pylist()]
    if mask is None:
        assert not any(expected)
    else:
        assert mask.tolist() == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_all_null(kind: pa.DataType) -> None:
    mask = null_mask(pa.nulls(3, kind))
    assert mask is not None
    assert mask.all()
    assert len(mask) == 3
