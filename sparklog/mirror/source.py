"""What a mirror needs of the cluster that it copies; kafka_source.py is the real one.

Invariants: offsets of a partition ascend from fetch to fetch; only committed records are fetched.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import SparklogError

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """A topic of the cluster.

    Fields:
        topic_id: "" where the cluster does not say: brokers before Kafka 2.8.
        configs: the topic's own settings, without inherited ones.
    """

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Records of any partitions.

    Fields:
        rows: columns key, value, headers, timestamp, partition, topic, as rows.py takes them; None: none.
        offsets: of the records of each partition, in order.
        reached: partitions whose end was reached, and the offset of that end.
    """

    rows: pa.RecordBatch | None = None
    offsets: Mapping[TopicPartition, npt.NDArray[np.int64]] = field(default_factory=dict)
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)


class Source(Protocol):
    """A cluster.

    All but `cluster_id`, `assign`, `pause` and `unreachable` ask it, and raise:
        RetriableError: SOURCE_UNREACHABLE, it does not answer; SOURCE_FAILED, it refuses.
    `fetch` also raises:
        DataLossError: DATA_LOSS, what is to be fetched next is gone.
    """

    @property
    def cluster_id(self) -> str: ...

    def topics(self) -> dict[str, SourceTopic]:
        """Return all topics but Kafka's internal ones, without their settings."""
        ...

    def with_configs(self, topics: Collection[SourceTopic]) -> list[SourceTopic]:
        """Return the topics with their settings and ids."""
        ...

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of these topics as they are now, without those that are gone."""
        ...

    def ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the end of the committed records of each partition."""
        ...

    def group_offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """Return what each group has committed."""
        ...

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from now on, each from its position, and no others."""
        ...

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these partitions no more, until the next `assign`."""
        ...

    def fetch(self, wait_s: float) -> Fetched:
        """Return what has arrived, after waiting for so long if need be."""
        ...

    def unreachable(self) -> SparklogError:
        """Return the error for a cluster that sends nothing."""
        ...
