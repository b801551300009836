"""Small extents on an object store are fetched by object, not each by itself."""

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import CorruptLogError, DataLossError
from sparklog.log.segment_file import SegmentFiles
from sparklog.log.span import Span
from sparklog.maintenance import optimize
from sparklog.maintenance.fetched import Fetched, joined_ranges
from sparklog.storage import MemoryStore
from sparklog.storage.s3 import S3Store

PARTITIONS, PUBLISHES = 16, 5


def span(position: int, size: int, segment: str = "a.log", partition: int = 0) -> Span:
    return Span(topic="t", partition=partition, segment=segment, position=position, size=size)


def ranges(*spans: Span) -> list[tuple[str, int, int]]:
    return [(one.segment, one.position, one.end_position) for one in joined_ranges(spans)]


def test_what_lies_together_is_asked_for_at_once() -> None:
    assert ranges() == []
    assert ranges(span(40, 20), span(0, 40, partition=1)) == [("a.log", 0, 60)]
    assert ranges(span(0, 40), span(40, 20, "b.log")) == [("a.log", 0, 40), ("b.log", 40, 60)]


def test_a_gap_is_fetched_if_it_is_small_beside_what_is_wanted() -> None:
    assert ranges(span(0, 40), span(50, 10)) == [("a.log", 0, 60)]
    assert ranges(span(0, 40), span(51, 10)) == [("a.log", 0, 40), ("a.log", 51, 61)]
    # All gaps together.
    assert ranges(span(0, 40), span(50, 10), span(65, 10)) == [("a.log", 0, 60), ("a.log", 65, 75)]


def test_a_request_is_of_a_bounded_size() -> None:
    part = 1 << 20
    found = ranges(*(span(number * part, part) for number in range(9)))
    assert found == [
        ("a.log", 0, 4 * part),
        ("a.log", 4 * part, 8 * part),
        ("a.log", 8 * part, 9 * part),
    ]
    assert ranges(span(0, 9 * part)) == [("a.log", 0, 9 * part)]


def test_what_cannot_be_fetched_is_left_to_whoever_reads_it() -> None:
    store = MemoryStore("fetched")
    store.put_if_absent("a.log", bytes(range(100)))
    wanted = [span(0, 10), span(10, 10, partition=1), span(0, 10, "gone.log"), span(90, 20)]
    with SegmentFiles(store) as files:
        fetched = Fetched(files, wanted)
        buffer = memoryview(bytearray(10))
        assert fetched.read_into(wanted[1], buffer)
        assert bytes(buffer) == bytes(range(10, 20))
        for one in (wanted[2], wanted[3], span(15, 10), span(30, 10)):
            assert not fetched.read_into(one, memoryview(bytearray(one.size)))
        with pytest.raises(DataLossError, match="gone"):
            files.open(wanted[2])
        with pytest.raises(CorruptLogError, match="SEGMENT_TRUNCATED"):
            files.open(wanted[3]).read_exactly(wanted[3], 90, 20)


def read_all(log: SparkLog) -> list[list[bytes]]:
    return [log.read("t", p, 0)["value"].to_pylist() for p in range(PARTITIONS)]


def test_merging_asks_for_each_object_once(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", PARTITIONS)
        for number in range(PUBLISHES):
            values = [b"%d/%d" % (number, p) for p in range(PARTITIONS)]
            log.append("t", pa.table({"value": values, "partition": list(range(PARTITIONS))}))
        before = read_all(log)
    with sparklog.open(s3_root, create=False) as log:
        assert isinstance(log.store, S3Store)
        asked = log.store.requests["get_object"]
        assert optimize(log.metadata, log.clock).topics["t"].merged_extents == PUBLISHES * PARTITIONS
        # The objects, and following the log.
        assert log.store.requests["get_object"] - asked <= 2 * PUBLISHES
        assert read_all(log) == before
