"""OffsetCommit (key 8), versions 2-9.

Does: offsets of members, and of consumers without a group (generation -1); answers when they are durable.
    Negative offsets are stored, as in Kafka: administrators reset groups with -1 and -2; who reads takes them
    for none.
Does not: member epochs of KIP-848 (version 9 otherwise is as 8).
Versions: 2-4 retention chosen by the client; 6 leader epochs; 7 static members (KIP-345); 8 flexible.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sparklog.metadata import Topic
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make

_log = logging.getLogger("sparklog_server.coordinator")


async def requested_offsets(
    request: Any, services: Services
) -> tuple[list[OffsetToCommit], dict[tuple[str, int], ErrorCode]]:
    """What a request of OffsetCommit or TxnOffsetCommit asks to commit, and which partitions are refused."""
    if any(unknown_partitions(services, topic) for topic in request.topics):
        await services.root.look()  # created a moment ago, by somebody else?
    longest = services.config.groups.offset_metadata_max_bytes
    refused: dict[tuple[str, int], ErrorCode] = {}
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        for one in topic.partitions:
            error = refuse_offset(services, topic.name, one, longest)
            if error:
                refused[topic.name, one.partition_index] = error
                continue
            offsets.append(
                OffsetToCommit(
                    topic=topic.name,
                    partition=one.partition_index,
                    offset=one.committed_offset,
                    leader_epoch=field(one, "committed_leader_epoch", -1),
                    metadata=one.committed_metadata or "",
                )
            )
    return offsets, refused


@api(ApiKey.OFFSET_COMMIT, versions=range(2, 10))
async def handle_offset_commit(request: Any, context: RequestContext, services: Services) -> Any:
    """Refuse single partitions, commit the others together."""
    offsets, refused = await requested_offsets(request, services)
    error = await services.groups.commit(
        request.group_id,
        offsets,
        member_id=request.member_id,
        instance_id=field(request, "group_instance_id"),
        generation_id=request.generation_id_or_member_epoch,
        retention_ms=field(request, "retention_time", -1),
    )
    if error or refused:
        _log_refusal(request.group_id, context.client_id, error, refused)
    types = context.types
    return make(
        types.OffsetCommitResponse,
        topics=[
            make(
                types.OffsetCommitResponseTopic,
                name=topic.name,
                partitions=[
                    make(
                        types.OffsetCommitResponsePartition,
                        partition_index=one.partition_index,
                        error_code=refused.get((topic.name, one.partition_index), error),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _log_refusal(
    group_id: str, client_id: str, error: ErrorCode, refused: Mapping[tuple[str, int], ErrorCode]
) -> None:
    """One line for a request, whatever its size: clients often keep to themselves why they try again."""
    reasons = [error.name] if error else []
    if refused:
        (topic, partition), first = next(iter(refused.items()))
        reasons.append(f"{len(refused)} partitions, {topic[:100]}-{partition} first: {first.name}")
    _log.info(
        "client %r: offsets of group %r not committed: %s", client_id, group_id[:100], "; ".join(reasons)
    )


def _unknown(topic: Topic | None, partitions: Iterable[Any]) -> bool:
    return topic is None or any(not 0 <= one.partition_index < len(topic.partitions) for one in partitions)


def unknown_partitions(services: Services, topic: Any) -> bool:
    """Does a request name any partition of a topic that is not there?"""
    return _unknown(services.root.image.topics.get(topic.name), topic.partitions)


def refuse_offset(services: Services, topic: str, one: Any, longest: int) -> ErrorCode:
    """Why no offset of this partition is committed, whoever asks for it."""
    if _unknown(services.root.image.topics.get(topic), [one]):
        return ErrorCode.unknown_topic_or_partition
    if len((one.committed_metadata or "").encode()) > longest:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none
