"""What group APIs are asked, with what a client mostly says; and how the broker is set up that is asked."""

from typing import Any

from tests.support.wire_client import WireClient

SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x06orders"
FIND, JOIN, SYNC, HEARTBEAT, LEAVE = 10, 11, 14, 12, 13
COMMIT, FETCH, DESCRIBE, LIST, DELETE, OFFSET_DELETE = 8, 9, 15, 16, 42, 47


GROUP_TOPICS = {"orders": 2, "returns": 1}
GROUP_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "2",
    "offset.metadata.max.bytes": "10",
    "sparklog.shutdown.timeout.ms": "600000",
}


def join(asker: WireClient, version: int = 9, member_id: str = "", group: str = "g", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "session_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"_": "JoinGroupRequestProtocol", "name": "range", "metadata": SUBSCRIPTION}],
    }
    if version >= 1:
        fields["rebalance_timeout"] = 10_000
    answer = asker.ask(JOIN, version, **{**fields, **more})
    if answer.error_code.name == "member_id_required":
        assert version >= 4
        return join(asker, version, answer.member_id, group, **more)
    return answer


def sync(asker: WireClient, joined: Any, version: int = 5, group: str = "g", **more: Any) -> Any:
    given = [
        {"_": "SyncGroupRequestAssignment", "member_id": one.member_id, "assignment": b"all"}
        for one in joined.members
    ]
    if version >= 5:
        more = {"protocol_type": "consumer", "protocol_name": "range", **more}
    return asker.ask(
        SYNC,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=given,
        **more,
    )


def commit(
    asker: WireClient,
    offsets: dict[tuple[str, int], int],
    version: int = 9,
    metadata: str = "note",
    **more: Any,
) -> dict[tuple[str, int], str]:
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", **more}
    topics = [
        {
            "_": "OffsetCommitRequestTopic",
            "name": topic,
            "partitions": [
                {
                    "_": "OffsetCommitRequestPartition",
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                    **({"committed_leader_epoch": 3} if version >= 6 else {}),
                }
            ],
        }
        for (topic, partition), offset in offsets.items()
    ]
    answer = asker.ask(COMMIT, version, topics=topics, **fields)
    return {
        (topic.name, one.partition_index): one.error_code.name
        for topic in answer.topics
        for one in topic.partitions
    }


def fetch(
    asker: WireClient, asked: dict[str, list[int]] | None, version: int = 9
) -> dict[tuple[str, int], Any]:
    """(offset, metadata) of each."""
    suffix = "Topics" if version >= 8 else "Topic"
    topics = None
    if asked is not None:
        topics = [
            {"_": f"OffsetFetchRequest{suffix}", "name": name, "partition_indexes": tuple(partitions)}
            for name, partitions in asked.items()
        ]
    if version >= 8:
        group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}
        answer = asker.ask(FETCH, version, groups=[group], require_stable=True)
        (answer,) = answer.groups
    else:
        answer = asker.ask(FETCH, version, group_id="g", topics=topics)
    if version >= 2:
        assert answer.error_code.name == "none"
    return {
        (topic.name, one.partition_index): (one.committed_offset, one.metadata, one.error_code.name)
        for topic in answer.topics
        for one in topic.partitions
    }
