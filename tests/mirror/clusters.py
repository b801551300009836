"""A cluster in memory, as the source of a mirror."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparklog.errors import RetriableError, SparklogError
from sparklog.mirror.source import Fetched, SourceTopic

TopicPartition = tuple[str, int]


@dataclass
class Partition:
    """Offsets of the records, and the end; values are their offsets as text."""

    offsets: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0


class Cluster:
    """Topics of `Partition`s; `fetch` returns at most `step` records."""

    cluster_id = "cluster-1"

    def __init__(self, step: int = 3) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.ids: dict[str, str] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.step = step
        self.assigned: dict[TopicPartition, int] = {}
        self.fetched = 0

    def add(
        self, topic: str, partition: int = 0, *, offsets: Collection[int], end: int | None = None
    ) -> None:
        found = self.partitions.setdefault((topic, partition), Partition(start=min(offsets, default=0)))
        found.offsets += offsets
        found.end = max(found.offsets, default=-1) + 1 if end is None else end

    def remove_before(self, at: TopicPartition, offset: int) -> None:
        """As retention does."""
        found = self.partitions[at]
        found.start = offset
        found.offsets = [one for one in found.offsets if one >= offset]

    def topics(self) -> dict[str, SourceTopic]:
        counts: dict[str, int] = {}
        for topic, _ in self.partitions:
            counts[topic] = counts.get(topic, 0) + 1
        return {
            name: SourceTopic(name=name, topic_id="", partitions=count, configs={})
            for name, count in counts.items()
        }

    def with_configs(self, topics: Collection[SourceTopic]) -> list[SourceTopic]:
        return [
            SourceTopic(
                name=topic.name,
                topic_id=self.topic_ids([topic.name])[topic.name],
                partitions=topic.partitions,
                configs=self.configs.get(topic.name, {}),
            )
            for topic in topics
        ]

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        there = {topic for topic, _ in self.partitions}
        return {name: self.ids.get(name, f"id-of-{name}") for name in names if name in there}

    def ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {at: (self.partitions[at].start, self.partitions[at].end) for at in partitions}

    def group_offsets(self) -> dict[str, dict[TopicPartition, int]]:
        return self.groups

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.assigned = dict(positions)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self.assigned.pop(at, None)

    def fetch(self, wait_s: float) -> Fetched:
        del wait_s
        offsets: dict[TopicPartition, np.ndarray] = {}
        reached: dict[TopicPartition, int] = {}
        for at, position in self.assigned.items():
            found = [one for one in self.partitions[at].offsets if one >= position][: self.step]
            if found:
                offsets[at] = np.array(found)
                self.assigned[at] = found[-1] + 1
                self.fetched += len(found)
            elif position <= self.partitions[at].end:
                reached[at] = self.assigned[at] = self.partitions[at].end
        if not offsets:
            return Fetched(reached=reached)
        every = [(at, offset) for at, some in offsets.items() for offset in some.tolist()]
        rows = pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"k%d" % offset for _, offset in every], pa.binary()),
                "value": pa.array([b"%d" % offset for _, offset in every], pa.binary()),
                "timestamp": pa.array([1_000 + offset for _, offset in every], pa.int64()),
                "partition": pa.array([at[1] for at, _ in every], pa.int64()),
                "topic": pa.array([at[0] for at, _ in every], pa.string()),
            }
        )
        return Fetched(rows=rows, offsets=offsets, reached=reached)

    def unreachable(self) -> SparklogError:
        return RetriableError("SOURCE_UNREACHABLE", "cluster-1 is silent", fix="wait")


class Never:
    """It is never asked to stop."""

    def is_asked(self) -> bool:
        return False


class After:
    """It is asked to stop the n-th time that somebody looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def is_asked(self) -> bool:
        self.left -= 1
        return self.left < 0
