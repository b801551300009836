"""CreateTopics (key 19), versions 2-7.

Does: create topics in one commit, with their settings; -1 partitions and replication factor mean the
    defaults; validate only; manual assignments to brokers. The factor is among how many brokers leading
    moves, at most as many as there are.
Does not: replicate. Records are on shared storage once for all brokers, and its own copies protect them.
Versions: 4 defaults by -1 (KIP-464; accepted before, too); 5 flexible, settings in the answer (KIP-525);
    7 topic ids (KIP-516).
"""

from collections.abc import Mapping
from typing import Any

from sparklog.metadata import CreateTopic
from sparklog_server.admin.assignments import Placements
from sparklog_server.admin.changes import Outcome
from sparklog_server.admin.configs import TopicEntries
from sparklog_server.admin.topics import creations
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import usable_brokers
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import Recurring, field, make
from sparklog_server.protocol.wire import in_slices

_TOPIC_BYTES, _SETTINGS_BYTES = 500, 10_000


@api(ApiKey.CREATE_TOPICS, versions=range(2, 8))
async def handle_create_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    names = dict.fromkeys([topic.name for topic in request.topics])
    placements = Placements()
    outcomes = await services.changes.make(
        creations(services.root, request.topics, placements),
        timeout_ms=field(request, "timeout", 0),
        validate_only=request.validate_only,
        completing=placements.complete,
    )
    await context.answer.hold(_size_of(outcomes, context.types))
    has_settings = hasattr(context.types, "CreatableTopicConfigs")
    settings = _Settings(context.types, services) if has_settings else None
    factors = _Factors(services, placements)
    pieces = (_result(context.types, name, outcomes[name], settings, factors) for name in names)
    return make(context.types.CreateTopicsResponse, topics=await in_slices(pieces))


def _size_of(outcomes: Mapping[str, Outcome], types: Any) -> int:
    """What the answer takes while it is made: settings that topics have in common are there once.

    Names may have 32 KB each, and messages quote them.
    """
    size = sum(_TOPIC_BYTES + len(name) + len(one.message or "") for name, one in outcomes.items())
    if not hasattr(types, "CreatableTopicConfigs"):
        return size
    created = (one.action for one in outcomes.values() if isinstance(one.action, CreateTopic))
    return size + _SETTINGS_BYTES * len({tuple(sorted(one.configs.items())) for one in created})


class _Settings:
    """What is told of settings: thousands of topics have the same, or differ in one of them."""

    def __init__(self, types: Any, services: Services) -> None:
        self._types = types
        self._entries = TopicEntries(services.config, services.root.image)
        self._of_topics: dict[tuple[tuple[str, str], ...], tuple[Any, ...]] = {}
        self._of_values: dict[tuple[str, str | None], Any] = {}  # by name and a topic's own value

    def of(self, configs: Mapping[str, str]) -> tuple[Any, ...]:
        """Those of a topic that has these of its own."""
        key = tuple(sorted(configs.items()))
        if key not in self._of_topics:
            self._of_topics[key] = Recurring(
                self._told(name, configs.get(name)) for name in self._entries.names
            )
        return self._of_topics[key]

    def _told(self, name: str, own: str | None) -> Any:
        key = name, own
        if key not in self._of_values:
            entry = self._entries.entry(name, own)
            self._of_values[key] = make(
                self._types.CreatableTopicConfigs,
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
        return self._of_values[key]


def _result(types: Any, name: str, outcome: Outcome, settings: _Settings | None, factors: "_Factors") -> Any:
    action = outcome.action
    if not isinstance(action, CreateTopic):  # none, after an error
        return make(
            types.CreatableTopicResult,
            name=name,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=None,
        )
    return make(
        types.CreatableTopicResult,
        name=name,
        topic_id=action.topic_id,
        error_code=ErrorCode.none,
        num_partitions=action.partitions,
        replication_factor=factors.of(action),
        configs=None if settings is None else settings.of(action.configs),
    )


class _Factors:
    """How many replicas topics' partitions have: what was asked for, or what the settings made of it."""

    def __init__(self, services: Services, placements: Placements) -> None:
        self._image = image = services.root.image
        self._placements = placements
        default = services.root.root_config(image).default_replication_factor
        self._default = min(default, len(usable_brokers(image))) or 1

    def of(self, action: CreateTopic) -> int:
        """That of one; that which it would have, if it was only validated."""
        made = self._image.topic_by_id.get(action.topic_id)
        if made is not None:
            assigned = len(made.partitions[0].leadership.replicas)
        else:
            assigned = self._placements.factor_of(action.topic_id)
        return assigned or self._default
