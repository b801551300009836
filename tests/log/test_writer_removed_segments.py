"""Segments that are removed while their writer has them open."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import RetriableError
from sparklog.format.encode import EncodeOptions
from sparklog.format.encode_partitions import encode_partitions
from sparklog.format.schema import RecordColumns
from sparklog.log.writer import MAX_AGE_MS
from sparklog.maintenance import RETAIN_MS


@pytest.fixture(params=["local", "memory"])
def growing(request: pytest.FixtureRequest, growing_files: None) -> Any:
    """Files that grow after they were synced."""
    return request.getfixturevalue(request.param)


def test_an_append_leaves_a_removed_segment(growing: Any) -> None:
    first = growing.append([b"a"])
    growing.store.delete(first.segment)
    second, third = growing.append([b"b"]), growing.append([b"c"])
    assert first.segment != second.segment == third.segment


def test_an_append_to_several_partitions_too(growing: Any) -> None:
    first = growing.append([b"a"])
    growing.store.delete(first.segment)
    columns = RecordColumns(
        key=None, value=pa.array([b"b", b"c"], pa.binary()), timestamp_ms=np.array([1, 2], np.int64)
    )
    encoded = encode_partitions(columns, np.array([1, 1]), EncodeOptions())
    assert encoded is not None
    drafts = growing.writer.append_partitions(growing.topic_id, [0, 1], encoded, growing.config)
    growing.writer.sync(drafts)
    assert [draft.segment == first.segment for draft in drafts] == [False, False]


def test_what_was_not_synced_is_gone_with_its_file(growing: Any, encoder: Callable[..., Any]) -> None:
    growing.append([b"a"])
    mine, others = growing.draft(encoder([b"b"])), growing.draft(encoder([b"c"]))
    growing.store.delete(mine.segment)
    for drafts in ([mine], [others]):  # of two threads, say
        with pytest.raises(RetriableError, match="was removed while it was written to") as raised:
            growing.writer.sync(drafts)
        assert raised.value.code == "STAGING_EXPIRED"
    again = growing.append([b"b"])
    assert again.segment != mine.segment


def test_a_segment_grows_for_half_a_week_at_most(growing: Any) -> None:
    """Whatever segment.ms says: a sweep leaves a week to what was staged."""
    assert 2 * MAX_AGE_MS <= RETAIN_MS
    growing.config = dataclasses.replace(growing.config, segment_ms=1 << 40)
    first = growing.append([b"a"])
    growing.clock.sleep_ms(MAX_AGE_MS)
    assert growing.append([b"b"]).segment == first.segment
    growing.clock.sleep_ms(1)
    assert growing.append([b"c"]).segment != first.segment
