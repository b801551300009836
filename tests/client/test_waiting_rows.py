"""WaitingRows: rows of a partition come out once and in order, small partitions together."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client import waiting_rows as module
from sparklog.client.rows import Piece
from sparklog.client.waiting_rows import WaitingRows
from sparklog.format.byte_views import ByteViews
from sparklog.format.schema import HEADERS_TYPE

PARTITIONS = 6


def piece(first: int, count: int, *, size: int = 20, keyed: bool = True, headers: bool = False) -> Piece:
    """Rows whose values and timestamps are their numbers."""
    numbers = range(first, first + count)
    return Piece(
        key=ByteViews.of(pa.array([b"k%d" % n for n in numbers], pa.binary())) if keyed else None,
        value=ByteViews.of(pa.array([b"%08d" % n + b"." * (size - 8) for n in numbers], pa.binary())),
        headers=pa.array([[{"key": "n", "value": b"%d" % n}] for n in numbers], HEADERS_TYPE)
        if headers
        else None,
        timestamp_ms=np.arange(first, first + count, dtype=np.int64),
    )


def numbers_of(found: Piece) -> list[int]:
    """The rows' numbers, which every column must agree on."""
    times: list[int] = found.timestamp_ms.tolist()
    assert found.value is not None
    assert found.value.length.tolist() == [20] * len(times)
    # The first 4 bytes of a value of more than 12 are in its view; the others in its buffer.
    buffers, low = found.value.buffers, found.value.views[:, 1]
    values = [int(buffers[word & 0xFFFFFFFF][word >> 32 :][:8].tobytes()) for word in low.tolist()]
    assert values == times
    if found.headers is not None:
        headers = [None if row is None else int(row[0]["value"]) for row in found.headers.to_pylist()]
        assert [n for n in headers if n is not None] == [
            time for time, header in zip(times, headers, strict=True) if header is not None
        ]
    return times


ADDED = st.lists(
    st.tuples(st.lists(st.integers(0, PARTITIONS - 1), max_size=12), st.booleans(), st.booleans()), max_size=6
)


@given(added=ADDED, early=st.lists(st.integers(0, 5), max_size=3), most_rows=st.sampled_from([1, 7, 1000]))
def test_each_row_comes_out_once_and_in_order(
    added: list[tuple[list[int], bool, bool]], early: list[int], most_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROWS", most_rows)
        waiting = WaitingRows(PARTITIONS)
        expected: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        first = 0
        for count, (partition, keyed, headers) in enumerate(added):
            rows = piece(first, len(partition), keyed=keyed, headers=headers)
            waiting.add(rows, np.array(partition, np.int32))
            for row, number in enumerate(partition):
                expected[number].append(first + row)
            first += len(partition)
            if count in early and partition:
                found[partition[0]] += numbers_of(waiting.take(partition[0]))
        groups = list(waiting.take_all())
        for group in groups:
            assert len(group.partition) == 1 or group.piece.num_rows <= most_rows
            assert group.piece.num_rows == group.rows.sum()
            for number, rows in group.split():
                found[number] += numbers_of(rows)
        taken = [number for group in groups for number in group.partition.tolist()]
        assert taken == sorted(set(taken))
        assert found == expected
        assert list(waiting.take_all()) == []


def test_large_partitions_come_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 100)
    waiting = WaitingRows(PARTITIONS)
    waiting.add(piece(0, 12, keyed=False), np.array([0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 0], np.int32))
    groups = [group.partition.tolist() for group in waiting.take_all()]
    assert groups == [[0, 1], [2, 3], [4], [5]]  # 28 bytes a row


def test_who_is_full_is_said_by_bytes_of_all_that_wait() -> None:
    waiting = WaitingRows(PARTITIONS)
    assert waiting.at_least(1) == []
    waiting.add(piece(0, 3, keyed=False), np.array([1, 2, 1], np.int32))
    assert waiting.at_least(56) == [1]
    waiting.add(piece(3, 1, keyed=False), np.array([2], np.int32))
    assert waiting.at_least(56) == [2]  # of those that were added last: 1 was said before
    assert numbers_of(waiting.take(2)) == [1, 3]
    waiting.add(piece(4, 1, keyed=False), np.array([2], np.int32))
    assert waiting.at_least(56) == []
    assert waiting.at_least(28) == [2]


def test_no_rows_are_nothing() -> None:
    waiting = WaitingRows(PARTITIONS)
    assert waiting.add(piece(0, 0), np.zeros(0, np.int32)) == 0
    assert list(waiting.take_all()) == []


def test_pieces_that_are_empty_are_not_kept_alive() -> None:
    waiting = WaitingRows(PARTITIONS)
    waiting.add(piece(0, 2), np.array([1, 1], np.int32))
    waiting.add(piece(2, 2), np.array([1, 2], np.int32))
    waiting.take(1)
    assert len(waiting.pieces) == 1
