"""Partitioning: explicit beats key beats sticky; keys go where Kafka's Java client puts them."""

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client.waiting_rows import StickyPartitioner, group_rows, partition_rows
from sparklog.errors import InvalidRequestError


def assign(key: list[bytes | None] | None, explicit: list[int | None] | None, partitions: int) -> list[int]:
    rows = len(key or explicit or [])
    chosen: list[int] = partition_rows(
        None if key is None else pa.array(key, pa.binary()),
        None if explicit is None else pa.array(explicit, pa.int64()),
        partitions,
        StickyPartitioner(turn=5),
        rows=rows,
    ).tolist()
    return chosen


def test_keys_go_where_the_java_client_puts_them() -> None:
    # The hashes of Kafka's own UtilsTest.
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    expected = [(number & 0x7FFFFFFF) % 7 for number in hashes.values()]
    assert assign(list(hashes), None, 7) == expected


def test_explicit_beats_key_beats_sticky() -> None:
    key = (-973932308 & 0x7FFFFFFF) % 100
    assert assign([b"21", b"21", None, None], [3, None, 4, None], 100) == [3, key, 4, 5]


def test_an_explicit_partition_out_of_range_names_the_first_bad_row() -> None:
    for bad in (4, -1):
        with pytest.raises(InvalidRequestError, match=rf"row 2: found partition {bad}, expected 0 to 3"):
            assign(None, [0, None, bad, 9], 4)


def test_rows_without_key_stay_with_a_partition_for_a_run() -> None:
    sticky = StickyPartitioner(turn=1, run_bytes=1000)
    first = partition_rows(None, None, 3, sticky, rows=25, row_bytes=100)
    second = partition_rows(None, None, 3, sticky, rows=25, row_bytes=100)
    both = np.concatenate([first, second]).tolist()
    assert both == [1] * 10 + [2] * 10 + [0] * 10 + [1] * 10 + [2] * 10


def test_an_empty_batch_has_no_partitions() -> None:
    assert assign([], [], 3) == []
    assert group_rows(np.zeros(0, np.int32)) == []


def test_grouping_keeps_the_order_of_rows() -> None:
    partition = np.array([2, 0, 2, 70_000, 0], np.int32)
    groups = group_rows(partition)
    assert [(number, rows.tolist() if rows is not None else None) for number, rows in groups] == [
        (0, [1, 4]),
        (2, [0, 2]),
        (70_000, [3]),
    ]
    assert group_rows(np.array([7, 7], np.int32)) == [(7, None)]
