"""What is asked of the controller, and what it answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparklog.client import SparkLog
from sparklog.metadata import NO_NODE, Image
from tests.support.broker_process import until
from tests.support.wire_client import WireClient

ELECT_LEADERS, REASSIGN, LIST_REASSIGNMENTS, UNREGISTER = 43, 45, 46, 64
Named = tuple[str, int]


def elect(
    asker: WireClient, *asked: Named, version: int = 2, kind: int = 0, everything: bool = False
) -> tuple[str, dict[Named, str]]:
    """The error of all, and of each partition."""
    topics = [{"_": "TopicPartitions", "topic": name, "partitions": (number,)} for name, number in asked]
    fields: dict[str, Any] = {"election_type": kind} if version >= 1 else {}
    response = asker.ask(
        ELECT_LEADERS, version, topic_partitions=None if everything else topics, timeout=30_000, **fields
    )
    told = {
        (topic.topic, one.partition_id): one.error_code.name
        for topic in response.replica_election_results
        for one in topic.partition_result
    }
    return "none" if version < 1 else response.error_code.name, told


def reassign(
    asker: WireClient, targets: Mapping[Named, Sequence[int] | None], *, version: int = 1, **fields: Any
) -> tuple[str, dict[Named, str]]:
    """The error of all, and of each partition."""
    topics = [
        {
            "_": "ReassignableTopic",
            "name": name,
            "partitions": [{"_": "ReassignablePartition", "partition_index": number, "replicas": replicas}],
        }
        for (name, number), replicas in targets.items()
    ]
    response = asker.ask(REASSIGN, version, topics=topics, timeout=30_000, **fields)
    told = {
        (topic.name, one.partition_index): one.error_code.name
        for topic in response.responses
        for one in topic.partitions
    }
    return response.error_code.name, told


def reassignments(
    asker: WireClient, *asked: Named
) -> dict[Named, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(replicas, adding, removing) of those under way; of all, unless some are named."""
    topics = [
        {"_": "ListPartitionReassignmentsTopics", "name": name, "partition_indexes": (number,)}
        for name, number in asked
    ]
    response = asker.ask(LIST_REASSIGNMENTS, 0, topics=topics or None, timeout=30_000)
    assert response.error_code.name == "none"
    return {
        (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    }


def unregister(asker: WireClient, node_id: int) -> tuple[str, str]:
    """Error and message."""
    response = asker.ask(UNREGISTER, 0, broker_id=node_id)
    return response.error_code.name, response.error_message or ""


def settled(log: SparkLog) -> Image:
    """The newest image, once every partition that there is has a leader: what this process makes, too."""

    def image() -> Image | None:
        newest = log.refresh(force=True)
        states = [state for topic in newest.topics.values() for state in topic.partitions]
        return None if any(state.leadership.leader == NO_NODE for state in states) else newest

    found: Image = until(image, what="all partitions are led")
    return found
