"""Versions of compaction with one of its rules switched off (mutants.py says what these are)."""

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import Codec
from sparklog.log.config import TopicConfig
from sparklog.maintenance import choose
from sparklog.maintenance import compaction as _compact
from sparklog.maintenance.choose import CompactionLimits
from sparklog.maintenance.compacted_batches import Compacted, OffsetMap, Round, compacted
from sparklog.maintenance.compaction import CompactionResult
from sparklog.metadata import (
    Action,
    Cleaned,
    ExtentColumns,
    Image,
    MetadataLog,
    PartitionState,
    plan_note_cleaned,
    plan_replacements,
)
from sparklog.metadata.model import extents as rewriting
from sparklog.metadata.model.sweeping import NoteCleaned


def no_horizon() -> AbstractContextManager[object]:
    """A tombstone that is kept may go at once."""
    return mock.patch.object(Round, "horizon_ms", property(lambda self: self.now_ms))


@contextmanager
def no_lag() -> Iterator[None]:
    """Records of any age are compacted."""
    original = choose._cleanable

    def cleanable(
        state: PartitionState,
        columns: ExtentColumns,
        config: TopicConfig,
        now_ms: int,
        limits: CompactionLimits,
    ) -> int:
        config = dataclasses.replace(config, min_compaction_lag_ms=0)
        return original(state, columns, config, now_ms, limits)

    with mock.patch.object(choose, "_cleanable", cleanable):
        yield


@contextmanager
def no_last_batch() -> Iterator[None]:
    """An empty batch goes, also where the round ends."""

    def one_later(
        round_: Round, data: memoryview, table: BatchTable, codec: Codec | None, step_bytes: int, where: str
    ) -> Compacted:
        round_.end_offset += 1
        try:
            return compacted(round_, data, table, codec, step_bytes, where)
        finally:
            round_.end_offset -= 1

    with mock.patch.object(_compact, "compacted", one_later):
        yield


def _publish_in_part(metadata: MetadataLog, result: CompactionResult) -> bool:
    def plan(image: Image) -> list[Action]:
        work, cleaned = result.work, result.cleaned
        actions = plan_replacements(image, result.replacements)
        state = image.partition_of(work.topic_id, work.partition)
        if cleaned.first_dirty_offset < state.cleaned.first_dirty_offset:
            return [*actions]
        noted = plan_note_cleaned(image, work.topic_id, work.partition, cleaned)
        return [*actions, *([] if noted is None else [noted])]

    metadata.publish(plan)
    return True


def in_part() -> AbstractContextManager[object]:
    """Of a round is published what still applies."""
    return mock.patch.object(_compact, "publish_compaction", _publish_in_part)


@contextmanager
def no_room() -> Iterator[None]:
    """A round goes on when its map is full."""
    original = OffsetMap.put

    def put(self: OffsetMap, keys: object, offset: object) -> int:
        original(self, keys, offset)  # type: ignore[arg-type]
        return len(offset)  # type: ignore[arg-type]

    with mock.patch.object(OffsetMap, "put", put):
        yield


def to_the_end() -> AbstractContextManager[object]:
    """A round notes that all is compacted that is there when it is published."""

    def plan(image: Image, topic_id: str, partition: int, cleaned: Cleaned) -> NoteCleaned | None:
        state = image.partition_of(topic_id, partition)
        return plan_note_cleaned(
            image, topic_id, partition, Cleaned(state.log_end_offset, cleaned.delete_horizon_ms)
        )

    return mock.patch.object(_compact, "plan_note_cleaned", plan)


def no_memory() -> AbstractContextManager[object]:
    """A partition does not remember the producers of extents that make way."""
    return mock.patch.object(rewriting, "remember_merged", lambda state, _removed: state.merged_batches)
