"""Metadata (key 3), versions 0-12.

Does: brokers (this one), topics by name or by id, all of them when asked so, their partitions, all led by
    this broker; creates a topic that is asked for by name and missing, if request and settings allow it,
    and __consumer_offsets as it must be.
Does not: racks, offline replicas, authorized operations (nobody is authorized yet).
Versions: 0 no topics means all; 1 null means all, controller; 4 auto-creation can be refused; 7 leader
    epochs; 9 flexible; 10 topic ids (KIP-516); 12 topics by id.
"""

import uuid
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.client.admin import is_internal
from sparklog.client.groups import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS
from sparklog.errors import SparklogError
from sparklog.metadata import Action, Image, Topic, new_id, plan_create_topic
from sparklog.metadata.topic_names import why_illegal_topic_name
from sparklog_server.protocol.entities import field, make, topic_id_text
from sparklog_server.protocol.errors import error_code
from sparklog_server.protocol.registry import METADATA, RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

_ZERO = uuid.UUID(int=0)
_BY_ID_SINCE = 12


@api(key=METADATA, versions=range(13))
async def handle_metadata(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer from the newest image."""
    types = context.types
    asked = request.topics
    if asked is None or (context.api_version == 0 and not asked):
        topics = [_topic(types, broker, topic) for topic in broker.image.topics.values()]
    else:
        missing = _missing_names(asked, broker.image)
        errors = {}
        if missing and field(request, "allow_auto_topic_creation", True):
            errors = await _create(missing, broker)
        topics = [_asked(types, broker, one, errors) for one in asked]
    return make(
        types.MetadataResponse,
        brokers=[
            make(
                types.MetadataResponseBroker,
                node_id=broker.node_id,
                host=context.listener.host,
                port=context.listener.port,
            )
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
    )


def _missing_names(asked: Any, image: Image) -> list[str]:
    names = dict.fromkeys(one.name for one in asked if not _id(one) and one.name)
    return [name for name in names if name not in image.topics]


async def _create(names: list[str], broker: "Broker") -> dict[str, ErrorCode]:
    """Create what may be created; name -> what went wrong."""
    config = broker.root_config()
    errors = {}
    for name in names:
        if why_illegal_topic_name(name) is not None:
            errors[name] = ErrorCode.invalid_topic_exception
            continue
        if name == OFFSETS_TOPIC:
            partitions, configs = config.offsets_topic_num_partitions, dict(OFFSETS_TOPIC_CONFIGS)
        elif config.auto_create_topics_enable:
            partitions, configs = config.num_partitions, {}
        else:
            continue
        try:
            await create_if_missing(broker, name, partitions, configs)
        except SparklogError as error:
            errors[name] = error_code(error)
    return errors


async def create_if_missing(broker: "Broker", name: str, partitions: int, configs: dict[str, str]) -> None:
    """One commit, unless the topic is there by then."""
    topic_id = new_id()

    def plan(image: Image) -> list[Action]:
        if name in image.topics:
            return []
        return [plan_create_topic(image, name, partitions, topic_id=topic_id, configs=configs)]

    await broker.publish_plan(plan)


def _asked(types: Any, broker: "Broker", one: Any, errors: dict[str, ErrorCode]) -> Any:
    image = broker.image
    by_id = _id(one)
    if one.__version__ < _BY_ID_SINCE and (by_id or one.name is None):
        return make(
            types.MetadataResponseTopic,
            error_code=ErrorCode.invalid_request,
            name=one.name or "",
            topic_id=_ZERO,
        )
    if by_id:
        topic = image.topic_by_id.get(topic_id_text(by_id))
        if topic is None:
            return make(
                types.MetadataResponseTopic, error_code=ErrorCode.unknown_topic_id, name=None, topic_id=by_id
            )
        return _topic(types, broker, topic)
    name = one.name or ""
    topic = image.topics.get(name)
    if topic is not None:
        return _topic(types, broker, topic)
    code = errors.get(name)
    if code is None:
        illegal = why_illegal_topic_name(name) is not None
        code = ErrorCode.invalid_topic_exception if illegal else ErrorCode.unknown_topic_or_partition
    return make(
        types.MetadataResponseTopic, error_code=code, name=name, topic_id=_ZERO, is_internal=is_internal(name)
    )


def _id(one: Any) -> uuid.UUID | None:
    value: uuid.UUID | None = getattr(one, "topic_id", None)
    return None if value is None or value == _ZERO else value


def _topic(types: Any, broker: "Broker", topic: Topic) -> Any:
    nodes = (broker.node_id,)
    return make(
        types.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            make(
                types.MetadataResponsePartition,
                error_code=ErrorCode.none,
                partition_index=number,
                leader_id=broker.node_id,
                leader_epoch=0,
                replica_nodes=nodes,
                isr_nodes=nodes,
            )
            for number in range(len(topic.partitions))
        ],
    )
