"""Metadata (key 3), versions 0-13.

Does: the brokers that are not fenced, with their racks; who is controller; topics by name or by id, all of
    them when asked so, their partitions with leaders, replicas, and which of these are there; creates topics
    that are asked for by name and missing, in one commit, if request and settings allow it, and
    __consumer_offsets as it must be.
Does not: an error of the whole answer (a client would be told by it to begin anew at its first addresses).
Versions: 0 no topics means all; 1 null means all, controller, racks; 4 auto-creation can be refused; 5
    offline replicas; 7 leader epochs; 8 authorized operations (KIP-430); 9 flexible; 10 topic ids in answers
    (KIP-516); 12 topics by id; 13 top-level error (KIP-1102).
"""

import asyncio
import uuid
from typing import Any

from sparklog.metadata import Image, Topic, is_internal, why_illegal_topic_name
from sparklog_server.admin.topic_creation import create_missing
from sparklog_server.api.nodes import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import held_bytes, in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make, topic_id_text
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.protocol.messages import message_codec
from sparklog_server.protocol.metadata_response import (
    after_topics,
    count_bytes,
    encode_topic,
    encode_topics,
)
from sparklog_server.protocol.nodes import Node
from sparklog_server.protocol.wire import Response
from sparklog_server.security.access import NOT_ASKED_FOR

_ZERO = uuid.UUID(int=0)
_BY_ID_SINCE = 12
_ASSIGNED_WITHIN_S = 0.5
_TOPIC_BYTES = 40  # beside its name and its partitions


@api(ApiKey.METADATA, versions=range(14))
async def handle_metadata(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image."""
    asked, version = request.topics, context.api_version
    # Somebody else may have changed topics just now; a client that is told "unknown" comes back in a second.
    await services.root.look()
    operations = services.access.topic_operations
    if not field(request, "include_topic_authorized_operations", False):
        operations = NOT_ASKED_FOR
    listing = services.topic_listing
    is_of_all = asked is None or (version == 0 and not asked)
    errors: dict[str, ErrorCode] = {}
    if is_of_all:
        size = held_bytes(listing.of(services.root.image, version, operations))
    else:
        if field(request, "allow_auto_topic_creation", True):
            names = dict.fromkeys(one.name for one in asked if one.name and _topic_id(one) is None)
            errors = await create_missing(services.root, services.changes, names)
        await _until_assigned(asked, services)
        size = sum(await in_slices(_size_of(services, version, one) for one in dict.fromkeys(asked)))
    await context.answer.hold(size)
    # What is told is of one image, and not of one from before a wait for room.
    image, brokers = services.root.image, nodes_of(services, context.listener)
    if is_of_all:
        chunks = listing.of(image, version, operations)
    else:
        pieces = (_answer(services, image, version, one, errors, operations) for one in dict.fromkeys(asked))
        chunks = encode_topics(await in_slices(pieces), version)
    cluster = field(request, "include_cluster_authorized_operations", False)
    return _response(
        context, services, brokers, chunks, services.access.cluster_operations if cluster else NOT_ASKED_FOR
    )


async def _until_assigned(asked: Any, services: Services) -> None:
    """A topic of a moment ago has no leaders until the controller has seen it, which takes milliseconds.

    Some clients give up when they are told so, and others come back in a tenth of a second.
    """
    due = asyncio.get_running_loop().time() + _ASSIGNED_WITHIN_S
    while any(_is_unassigned(one, services) for one in asked):
        if asyncio.get_running_loop().time() >= due:
            return
        await asyncio.sleep(services.config.broker.metadata_poll_ms / 1000)


def _is_unassigned(one: Any, services: Services) -> bool:
    if services.leadership.is_alone:
        return False
    topic = _found(services.root.image, one)
    return topic is not None and not topic.partitions[-1].leadership.replicas  # new ones are the last


def _size_of(services: Services, version: int, one: Any) -> int:
    """About what is told of a topic that is asked for."""
    image = services.root.image
    topic = _found(image, one)
    size = _TOPIC_BYTES + len(one.name or "")
    return size if topic is None else size + services.topic_listing.size_of(image, topic, version)


def _found(image: Image, one: Any) -> Topic | None:
    by_id = _topic_id(one)
    return image.topics.get(one.name or "") if by_id is None else image.topic_by_id.get(topic_id_text(by_id))


def _response(
    context: RequestContext, services: Services, brokers: list[Node], topics: list[bytes], operations: int
) -> Response:
    """The response, with these topics in the place of none."""
    types, version = context.types, context.api_version
    empty = make(
        types.MetadataResponse,
        brokers=[make(types.MetadataResponseBroker, **node._asdict()) for node in brokers],
        cluster_id=services.root.cluster_id,
        controller_id=services.leadership.controller_id,
        topics=(),
        cluster_authorized_operations=operations,
    )
    encoded = b"".join(message_codec(ApiKey.METADATA, version).write(empty))
    after = len(encoded) - after_topics(version)
    return Response(chunks=[encoded[: after - count_bytes(version)], *topics, encoded[after:]])


def _answer(
    services: Services,
    image: Image,
    version: int,
    one: Any,
    errors: dict[str, ErrorCode],
    operations: int,
) -> list[bytes]:
    """The topic that one entry of a request asks for, or why not."""
    by_id = _topic_id(one)
    if one.__version__ < _BY_ID_SINCE and (by_id is not None or one.name is None):
        return _error(version, ErrorCode.invalid_request, one.name or "")
    if by_id is not None:
        topic = image.topic_by_id.get(topic_id_text(by_id))
        if topic is None:
            return _error(version, ErrorCode.unknown_topic_id, None, by_id)
        return services.topic_listing.topic(image, topic, version, operations)
    name = one.name or ""
    topic = image.topics.get(name)
    if topic is not None:
        return services.topic_listing.topic(image, topic, version, operations)
    if why_illegal_topic_name(name) is not None:
        return _error(version, ErrorCode.invalid_topic_exception, name)
    return _error(version, errors.get(name, ErrorCode.unknown_topic_or_partition), name)


def _topic_id(one: Any) -> uuid.UUID | None:
    value: uuid.UUID | None = getattr(one, "topic_id", None)
    return None if value is None or value == _ZERO else value


def _error(version: int, code: ErrorCode, name: str | None, topic_id: uuid.UUID = _ZERO) -> list[bytes]:
    return encode_topic(
        version,
        error_code=code.value,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and is_internal(name),
        operations=NOT_ASKED_FOR,
    )
