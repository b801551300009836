"""Positions of a mirror, and anchors between offsets of the source and offsets here."""

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import CorruptLogError
from sparklog.metadata import why_illegal_topic_name
from sparklog.mirror.positions import (
    ANCHOR_OFFSETS,
    Anchors,
    Position,
    position_rows,
    positions_topic,
    read_positions,
)


@pytest.mark.parametrize("cluster_id", ["uVGkhHD7TDuEvA_NY20DsA", "host:9092,[::1]:9092", "x" * 500])
def test_names_of_topics_are_legal(cluster_id: str) -> None:
    assert why_illegal_topic_name(positions_topic(cluster_id)) is None


def test_the_newest_position_counts(tmp_path: Path) -> None:
    first = Position(position=5, end=3, topic_id="t")
    newest = Position(position=9, end=4, topic_id="t", source_topic_id="s")
    with sparklog.open(tmp_path) as log:
        assert read_positions(log, "positions") == ({}, {})
        for positions in ({("a.b", 0): first, ("a.b", 10): first}, {("a.b", 0): newest}):
            log.append("positions", position_rows(positions))
        found, _ = read_positions(log, "positions")
    assert found == {("a.b", 0): newest, ("a.b", 10): first}


@pytest.mark.parametrize("value", ["", "{}", '{"position": "x"}', "[]"])
def test_other_records_are_refused(tmp_path: Path, value: str) -> None:
    with sparklog.open(tmp_path) as log:
        log.append("positions", pa.table({"key": ["a:0"], "value": [value]}))
        with pytest.raises(CorruptLogError, match="positions-0@0: expected a position of a mirror"):
            read_positions(log, "positions")


def test_anchors_enclose_an_offset() -> None:
    anchors = Anchors()
    far = 3 * ANCHOR_OFFSETS
    anchors.add(10, 10)  # near the one at 0
    anchors.add(far, 100)
    last = (far + 500, 120)
    assert anchors.around(0, last) == ((0, 0), (far, 100))
    assert anchors.around(far - 1, last) == ((0, 0), (far, 100))
    assert anchors.around(far, last) == ((far, 100), last)
