"""CreateTopics (key 19), versions 2-7.

Does: create topics in one commit, with their settings; -1 partitions and replication factor mean the
    defaults; validate only; manual assignments, which can only name this broker.
Does not: replicate. Records are on shared storage once for all brokers, so a replication factor is refused
    beyond the number of brokers, as Kafka does: a client that asks for three copies should not believe that
    it got them.
Versions: 4 defaults by -1 (KIP-464; accepted before, too); 5 flexible, settings in the answer (KIP-525);
    7 topic ids (KIP-516).
"""

from collections.abc import Callable
from typing import Any

from sparklog.log.config import validate_topic_configs
from sparklog.metadata import Action, CreateTopic, Image, collision_key, new_id, plan_create_topic
from sparklog_server.admin.assignments import validate_assignment, validate_replication_factor
from sparklog_server.admin.changes import Outcome, Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.admin.config_entries import topic_entries
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode

_METADATA_TOPIC = "__cluster_metadata"


@api(ApiKey.CREATE_TOPICS, versions=range(2, 8))
async def handle_create_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    names = [topic.name for topic in request.topics]
    twice = duplicates(names)
    colliding = duplicates([collision_key(name) for name in dict.fromkeys(names)])
    default = _default_partitions(services)
    parts: dict[str, Part] = {}
    for topic in request.topics:
        parts[topic.name] = _part(
            services,
            topic,
            default,
            duplicate=topic.name in twice,
            colliding=collision_key(topic.name) in colliding,
        )
    outcomes = await services.changes.make(
        parts, timeout_ms=field(request, "timeout", 0), validate_only=request.validate_only
    )
    told: _Told = {}
    pieces = (_result(context.types, services, name, outcomes[name], told) for name in dict.fromkeys(names))
    return make(context.types.CreateTopicsResponse, topics=await in_slices(pieces))


# What is told of settings, by those that a topic has of its own: thousands of topics have the same.
_Told = dict[tuple[tuple[str, str], ...], tuple[Any, ...]]


def _default_partitions(services: Services) -> Callable[[Image], int]:
    """num.partitions as of an image; parsed once, not once for each of thousands of topics."""
    known: tuple[Image, int] | None = None

    def default(image: Image) -> int:
        nonlocal known
        if known is None or known[0] is not image:
            known = image, services.root.root_config(image).num_partitions
        return known[1]

    return default


def _part(
    services: Services, topic: Any, default: Callable[[Image], int], *, duplicate: bool, colliding: bool
) -> Part:
    topic_id = new_id()

    def plan(image: Image) -> Action:
        if duplicate:
            raise invalid_request("Duplicate topic name.")
        if topic.name == _METADATA_TOPIC:
            raise invalid_request(f"Creation of internal topic {_METADATA_TOPIC} is prohibited.")
        if colliding:
            raise RefusedError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{topic.name}' collides with another one of this request: '.' and '_' are the same "
                "in metric names",
            )
        partitions = _partitions(services, topic) or default(image)
        configs = _configs(topic)
        return plan_create_topic(image, topic.name, partitions, topic_id=topic_id, configs=configs)

    return plan


def _partitions(services: Services, topic: Any) -> int:
    """How many are asked for; 0: the default."""
    if topic.assignments:
        return _assigned(services, topic)
    validate_replication_factor(services.leadership.brokers, topic.replication_factor)
    count: int = topic.num_partitions
    if count == 0 or count < -1:
        raise RefusedError(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    return 0 if count == -1 else count


def _assigned(services: Services, topic: Any) -> int:
    for name, value in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.num_partitions),
    ):
        if value != -1:
            raise invalid_request(
                f"A manual partition assignment was specified, but {name} was not set to -1."
            )
    indexes = [one.partition_index for one in topic.assignments]
    for one in topic.assignments:
        validate_assignment(services.leadership.brokers, one.broker_ids)
    if twice := duplicates(indexes):
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"Found multiple manual partition assignments for partition {min(twice)}",
        )
    if sorted(indexes) != list(range(len(indexes))):
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return len(indexes)


def _configs(topic: Any) -> dict[str, str]:
    keys = [one.name for one in topic.configs]
    if duplicates(keys):
        raise invalid_request("Error due to duplicate config keys")
    nulls = [one.name for one in topic.configs if one.value is None]
    if nulls:
        raise RefusedError(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    configs = {one.name: one.value for one in topic.configs}
    validate_topic_configs(configs)
    return configs


def _result(types: Any, services: Services, name: str, outcome: Outcome, told: _Told) -> Any:
    action = outcome.action
    if outcome.is_error or not isinstance(action, CreateTopic):
        return make(
            types.CreatableTopicResult,
            name=name,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=None,
        )
    has_configs = hasattr(types, "CreatableTopicConfigs")
    return make(
        types.CreatableTopicResult,
        name=name,
        topic_id=action.topic_id,
        error_code=ErrorCode.none,
        num_partitions=action.partitions,
        replication_factor=1,
        configs=_created_configs(types, services, action, told) if has_configs else None,
    )


def _created_configs(types: Any, services: Services, action: CreateTopic, told: _Told) -> tuple[Any, ...]:
    key = tuple(sorted(action.configs.items()))
    if key not in told:
        told[key] = _described(types, services, action)
    return told[key]


def _described(types: Any, services: Services, action: CreateTopic) -> tuple[Any, ...]:
    return tuple(
        make(
            types.CreatableTopicConfigs,
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=False,
        )
        for entry in topic_entries(services.config, services.root.image, action.configs)
    )
