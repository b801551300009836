"""Idempotent producers in a metadata log: what they append, and what forgets and merges it."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    Action,
    DraftExtent,
    ExpireProducers,
    Extent,
    Image,
    MetadataLog,
    PartitionState,
    Topic,
    plan_append,
    plan_expire_producers,
)
from tests.replacing import plan_replacing

Create = Callable[..., Topic]
Draft = Callable[..., DraftExtent]
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
OLD_MS = 1_300_000_000_000  # event times of years ago


class World:
    """A topic, and producers that write to it."""

    def __init__(self, log: MetadataLog, topic: Topic, draft: Draft) -> None:
        self.log, self.topic, self._draft = log, topic, draft

    def produce(
        self,
        producer_id: int,
        sequence: int = 0,
        *,
        epoch: int = 0,
        count: int = 1,
        partition: int = 0,
        time_ms: int = OLD_MS,
    ) -> int:
        """The offset. Raises what the plan raises."""
        draft = self._draft(
            self.topic,
            partition,
            record_count=count,
            max_timestamp_ms=time_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        self.log.publish(lambda image: [plan_append(image, [draft])])
        return self.state(partition).log_end_offset - count

    def expire(self, now_ms: int, expiration_ms: int = DAY_MS) -> bool:
        return bool(self.log.publish(lambda image: expiring(image, now_ms, expiration_ms)).actions)

    def forget_all(self) -> None:
        """Whoever has written until now."""
        self.log.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=True)])
        self.log.publish(lambda _: [ExpireProducers(time_ms=1)])

    def merge(self, start: int = 0, stop: int | None = None) -> None:
        """All extents, or some, into one that shows no producer."""
        extents = list(self.state().extents)[start:stop]
        merged = extent_of_many(extents)
        self.log.publish(lambda image: [plan_replacing(image, extents, [merged])])

    def state(self, partition: int = 0) -> PartitionState:
        return self.log.image.partition(self.topic.name, partition)

    def known(self, partition: int = 0) -> list[int]:
        return sorted(self.state(partition).producers)

    def refused(self, *args: int, **fields: int) -> str:
        before = self.log.image
        with pytest.raises(InvalidRequestError) as raised:
            self.produce(*args, **fields)
        assert self.log.image == before
        return raised.value.code


def expiring(image: Image, now_ms: int, expiration_ms: int = DAY_MS) -> list[Action]:
    action = plan_expire_producers(image, now_ms, expiration_ms)
    return [] if action is None else [action]


def extent_of_many(extents: Sequence[Extent]) -> Extent:
    first, last = extents[0], extents[-1]
    return msgspec.structs.replace(
        first,
        segment="segments/merged.log",
        record_count=last.end_offset - first.base_offset,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
