"""CreateTopics (key 19), versions 2-7.

Does: create topics in one commit, with their settings; -1 partitions and replication factor mean the
    defaults; validate only; manual assignments to brokers. The factor is among how many brokers leading
    moves, at most as many as there are.
Does not: replicate. Records are on shared storage once for all brokers, and its own copies protect them.
Versions: 4 defaults by -1 (KIP-464; accepted before, too); 5 flexible, settings in the answer (KIP-525);
    7 topic ids (KIP-516).
"""

from typing import Any

from sparklog.metadata import CreateTopic
from sparklog_server.admin.assignments import Placements
from sparklog_server.admin.changes import Outcome
from sparklog_server.admin.config_entries import topic_entries
from sparklog_server.admin.topic_creation import creations
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode


@api(ApiKey.CREATE_TOPICS, versions=range(2, 8))
async def handle_create_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    names = dict.fromkeys([topic.name for topic in request.topics])
    placements = Placements()
    outcomes = await services.changes.make(
        creations(services.root, services.node_id, request.topics, placements),
        timeout_ms=field(request, "timeout", 0),
        validate_only=request.validate_only,
        completing=placements.complete,
    )
    told: _Told = {}
    pieces = (_result(context.types, services, name, outcomes[name], told) for name in names)
    return make(context.types.CreateTopicsResponse, topics=await in_slices(pieces))


# What is told of settings, by those that a topic has of its own: thousands of topics have the same.
_Told = dict[tuple[tuple[str, str], ...], tuple[Any, ...]]


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
