"""What is in the log: partitions, their offsets and sizes, and how far groups are behind.

Invariants: a partition is told of by one broker (cluster_families.py), and a group by its coordinator; rows
    are bounded by partitions and by what groups have committed.
Concurrency: one scrape at a time (collector.py).
Sources: kafka_exporter's README.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog.metadata import Image, PartitionState
from sparklog_server.observe.cluster_families import Standing
from sparklog_server.observe.families import Labels, gauges
from sparklog_server.observe.observation import GroupView, Observation


def partition_families(seen: Observation, standing: Standing) -> Iterator[Metric]:
    """Sizes and offsets, as Kafka and kafka_exporter show them, of what this broker tells of."""
    states = [(one.labels, one.state) for one in standing.told]
    yield gauges(
        "kafka_log_log_size",
        "Stored bytes.",
        ((labels, state.extents.stored_bytes) for labels, state in states),
    )
    yield gauges(
        "kafka_topic_partitions",
        "Partitions of a topic; from the controller.",
        (
            ({"topic": name}, len(topic.partitions))
            for name, topic in seen.image.topics.items()
            if seen.is_controller
        ),
    )
    yield gauges(
        "kafka_topic_partition_current_offset",
        "The next offset.",
        ((labels, state.log_end_offset) for labels, state in states),
    )
    yield gauges(
        "kafka_topic_partition_oldest_offset",
        "The first offset that is kept.",
        ((labels, state.log_start_offset) for labels, state in states),
    )


def group_families(seen: Observation) -> Iterator[Metric]:
    """Committed offsets and lag, in records and in seconds."""
    offsets, lags, seconds = [], [], []
    sums: dict[str, float] = {}
    for group in seen.groups:
        for where, committed in sorted(dict(group.offsets).items(), key=lambda item: item[0]):
            offset = committed.offset
            if offset < 0:
                continue  # reset by an administrator: none
            state = _partition(seen.image, *where)
            labels = {"consumergroup": group.name, **_labels(*where)}
            offsets.append((labels, float(offset)))
            if state is not None:
                lag = max(0, state.log_end_offset - offset)
                lags.append((labels, float(lag)))
                seconds.append((labels, _lag_seconds(state, offset, seen.now_ms)))
                sums[group.name] = sums.get(group.name, 0.0) + lag
    yield gauges("kafka_consumergroup_current_offset", "The offset that a group has committed.", offsets)
    yield gauges("kafka_consumergroup_lag", "Records that a group has not read.", lags)
    yield gauges(
        "kafka_consumergroup_lag_sum",
        "Records that a group has not read, in all its partitions.",
        (({"consumergroup": name}, lag) for name, lag in sums.items()),
    )
    yield gauges(
        "kafka_consumergroup_members",
        "Members of a group.",
        (({"consumergroup": group.name}, group.members) for group in seen.groups),
    )
    yield gauges(
        "sparklog_consumergroup_lag_seconds",
        "Age of the oldest records that a group has not read, by the newest timestamp of their extent; 0 if "
        "it has read all.",
        seconds,
    )
    yield gauges("sparklog_groups", "Groups by state.", _by_state(seen.groups))


def _by_state(groups: tuple[GroupView, ...]) -> list[tuple[Labels, float]]:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.state] = counts.get(group.state, 0) + 1
    return [({"state": state}, count) for state, count in sorted(counts.items())]


def _lag_seconds(state: PartitionState, offset: int, now_ms: int) -> float:
    start = max(offset, state.log_start_offset)
    extents = state.extents
    index = extents.index_after(start)
    if start >= state.log_end_offset or index >= len(extents):
        return 0.0
    return max(0, now_ms - extents[index].max_timestamp_ms) / 1000


def _partition(image: Image, name: str, partition: int) -> PartitionState | None:
    topic = image.topics.get(name)
    return topic.partitions[partition] if topic and partition < len(topic.partitions) else None


def _labels(topic: str, partition: int) -> dict[str, str]:
    return {"topic": topic, "partition": str(partition)}
