"""Topics and their partitions, with leaders and replicas.

Not here: the cached answer about all topics (listings.py); offsets (log_offsets.py).
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sparklog.metadata import (
    AclOperation,
    Image,
    ResourceType,
    Topic,
    is_internal,
    why_illegal_topic_name,
    why_no_new_topic_name,
)
from sparklog_server.admin.topics import create_missing
from sparklog_server.api.cluster import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import replica_view
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.messages import message_codec
from sparklog_server.protocol.metadata_response import (
    Node,
    after_topics,
    count_bytes,
    encode_topic,
    encode_topics,
)
from sparklog_server.protocol.responses import field, make, maker, topic_id_text
from sparklog_server.protocol.wire import Pace, Response, held_bytes, in_slices, text_bytes
from sparklog_server.security.access import NOT_ASKED_FOR, Caller

# --- Metadata ----------------------------------------------------------------------------------------

_ZERO = uuid.UUID(int=0)
_BY_ID_SINCE = 12
_ASSIGNED_WITHIN_S = 0.5
_TOPIC_BYTES = 40  # without its name and its partitions


@api(ApiKey.METADATA, versions=range(14))
async def handle_metadata(request: Any, context: RequestContext, services: Services) -> Any:
    """Metadata (key 3), versions 0-13.

    Does: the brokers that are not fenced, with their racks; the controller; topics by name or by id, on
        request all of them, their partitions with leaders, replicas and in-sync replicas; creates missing
        topics that are requested by name, in one commit, if request and settings allow it, and
        __consumer_offsets with its own settings.
    Does not: an error of the whole answer (after which a client would start again from its bootstrap
        servers).
    Each requested topic is answered once. Beyond 32 MiB, a million partitions, the rest is answered
        UNKNOWN_SERVER_ERROR: request fewer, or all.
    Versions: 0 no topics means all; 1 null means all, controller, racks; 4 auto-creation can be refused; 5
        offline replicas; 7 leader epochs; 8 authorized operations (KIP-430); 9 flexible; 10 topic ids in
        answers (KIP-516); 12 topics by id; 13 top-level error (KIP-1102).
    """
    asked, version = request.topics, context.api_version
    # Another process may just have changed topics; after "unknown" a client only retries in a second.
    await services.root.look()
    caller = services.access.caller(context)
    with_operations = field(request, "include_topic_authorized_operations", False)
    operations = caller.all_operations(ResourceType.TOPIC) if with_operations else NOT_ASKED_FOR
    listing = services.topic_listing
    is_of_all = asked is None or (version == 0 and not asked)
    errors: _Errors = {}
    if is_of_all and caller.is_limited:
        found = services.root.image.topics.values()
        visible = await caller.visible(found, AclOperation.DESCRIBE, ResourceType.TOPIC, _name)
        asked, is_of_all = [_Listed(one.name) for one in visible], False
    elif not is_of_all:
        create = field(request, "allow_auto_topic_creation", True)
        asked, errors = await _permitted(_each_once(asked), caller, services, create=create)
        await _until_assigned([one for one in asked if not _is_hidden(one, errors)], services)
    refused: set[Any] = set()
    if is_of_all:
        size = held_bytes(await listing.of(services.root.image, version, operations))
    else:
        size, refused = await _counted(asked, errors, context, services)
    await context.answer.hold(size)
    # The answer is of one image, and not of one from before a wait for room.
    image, brokers = services.root.image, nodes_of(services, context.listener)
    if is_of_all:
        chunks = await listing.of(image, version, operations)
    else:
        answer = _Topics(services, image, version, errors, caller if with_operations else None)
        chunks = encode_topics(await answer.topics(asked, refused), version)
    return _response(context, services, brokers, chunks, _cluster_operations(request, context, caller))


_Errors = dict[Any, ErrorCode]  # by topic id or name
_OF_CLUSTER_UNTIL = 10  # DescribeCluster has them since


@dataclass(frozen=True, slots=True)
class _Listed:
    """A topic of a listing, as an entry of a request."""

    name: str
    __version__: ClassVar[int] = _BY_ID_SINCE


def _name(topic: Topic) -> str:
    return topic.name


def _cluster_operations(request: Any, context: RequestContext, caller: Caller) -> int:
    if not field(request, "include_cluster_authorized_operations", False):
        return NOT_ASKED_FOR
    if context.api_version > _OF_CLUSTER_UNTIL:
        return NOT_ASKED_FOR
    return caller.visible_cluster_operations()


async def _permitted(
    asked: list[Any], caller: Caller, services: Services, *, create: bool
) -> tuple[list[Any], _Errors]:
    """Create missing topics; return the entries of the request, and the errors of some of them."""

    def is_visible(one: Any) -> bool:
        name = _name_of(services.root.image, one)
        return not name or caller.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    visible, hidden = await caller.split(asked, is_visible)
    errors: _Errors = {}
    if create:
        names = dict.fromkeys(one.name for one in visible if one.name and _topic_id(one) is None)
        creatable, forbidden = await caller.split(names, lambda name: _may_create(name, caller, services))
        errors |= await create_missing(services.root, services.changes, creatable)
        errors |= dict.fromkeys(forbidden, ErrorCode.topic_authorization_failed)
    errors |= {_topic_id(one) or one.name: ErrorCode.topic_authorization_failed for one in hidden}
    return asked, errors


def _may_create(name: str, caller: Caller, services: Services) -> bool:
    """True if the client may create a missing topic, or nobody could."""
    if name in services.root.image.topics or why_no_new_topic_name(name) is not None:
        return True
    if not services.root.root_config().auto_create_topics_enable:
        return True
    if caller.may(AclOperation.CREATE, ResourceType.CLUSTER, is_filter=True):
        return True
    return caller.may(AclOperation.CREATE, ResourceType.TOPIC, name)


def _name_of(image: Image, one: Any) -> str | None:
    """Return the name of a requested topic; None for an unknown id."""
    by_id = _topic_id(one)
    if by_id is None:
        return str(one.name or "")
    topic = image.topic_by_id.get(topic_id_text(by_id))
    return None if topic is None else topic.name


async def _until_assigned(asked: Any, services: Services) -> None:
    """Wait for the leaders of new topics: the controller assigns them within milliseconds.

    Some clients give up after the error, and others only retry in a tenth of a second.
    """
    due = asyncio.get_running_loop().time() + _ASSIGNED_WITHIN_S
    while any(_is_unassigned(one, services) for one in asked):
        if asyncio.get_running_loop().time() >= due:
            return
        await asyncio.sleep(services.config.broker.metadata_poll_ms / 1000)


def _is_unassigned(one: Any, services: Services) -> bool:
    topic = _found(services.root.image, one)
    return topic is not None and not topic.partitions[-1].leadership.replicas  # new ones are the last


def _each_once(asked: Any) -> list[Any]:
    """Return the entries of a request without duplicates; an entry with an id may have any name."""
    return list({_topic_id(one) or one.name: one for one in asked}.values())


def _is_hidden(one: Any, errors: _Errors) -> bool:
    """True if nothing of the topic may be seen: not even by the time, or the room, that it takes."""
    return errors.get(_topic_id(one) or one.name) is ErrorCode.topic_authorization_failed


async def _counted(
    asked: list[Any], errors: _Errors, context: RequestContext, services: Services
) -> tuple[int, set[Any]]:
    """Return the approximate size of these topics in the answer, and the ones that do not fit."""
    size, refused = 0, set()
    sizes = await in_slices(
        _error_size(one) if _is_hidden(one, errors) else _size_of(services, context.api_version, one)
        for one in asked
    )
    for one, of_one in zip(asked, sizes, strict=True):
        if context.answer.fits(of_one):
            size += of_one
        else:
            refused.add(one)
    return size, refused


def _size_of(services: Services, version: int, one: Any) -> int:
    """Return the approximate size of a topic in the answer."""
    image = services.root.image
    topic = _found(image, one)
    size = _error_size(one)
    if topic is None:
        return size
    return size + services.topic_listing.as_of(image).size_of(image, topic, version)


def _error_size(one: Any) -> int:
    """Return the same of a topic with an error only."""
    return _TOPIC_BYTES + text_bytes(one.name or "")


def _found(image: Image, one: Any) -> Topic | None:
    by_id = _topic_id(one)
    return image.topics.get(one.name or "") if by_id is None else image.topic_by_id.get(topic_id_text(by_id))


def _response(
    context: RequestContext, services: Services, brokers: list[Node], topics: list[bytes], operations: int
) -> Response:
    """Return the response, with these encoded topics."""
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


class _Topics:
    """The topics of one request, as of one image."""

    def __init__(
        self, services: Services, image: Image, version: int, errors: _Errors, caller: Caller | None
    ) -> None:
        """`caller`: None: the answer has no authorized operations."""
        self._topics = services.topic_listing.as_of(image)
        self._image = image
        self._version = version
        self._errors = errors
        self._caller = caller
        self._pace = Pace()

    async def topics(self, asked: list[Any], refused: set[Any]) -> list[list[bytes]]:
        """Return the topic or error of each entry; yields to the loop: a topic may have 10,000 partitions."""
        topics = []
        for one in asked:
            topic = _found(self._image, one)
            code = self._errors.get(_topic_id(one) or one.name)
            if code is ErrorCode.topic_authorization_failed and not _is_misplaced(one):
                by_id = _topic_id(one)
                topics.append(self._error(code, None if by_id else one.name, by_id))
            elif _is_misplaced(one) or topic is None:
                topics.append(self._why_not(one))
            elif one in refused:
                topics.append(self._error(ErrorCode.unknown_server_error, topic.name, _topic_id(one)))
            else:
                topics.append(await self._topic(topic))
            await self._pace.made(1)
        return topics

    async def _topic(self, topic: Topic) -> list[bytes]:
        operations = NOT_ASKED_FOR
        if self._caller is not None:
            operations = self._caller.operations(ResourceType.TOPIC, topic.name)
        return await self._topics.topic(self._image, topic, self._version, operations, self._pace)

    def _why_not(self, one: Any) -> list[bytes]:
        by_id, name = _topic_id(one), one.name or ""
        if _is_misplaced(one):
            return self._error(ErrorCode.invalid_request, name)
        if by_id is not None:
            return self._error(ErrorCode.unknown_topic_id, None, by_id)
        if why_illegal_topic_name(name) is not None:
            return self._error(ErrorCode.invalid_topic_exception, name)
        return self._error(self._errors.get(name, ErrorCode.unknown_topic_or_partition), name)

    def _error(self, code: ErrorCode, name: str | None, topic_id: uuid.UUID | None = None) -> list[bytes]:
        return encode_topic(
            self._version,
            error_code=code.value,
            name=name,
            topic_id=topic_id,
            is_internal=name is not None and is_internal(name),
            operations=NOT_ASKED_FOR,
        )


def _is_misplaced(one: Any) -> bool:
    """True if an entry has an id, or no name, in a version with topic names only."""
    return one.__version__ < _BY_ID_SINCE and (_topic_id(one) is not None or one.name is None)


def _topic_id(one: Any) -> uuid.UUID | None:
    value: uuid.UUID | None = getattr(one, "topic_id", None)
    return None if value is None or value == _ZERO else value


# --- DescribeTopicPartitions -------------------------------------------------------------------------

MAX_PARTITIONS = 2000  # Kafka's max.request.partition.size.limit


@api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(1))
async def handle_describe_topic_partitions(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeTopicPartitions (key 75), version 0.

    Does: partitions of topics by name, or of all topics, in the order of their names: leaders, replicas, and
        in-sync replicas. At most 2,000 partitions (MAX_PARTITIONS), or as many as the request allows; the
        answer has a cursor for the next request.
    Does not: eligible leader replicas: records are on shared storage, so any replica that returns may lead.
    Versions: 0 (KIP-966).
    Sources: Kafka DescribeTopicPartitionsRequestHandler.
    """
    await services.root.look()
    image = services.root.image
    types, cursor = context.types, request.cursor
    asked = {one.name for one in request.topics}
    caller = services.access.caller(context)
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        error_of = _TopicErrors(types)
        refused = (error_of(name, ErrorCode.invalid_request) for name in sorted(asked))
        return make(types.DescribeTopicPartitionsResponse, topics=await in_slices(refused))
    first = "" if cursor is None else cursor.topic_name
    names = sorted(name for name in asked or image.topics if name >= first)
    names, hidden = await caller.split(
        names,
        lambda name: caller.may(AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_filter=not asked),
    )
    start = 0 if cursor is None or names[:1] != [first] else cursor.partition_index
    limit = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    pages = _Pages(image, names, start, limit)
    error_of = _TopicErrors(types)
    topics = await in_slices(
        _unknown(error_of, name) if topic is None else _topic(types, caller, image, topic, numbers)
        for name, topic, numbers in pages.taken()
    )
    if asked:
        topics += [error_of(name, ErrorCode.topic_authorization_failed) for name in hidden]
    fields: dict[str, Any] = {}
    if pages.next is not None:
        name, number = pages.next
        fields["next_cursor"] = make(types.Cursor, topic_name=name, partition_index=number)
    return make(types.DescribeTopicPartitionsResponse, topics=topics, **fields)


class _Pages:
    """The partitions of this answer, and the first one of the next."""

    def __init__(self, image: Image, names: list[str], start: int, limit: int) -> None:
        self._image = image
        self._names = names
        self._start = start
        self._left = limit
        self.next: tuple[str, int] | None = None

    def taken(self) -> Iterator[tuple[str, Topic | None, range]]:
        start = self._start
        for name in self._names:
            if self._left == 0:
                self.next = name, 0
                return
            topic = self._image.topics.get(name)
            count = 0 if topic is None else len(topic.partitions)
            end = min(count, start + self._left)
            yield name, topic, range(start, end)
            if end < count:
                self.next = name, end
                return
            self._left -= max(0, end - start)
            start = 0


def _topic(types: Any, caller: Caller, image: Image, topic: Topic, numbers: range) -> Any:
    return make(
        types.DescribeTopicPartitionsResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(types, image, topic, number) for number in numbers],
        topic_authorized_operations=caller.operations(ResourceType.TOPIC, topic.name),
    )


def _partition(types: Any, image: Image, topic: Topic, number: int) -> Any:
    seen = replica_view(image, topic.partitions[number])
    return make(
        types.DescribeTopicPartitionsResponsePartition,
        error_code=seen.error,
        partition_index=number,
        leader_id=seen.leader,
        leader_epoch=seen.leader_epoch,
        replica_nodes=seen.replicas,
        isr_nodes=seen.in_sync,
        offline_replicas=seen.offline,
        eligible_leader_replicas=(),  # never null: Kafka's admin client reads them
        last_known_elr=(),
    )


def _unknown(error_of: "_TopicErrors", name: str) -> Any:
    illegal = why_illegal_topic_name(name) is not None
    return error_of(
        name, ErrorCode.invalid_topic_exception if illegal else ErrorCode.unknown_topic_or_partition
    )


class _TopicErrors:
    """Constructors of topics with an error only: thousands may have the same."""

    def __init__(self, types: Any) -> None:
        self._types = types
        self._makers: dict[tuple[ErrorCode, bool], Callable[[str], Any]] = {}

    def __call__(self, name: str, code: ErrorCode) -> Any:
        key = code, is_internal(name)
        if key not in self._makers:
            self._makers[key] = maker(
                self._types.DescribeTopicPartitionsResponseTopic,
                "name",
                error_code=code,
                is_internal=key[1],
                topic_authorized_operations=NOT_ASKED_FOR,
            )
        return self._makers[key](name)
