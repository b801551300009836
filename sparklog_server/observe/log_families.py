"""What is in the log: partitions, their offsets and sizes, and how far groups are behind.

All partitions of a root share its storage, one copy each, and one broker serves them: so Kafka's questions
about replicas (under-replicated, under min ISR, offline) have one answer for all of them, which depends on
whether the broker is the registered one and sees the root.
Invariants: rows are bounded by partitions and by what groups have committed; sizes of partitions that have
    not changed are not added up again.
Concurrency: one scrape at a time (collector.py).
Sources: kafka_exporter's README.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from sparklog.client.admin import partition_size_bytes
from sparklog.metadata import Image, PartitionState
from sparklog_server.observe.families import Labels, gauge, gauges
from sparklog_server.observe.observation import GroupView, Observation


class SizeCache:
    """Sizes by partition, as long as its extents are the same."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], tuple[PartitionState, int]] = {}

    def sizes(self, image: Image) -> dict[tuple[str, int], int]:
        """(topic, partition) -> stored bytes."""
        fresh: dict[tuple[str, int], tuple[PartitionState, int]] = {}
        for name, topic in image.topics.items():
            for state in topic.partitions:
                known = self._sizes.get((name, state.partition))
                size = known[1] if known and known[0] is state else partition_size_bytes(state)
                fresh[name, state.partition] = (state, size)
        self._sizes = fresh
        return {where: size for where, (_, size) in fresh.items()}


def cluster_families(seen: Observation) -> Iterator[Metric]:
    """Counts of partitions, leaders, controllers."""
    count = sum(len(topic.partitions) for topic in seen.image.topics.values())
    missing = 0 if seen.partitions_available else count
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this broker is the registered one: the newest wins.",
        int(seen.is_registered),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that cannot be read or written: all, when the broker does not serve or its root is gone.",
        missing,
    )
    yield gauge("kafka_server_replicamanager_partitioncount", "Partitions.", count)
    yield gauge(
        "kafka_server_replicamanager_leadercount",
        "Partitions led by this broker: all, if it is the registered one.",
        count if seen.is_registered else 0,
    )
    yield gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions without the one copy they should have: all, when the root is not visible.",
        missing,
    )
    yield gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions to which nobody can write.",
        missing,
    )
    yield gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "Partitions whose root this broker does not see.",
        0 if seen.root_visible else count,
    )
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "1 if the root is not visible.",
        int(not seen.root_visible),
    )
    yield gauge("kafka_brokers", "Brokers that are registered.", int(seen.image.broker is not None))


def partition_families(seen: Observation, sizes: SizeCache) -> Iterator[Metric]:
    """Sizes and offsets, as Kafka and kafka_exporter show them."""
    states = [
        (_labels(name, state.partition), state)
        for name, topic in seen.image.topics.items()
        for state in topic.partitions
    ]
    in_sync = int(seen.partitions_available)
    yield gauges(
        "kafka_log_log_size",
        "Stored bytes.",
        ((_labels(*where), size) for where, size in sizes.sizes(seen.image).items()),
    )
    yield gauges(
        "kafka_topic_partitions",
        "Partitions of a topic.",
        (({"topic": name}, len(topic.partitions)) for name, topic in seen.image.topics.items()),
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
    yield gauges(
        "kafka_topic_partition_in_sync_replica",
        "1 if the partition can be read and written.",
        ((labels, in_sync) for labels, _ in states),
    )
    yield gauges(
        "kafka_topic_partition_under_replicated_partition",
        "1 if it cannot.",
        ((labels, 1 - in_sync) for labels, _ in states),
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
