"""OffsetDelete: of groups that nobody is subscribed with."""

from typing import Any

from tests.server.api.group_requests import (
    GROUP_SETTINGS,
    GROUP_TOPICS,
    OFFSET_DELETE,
    commit,
    fetch,
    join,
    sync,
)
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


def test_offset_delete(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 1, ("orders", 1): 1, ("returns", 0): 1})

    def delete(group: str = "g") -> Any:
        topics = [
            {
                "_": "OffsetDeleteRequestTopic",
                "name": name,
                "partitions": [{"_": "OffsetDeleteRequestPartition", "partition_index": number}],
            }
            for name, number in (("orders", 0), ("returns", 0), ("returns", 7), ("nix", 0))
        ]
        answer = asker.ask(OFFSET_DELETE, 0, group_id=group, topics=topics)
        partitions = {
            (topic.name, one.partition_index): one.error_code.name
            for topic in answer.topics
            for one in topic.partitions
        }
        return answer.error_code.name, partitions

    unknown = "unknown_topic_or_partition"
    assert delete() == (
        "none",
        {
            ("orders", 0): "none",
            ("returns", 0): "none",
            ("returns", 7): unknown,
            ("nix", 0): unknown,
        },
    )
    assert fetch(asker, None) == {("orders", 1): (1, "note", "none")}
    assert delete("nobody") == ("group_id_not_found", {})
    joined = join(asker)
    sync(asker, joined)
    assert delete()[1]["orders", 0] == "group_subscribed_to_topic"
