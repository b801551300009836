"""What is asked about the offsets of share groups."""

from typing import Any

import pyarrow as pa

import sparklog
from tests.server.api.share_requests import (
    ACCEPT,
    ALTER_OFFSETS,
    DELETE_OFFSETS,
    DESCRIBE_OFFSETS,
    SHARE_SETTINGS,
    Got,
    Worker,
)
from tests.support.wire_client import WireClient

OFFSETS_SETTINGS = SHARE_SETTINGS | {"sparklog.metadata.poll.ms": "10"}
OFFSETS_TOPICS = {"orders": 2, "returns": 1}


def begun(asker: WireClient, log: sparklog.SparkLog) -> Worker:
    """The group begins in orders-0, which has 5 records then; 1 and 2 are acknowledged."""
    found = Worker(asker, log.image.topic("orders").topic_id)
    assert found.fetch() == []
    values = pa.array([b"v"] * 5, pa.binary())
    log.append("orders", pa.table({"value": values, "partition": pa.array([0] * 5, pa.int32())}))
    assert found.fetch(max_wait=10_000) == [Got(0, 4, 1)]
    assert found.acknowledge({0: [(1, 2, ACCEPT)]}) == "none"
    return found


def described(asker: WireClient, topics: Any = None, version: int = 1, group: str = "workers") -> Any:
    one = {"_": "DescribeShareGroupOffsetsRequestGroup", "group_id": group, "topics": topics}
    (found,) = asker.ask(DESCRIBE_OFFSETS, version, groups=[one]).groups
    if found.error_code.value:
        return found.error_code.name
    return {
        (topic.topic_name, one.partition_index): (
            one.start_offset,
            getattr(one, "lag", None),
            one.error_code.name,
        )
        for topic in found.topics
        for one in topic.partitions
    }


def wanted(name: str, *partitions: int) -> Any:
    return {
        "_": "DescribeShareGroupOffsetsRequestTopic",
        "topic_name": name,
        "partitions": partitions,
    }


def alter(asker: WireClient, offsets: dict[tuple[str, int], int], group: str = "workers") -> Any:
    topics = [
        {
            "_": "AlterShareGroupOffsetsRequestTopic",
            "topic_name": name,
            "partitions": [
                {
                    "_": "AlterShareGroupOffsetsRequestPartition",
                    "partition_index": number,
                    "start_offset": offset,
                }
            ],
        }
        for (name, number), offset in offsets.items()
    ]
    answer = asker.ask(ALTER_OFFSETS, 0, group_id=group, topics=topics)
    if answer.error_code.value:
        return answer.error_code.name
    return [one.error_code.name for topic in answer.responses for one in topic.partitions]


def delete(asker: WireClient, *topics: str, group: str = "workers") -> Any:
    entries = [{"_": "DeleteShareGroupOffsetsRequestTopic", "topic_name": name} for name in topics]
    answer = asker.ask(DELETE_OFFSETS, 0, group_id=group, topics=entries)
    return (
        answer.error_code.name if answer.error_code.value else [t.error_code.name for t in answer.responses]
    )
