"""Producers that a partition has forgotten, or will: merging never makes a repeated batch a new one."""

from collections import Counter

import msgspec
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.maintenance import MergeLimits, compact, optimize
from sparklog.maintenance.work_loop import publish_replacements
from sparklog.metadata import (
    ReplaceExtents,
    last_batch,
    plan_advance_log_start,
    plan_append,
    plan_replace_extents,
    replacement,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.image import MergedBatch
from sparklog.metadata.model.sequences import merged_above
from tests.maintenance.conftest import extents

ALL = MergeLimits(fan_in=None)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition knows six producers; so three may have merged batches."""
    monkeypatch.setattr("sparklog.metadata.model.sequences.MAX_PRODUCERS", 6)


def produce(log: SparkLog, producer_id: int, sequence: int, size: int = 10) -> None:
    """One record of an idempotent producer."""
    import numpy as np

    columns = RecordColumns(
        key=None, value=pa.array([b"v" * size], pa.binary()), timestamp_ms=np.full(1, 5, np.int64)
    )
    encoded = encode_batches(columns, EncodeOptions())
    config = log.describe_topic("t").config
    draft = log.writer.append(log.image.topic("t").topic_id, 0, encoded, config)
    assert draft is not None
    log.writer.sync([draft])
    draft = msgspec.structs.replace(draft, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    log.metadata.publish(lambda image: [plan_append(image, [draft])])


def last(log: SparkLog, producer_id: int) -> int | None:
    found = last_batch(log.refresh().partition("t", 0), producer_id)
    return None if found is None else found.last_sequence


def test_who_has_merged_batches_beside_an_older_large_one_is_not_forgotten(log: SparkLog) -> None:
    log.alter_topic("t", {"segment.bytes": "100000"})
    produce(log, 1, 0, size=80_000)
    for sequence in (1, 2, 3):
        produce(log, 1, sequence)
    optimize(log.metadata, log.clock, limits=ALL)
    assert len(extents(log)) == 2
    for other in range(2, 20):
        produce(log, other, 0)
    assert last(log, 1) == 3
    with pytest.raises(InvalidRequestError) as raised:
        produce(log, 1, 1)
    assert raised.value.code == "DUPLICATE_SEQUENCE"
    produce(log, 1, 4)


def test_extents_of_who_was_forgotten_stay_as_they_are(log: SparkLog) -> None:
    produce(log, 1, 0)
    produce(log, 1, 1)
    for other in range(2, 9):
        produce(log, other, 0)
    produce(log, 8, 1)
    before = extents(log)
    optimize(log.metadata, log.clock, limits=ALL)
    assert extents(log) == before  # more than three of them are known: none is merged, nor those forgotten
    assert last(log, 1) == 1
    state = log.image.partition("t", 0)
    columns = state.extents.columns_between(0, 2)
    action = replacement(columns, [], topic_id=state.topic_id, partition=0)
    with pytest.raises(RetriableError, match="of an unknown producer"):
        plan_replace_extents(log.image, action)
    with pytest.raises(ActionRefusedError, match="of an unknown producer"):
        apply_actions(log.image, [action], commit=log.image.commit + 1, commit_uuid="U" * 22)


def test_half_of_those_known_may_have_merged_batches(log: SparkLog) -> None:
    for producer in (1, 2, 3):
        produce(log, producer, 0)
    optimize(log.metadata, log.clock, limits=ALL)
    assert len(extents(log)) == 1
    for producer in (4, 5):
        produce(log, producer, 0)
    for sequence in (1, 2):
        produce(log, 1, sequence)
    optimize(log.metadata, log.clock, limits=ALL)
    assert [extent.producer_id for extent in extents(log)] == [-1, 4, 5, -1]
    # Retention makes room.
    action = plan_advance_log_start(log.image, log.image.topic("t").topic_id, 0, 3)
    assert action is not None
    log.metadata.publish(lambda _: [action])
    assert set(log.image.partition("t", 0).merged_batches) == {1}
    optimize(log.metadata, log.clock, limits=ALL)
    assert len(extents(log)) == 1
    assert set(log.image.partition("t", 0).merged_batches) == {1, 4, 5}


def replacing(log: SparkLog, start: int, stop: int) -> ReplaceExtents:
    """Of these extents, by nothing."""
    state = log.refresh().partition("t", 0)
    columns = state.extents.columns_between(start, stop)
    return replacement(columns, [], topic_id=state.topic_id, partition=0)


@pytest.mark.parametrize(
    ("producers", "published"),
    [((1, 2, 3, 4), [True, False]), ((1, 2, 2, 3), [True, True]), ((1, 2, 3, 4, 1, 2), [True, False, True])],
)
def test_replacements_of_one_commit_share_the_room(
    log: SparkLog, producers: tuple[int, ...], published: list[bool]
) -> None:
    """Each has room enough by itself."""
    sequences: Counter[int] = Counter()
    for producer in producers:
        produce(log, producer, sequences[producer])
        sequences[producer] += 1
    actions = [replacing(log, start, start + 2) for start in range(0, len(producers), 2)]
    for action in actions:
        assert plan_replace_extents(log.image, action) is action
    done = publish_replacements(log.metadata, actions)
    assert [action in done.actions for action in actions] == published
    assert len(log.image.partition("t", 0).merged_batches) <= 3


def test_of_replacements_that_overlap_the_first_is_made(log: SparkLog) -> None:
    for producer in (1, 2, 3):
        produce(log, producer, 0)
    first, other = replacing(log, 0, 2), replacing(log, 1, 3)
    assert publish_replacements(log.metadata, [first, other, first]).actions == (first,)


def test_what_has_no_producer_is_merged_all_the_same(log: SparkLog) -> None:
    for producer in range(1, 9):
        produce(log, producer, 0)
    for _ in range(3):
        log.append("t", pa.table({"value": [b"v"]}), partition=0)
    optimize(log.metadata, log.clock, limits=ALL)
    assert [extent.producer_id for extent in extents(log)] == [*range(1, 9), -1]


def test_a_compaction_ends_before_what_it_may_not_replace(log: SparkLog) -> None:
    """Or it would be done in vain, again and again."""
    log.append("t", pa.table({"key": [b"k"], "value": [b"v"]}), partition=0)
    log.append("t", pa.table({"key": [b"k"], "value": [b"w"]}), partition=0)
    for producer in range(1, 9):  # two are forgotten, and there is no room for the others
        produce(log, producer, 0)
    log.alter_topic("t", {"cleanup.policy": "compact"})
    one = compact(log.metadata, log.clock).topics["t"]
    assert (one.rounds, one.left_out, one.superseded) == (1, 0, 1)
    assert [extent.producer_id for extent in extents(log)] == [-1, *range(1, 9)]
    assert log.image.partition("t", 0).cleaned.first_dirty_offset == 2


def test_a_batch_that_the_log_start_cuts_is_remembered(log: SparkLog) -> None:
    """Its last records are there, and may be repeated with the others."""
    batch = MergedBatch(producer_epoch=0, base_sequence=0, base_offset=5, record_count=3)
    merged = {7: (batch,)}
    assert [merged_above(merged, start) for start in (5, 7, 8)] == [merged, merged, {}]
