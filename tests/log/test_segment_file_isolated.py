"""Names of the segments of isolated topics: what they tell, and in which directories a vacuum finds them."""

import pytest

from sparklog.log.segment_file import (
    index_base_offset,
    index_name,
    is_dense,
    is_merged,
    is_segment_directory,
    may_hold_segments,
    merged_segment_name,
    segment_name,
    segment_of,
    time_index_name,
)
from sparklog.metadata import isolated_prefix

WRITER = "0123456789abcdef" * 2
ID = "A" * 22
TOPICS = ["orders", "orders-eu", "a.b", "segments", "isolated", "orders-0", "x" * 249]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_writers_segment(topic: str) -> None:
    name = segment_name(WRITER, 7, 41, prefix=isolated_prefix(topic))
    assert name == f"isolated/{topic}/segments/{WRITER}/00000007.41.log"
    assert segment_of(name) == segment_of(index_name(name)) == name
    assert is_dense(name)
    assert not is_merged(name)
    assert index_base_offset(name) == 0


@pytest.mark.parametrize("topic", TOPICS)
def test_a_merged_segment(topic: str) -> None:
    name = merged_segment_name(topic, 3, 368_769, 41, ID, isolated=True)
    assert name == f"isolated/{topic}/{topic}-3/00000000000000368769.41-{ID}.log"
    assert segment_of(name) == segment_of(index_name(name)) == segment_of(time_index_name(name)) == name
    assert is_merged(name)
    assert not is_dense(name)
    assert index_base_offset(name) == 368_769


@pytest.mark.parametrize(
    "name",
    [
        f"isolated/segments/{WRITER}/00000007.41.log",
        f"isolated//segments/{WRITER}/00000007.41.log",
        f"isolated/a/b/segments/{WRITER}/00000007.41.log",
        f"isolated/a b/segments/{WRITER}/00000007.41.log",
        f"isolated/a/isolated/a/segments/{WRITER}/00000007.41.log",
        f"isolated/{'x' * 250}/segments/{WRITER}/00000007.41.log",
        f"other/a/segments/{WRITER}/00000007.41.log",
        "isolated/a/notes.txt",
    ],
)
def test_names_that_are_not_ours(name: str) -> None:
    assert segment_of(name) is None


@pytest.mark.parametrize("topic", TOPICS)
def test_a_vacuum_walks_into_the_directories_of_a_topic(topic: str) -> None:
    for name in (
        segment_name(WRITER, 7, 41, prefix=isolated_prefix(topic)),
        merged_segment_name(topic, 3, 0, 41, ID, isolated=True),
    ):
        parts = name.split("/")[:-1]
        directories = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        assert all(map(may_hold_segments, directories)), "parents are asked first"
        assert not any(map(is_segment_directory, directories[:2])), "an access list would go with it"
        assert all(map(is_segment_directory, directories[2:])), "empty ones go"


@pytest.mark.parametrize(
    "directory", ["isolated/a/notes", "isolated/a/b/c", "isolated/a b", "isolated/a/segments/x/y"]
)
def test_other_directories_are_left_alone(directory: str) -> None:
    assert not may_hold_segments(directory)
    assert not is_segment_directory(directory)
