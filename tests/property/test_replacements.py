"""What plans of replacements and their effect make of each other, over images and replacements at random.

The plan leaves out what does not apply, since one that is refused would take the others of its commit with
it; and nothing that would apply, since its work would be done again forever.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from sparklog.errors import InvalidRequestError, RetriableError, UnknownTopicError
from sparklog.metadata import (
    Action,
    AppendExtents,
    CreateTopic,
    Extent,
    Image,
    MoveSweepHorizon,
    ReplaceExtents,
    apply_actions,
    empty_image,
    plan_replace_extents,
    plan_replacements,
    replacement,
)
from sparklog.metadata.model.action import ActionRefusedError

TOPIC, OTHER = "T" * 22, "O" * 22
PARTITIONS = 2
HORIZON = 3
# Born before the horizon, at it, and at no commit that their names would say.
SEGMENTS = [*(f"segments/w/{number:08}.{number}.log" for number in range(1, 5)), "t-0/merged.log"]


def following(image: Image, actions: Sequence[Action]) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="U" * 22)


@st.composite
def images(draw: st.DrawFn) -> Image:
    """Partitions with extents in a few segments, of a few producers."""
    made = [CreateTopic(topic_id=TOPIC, name="t", partitions=PARTITIONS)]
    image = following(empty_image("C" * 22), made)
    ends: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    sequences: dict[tuple[int, int], int] = {}
    extents = []
    for position in range(draw(st.integers(1, 12))):
        partition, count = draw(st.integers(0, PARTITIONS - 1)), draw(st.integers(1, 3))
        producer = draw(st.sampled_from([-1, -1, 1, 2]))
        sequence = -1 if producer < 0 else sequences.get((partition, producer), 0)
        if producer >= 0:
            sequences[partition, producer] = sequence + count
        extents.append(
            Extent(
                topic_id=TOPIC,
                partition=partition,
                segment=draw(st.sampled_from(SEGMENTS)),
                position=position * 100,
                size=100,
                base_offset=ends[partition],
                record_count=count,
                max_timestamp_ms=0,
                offset_delta=ends[partition],
                producer_id=producer,
                producer_epoch=-1 if producer < 0 else 0,
                base_sequence=sequence,
            )
        )
        ends[partition] += count
    image = following(image, [AppendExtents(extents=tuple(extents))])
    for _ in range(HORIZON):
        image = following(image, [])
    return following(image, [MoveSweepHorizon(horizon=HORIZON)]) if draw(st.booleans()) else image


@st.composite
def replacements(draw: st.DrawFn, image: Image) -> ReplaceExtents:
    """Of extents that are there; sometimes not quite."""
    partition = draw(st.integers(0, PARTITIONS - 1))
    state = image.partition("t", partition)
    start = draw(st.integers(0, len(state.extents)))
    stop = draw(st.integers(start, len(state.extents)))
    if start == stop:
        nothing = ReplaceExtents(
            topic_id=TOPIC,
            partition=partition,
            start_offset=0,
            end_offset=0,
            removed_count=0,
            removed_crc32c=0,
        )
        return draw(strange(nothing))
    removed = state.extents.columns_between(start, stop)
    first, last = state.extents[start], state.extents[stop - 1]
    merged = msgspec.structs.replace(
        first,
        segment=draw(st.sampled_from(SEGMENTS)),
        position=0,
        record_count=last.end_offset - first.base_offset,
        offset_delta=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    action = replacement(removed, draw(st.sampled_from([[merged], []])), topic_id=TOPIC, partition=partition)
    return draw(strange(action))


@st.composite
def strange(draw: st.DrawFn, action: ReplaceExtents) -> ReplaceExtents:
    """The action, or one that differs from it in something."""
    changes: list[dict[str, Any]] = [{}] * 40
    changes += [
        {"topic_id": OTHER},
        {"partition": PARTITIONS},
        {"start_offset": action.start_offset + 1},
        {"start_offset": action.start_offset - 1},
        {"end_offset": action.end_offset + 1},
        {"end_offset": action.end_offset - 1},
        {"removed_count": action.removed_count + 1},
        {"removed_crc32c": action.removed_crc32c ^ 1},
        {"added": action.added * 2},
        {"added": tuple(msgspec.structs.replace(one, partition=one.partition ^ 1) for one in action.added)},
        {"added": tuple(msgspec.structs.replace(one, size=0) for one in action.added)},
        {"added": tuple(msgspec.structs.replace(one, record_count=99) for one in action.added)},
    ]
    return msgspec.structs.replace(action, **draw(st.sampled_from(changes)))


def is_made_wrong(action: ReplaceExtents) -> bool:
    """Whatever the image is."""
    end = action.start_offset
    for extent in action.added:
        theirs = (extent.topic_id, extent.partition) != (action.topic_id, action.partition)
        if (
            theirs
            or not extent.size
            or not end <= extent.base_offset < extent.end_offset <= action.end_offset
        ):
            return True
        end = extent.end_offset
    return False


def refused(image: Image, actions: Sequence[Action]) -> bool:
    try:
        following(image, actions)
    except ActionRefusedError:
        return True
    return False


@given(st.data())
def test_a_plan_has_what_applies_and_nothing_else(data: st.DataObject) -> None:
    image = data.draw(images())
    actions = data.draw(st.lists(replacements(image), min_size=1, max_size=5))
    wrong = [action for action in actions if is_made_wrong(action)]
    if wrong:
        with pytest.raises(InvalidRequestError):
            plan_replacements(image, actions)
        assert all(refused(image, [action]) for action in wrong)
        return
    planned = plan_replacements(image, actions)
    following(image, planned)
    event(f"planned: {len(planned)} of {len(actions)}")
    taken: list[Action] = []
    left = list(planned)
    for action in actions:
        if left and action is left[0]:
            taken.append(left.pop(0))
        else:
            assert refused(image, [*taken, action])
    assert not left


@given(st.data())
def test_so_has_a_plan_of_one(data: st.DataObject) -> None:
    image = data.draw(images())
    action = data.draw(replacements(image))
    planned: list[Action] = []
    with suppress(InvalidRequestError, RetriableError, UnknownTopicError):
        planned.append(plan_replace_extents(image, action))
    if planned:
        following(image, planned)
    else:
        assert refused(image, [action])
