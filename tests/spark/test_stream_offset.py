"""The checkpoint's offset: Kafka's shape, versioned, and proof against the first micro-batch's crash."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidRequestError
from sparklog.spark.stream_offset import Positions, StreamOffset

topic_names = st.from_regex(r"\A[a-zA-Z0-9._-]{1,20}\Z").filter(lambda name: name not in (".", ".."))
positions = st.dictionaries(st.tuples(topic_names, st.integers(0, 99)), st.integers(0, 2**62), max_size=6)


def offset(
    positions: Positions, initial: Positions | None = None, kept: Positions | None = None
) -> StreamOffset:
    ids = {topic: "id-" + topic for topic, _ in positions}
    return StreamOffset(
        cluster_id="c" * 22, topic_ids=ids, positions=positions, initial=initial, kept=kept or {}
    )


@pytest.mark.slow
@given(positions, st.one_of(st.none(), positions), positions)
def test_round_trip(current: Positions, initial: Positions | None, kept: Positions) -> None:
    original = offset(current, initial, kept)
    assert StreamOffset.from_json(original.to_json()) == original


def test_topics_have_the_shape_that_readers_of_kafkas_offsets_expect() -> None:
    document = offset({("flights", 1): 5, ("flights", 0): 3}).to_json()
    assert document["flights"] == {"0": 3, "1": 5}
    assert all(type(n) is int for partitions in document.values() for n in partitions.values())
    assert list(document["flights"]) == ["0", "1"]


def test_is_initial_only_while_nothing_was_read() -> None:
    here = {("t", 0): 5}
    assert offset(here, initial=here).is_initial
    assert not offset({("t", 0): 6}, initial=here).is_initial
    assert not offset(here).is_initial


@pytest.mark.parametrize(
    "document",
    [{}, {"t": {"0": 5}}, {"@root": {}}, {"@root": {"c": 1}, "t": {"x": 1}}, {"@root": {"c": 1}, "t": [1]},
     {"@root": 3}, {"logOffset": 3}],
)  # fmt: skip
def test_another_sources_offset_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StreamOffset.from_json(document)
    assert caught.value.code == "INVALID_STREAM_OFFSET"


def test_a_newer_version_is_refused_not_guessed() -> None:
    with pytest.raises(InvalidRequestError, match="upgrade sparklog"):
        StreamOffset.from_json({"@root": {"c": 3}})


def test_what_the_first_version_can_say_stays_readable_for_it() -> None:
    assert offset({("t", 0): 5}).to_json()["@root"] == {"c" * 22: 1}
    assert offset({("t", 0): 5}, kept={("u", 0): 6}).to_json()["@root"] == {"c" * 22: 2}
