"""Creation, growth and deletion of topics.

Not here: rules and plans of a change (admin/topics.py), settings of topics (configs.py).
"""

import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from sparklog.metadata import CreateTopic, Topic
from sparklog_server.admin.assignments import Placements
from sparklog_server.admin.changes import Outcome, RefusedError, outcome_of
from sparklog_server.admin.configs import TopicEntries
from sparklog_server.admin.topics import Asked, additions, creations, deletions
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import usable_brokers
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import Recurring, field, make, topic_id_text
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.quotas import MUTATIONS

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# --- CreateTopics ------------------------------------------------------------------------------------

_TOPIC_BYTES, _SETTINGS_BYTES = 500, 10_000
# Clients of these versions know THROTTLING_QUOTA_EXCEEDED; others are throttled afterwards.
_STRICT_FROM = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_EXCEEDED = Outcome(
    ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded: wait for the throttle time."
)


def _name(topic: Any) -> str:
    return str(topic.name)


def _within_quota(
    asked: Iterable[T],
    count: Callable[[T], int],
    key: Callable[[T], K],
    context: RequestContext,
    services: Services,
    *,
    validate_only: bool = False,
) -> tuple[list[T], dict[K, Outcome]]:
    """Count partitions that are created or deleted; return what may be done now, and what must wait."""
    asked = list(asked)
    if validate_only or not services.quotas.has(MUTATIONS):
        return asked, {}
    mutations = services.quotas.mutations(context)
    is_strict = context.api_version >= _STRICT_FROM[ApiKey(context.api_key)]
    allowed = [one for one in asked if mutations.try_take(max(0, count(one)), is_strict=is_strict)]
    context.answer.throttle_ms = mutations.throttle_ms
    made = {key(one) for one in allowed}
    return allowed, {key(one): _EXCEEDED for one in asked if key(one) not in made}


@api(ApiKey.CREATE_TOPICS, versions=range(2, 8))
async def handle_create_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """CreateTopics (key 19), versions 2-7.

    Does: create topics in one commit, with their settings; -1 partitions and replication factor mean the
        defaults; validate only; manual assignments to brokers. The factor is the number of brokers that may
        lead a partition, at most all of them.
    Does not: replicate. Records are on shared storage once for all brokers; the storage's own copies protect
        them.
    Versions: 4 defaults by -1 (KIP-464; accepted before, too); 5 flexible, settings in the answer (KIP-525);
        7 topic ids (KIP-516).
    """
    names = dict.fromkeys([topic.name for topic in request.topics])
    placements = Placements()
    default = services.root.root_config_of(["num.partitions"], services.root.image).num_partitions

    def count(topic: Any) -> int:
        return len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default)

    asked, outcomes = _within_quota(
        request.topics,
        count,
        lambda topic: topic.name,
        context,
        services,
        validate_only=request.validate_only,
    )
    outcomes |= await services.changes.make(
        creations(services.root, asked, placements),
        timeout_ms=field(request, "timeout", 0),
        validate_only=request.validate_only,
        completing=placements.complete,
    )
    await context.answer.hold(_answer_bytes(outcomes, context.types))
    has_settings = hasattr(context.types, "CreatableTopicConfigs")
    settings = _Settings(context.types, services) if has_settings else None
    factors = _Factors(services, placements)
    pieces = (_created_topic(context.types, name, outcomes[name], settings, factors) for name in names)
    return make(context.types.CreateTopicsResponse, topics=await in_slices(pieces))


def _answer_bytes(outcomes: Mapping[str, Outcome], types: Any) -> int:
    """Return the memory of the answer while it is built: common settings of topics count once.

    Names may have 32 KB each, and messages quote them.
    """
    size = sum(_TOPIC_BYTES + len(name) + len(one.message or "") for name, one in outcomes.items())
    if not hasattr(types, "CreatableTopicConfigs"):
        return size
    created = (one.action for one in outcomes.values() if isinstance(one.action, CreateTopic))
    return size + _SETTINGS_BYTES * len({tuple(sorted(one.configs.items())) for one in created})


class _Settings:
    """The settings in an answer: thousands of topics have the same, or differ in one of them."""

    def __init__(self, types: Any, services: Services) -> None:
        self._types = types
        self._entries = TopicEntries(services.config, services.root.image)
        self._of_topics: dict[tuple[tuple[str, str], ...], tuple[Any, ...]] = {}
        self._of_values: dict[tuple[str, str | None], Any] = {}  # by name and a topic's own value

    def of(self, configs: Mapping[str, str]) -> tuple[Any, ...]:
        """Return the settings of a topic with these overrides."""
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


def _created_topic(
    types: Any, name: str, outcome: Outcome, settings: _Settings | None, factors: "_Factors"
) -> Any:
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
    """The replication factors of topics: as requested, or by the settings."""

    def __init__(self, services: Services, placements: Placements) -> None:
        self._image = image = services.root.image
        self._placements = placements
        default = services.root.root_config(image).default_replication_factor
        self._default = min(default, len(usable_brokers(image))) or 1

    def of(self, action: CreateTopic) -> int:
        """Return the factor of a topic; with validate-only, the one that it would have."""
        made = self._image.topic_by_id.get(action.topic_id)
        if made is not None:
            assigned = len(made.partitions[0].leadership.replicas)
        else:
            assigned = self._placements.factor_of(action.topic_id)
        return assigned or self._default


# --- CreatePartitions --------------------------------------------------------------------------------


@api(ApiKey.CREATE_PARTITIONS, versions=range(4))
async def handle_create_partitions(request: Any, context: RequestContext, services: Services) -> Any:
    """CreatePartitions (key 37), versions 0-3.

    Does: add partitions to topics, in one commit, with the topic's number of replicas; validate only;
        assignments to brokers.
    Does not: move records, so new records of a key may go to another partition than the old ones; add
        partitions to __consumer_offsets, which would lose every group's offsets.
    Versions: 2 flexible; 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
    """
    placements = Placements()
    topics = services.root.image.topics

    def count(topic: Any) -> int:
        return int(topic.count) - len(topics[topic.name].partitions) if topic.name in topics else 0

    asked, outcomes = _within_quota(
        request.topics,
        count,
        lambda topic: topic.name,
        context,
        services,
        validate_only=request.validate_only,
    )
    outcomes |= await services.changes.make(
        additions(asked, placements),
        timeout_ms=field(request, "timeout", 0),
        validate_only=request.validate_only,
        completing=placements.complete,
    )
    return make(
        context.types.CreatePartitionsResponse,
        results=[
            make(
                context.types.CreatePartitionsTopicResult,
                name=name,
                error_code=outcome.code,
                error_message=outcome.message,
            )
            for name, outcome in outcomes.items()
        ],
    )


# --- DeleteTopics ------------------------------------------------------------------------------------

_ZERO = uuid.UUID(int=0)
_DISABLED_SINCE = 3  # before, clients do not know TOPIC_DELETION_DISABLED


@api(ApiKey.DELETE_TOPICS, versions=range(1, 7))
async def handle_delete_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """DeleteTopics (key 20), versions 1-6.

    Does: delete topics by name or id in one commit; no later reader sees their records.
    Does not: delete __consumer_offsets, which would lose every group's offsets; the embedded client can.
    Versions: 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 error messages (KIP-599); 6 topic ids (KIP-516).
    """
    asked = _asked_topics(request)
    found: dict[Asked, Topic] = {}
    refusal = _refusal(context, services)
    if refusal is not None:
        outcomes = dict.fromkeys(asked, outcome_of(refusal))
    else:
        image = services.root.image

        def count(one: Asked) -> int:
            name, topic_id = one
            topic = image.topics.get(name or "") if topic_id is None else image.topic_by_id.get(topic_id)
            return 0 if topic is None else len(topic.partitions)

        allowed, outcomes = _within_quota(asked, count, lambda one: one, context, services)
        parts = deletions(allowed, found)
        outcomes |= await services.changes.make(parts, timeout_ms=field(request, "timeout", 0))
    return make(
        context.types.DeleteTopicsResponse,
        responses=[
            _deleted_topic(context, found.get(one), one, outcome) for one, outcome in outcomes.items()
        ],
    )


def _asked_topics(request: Any) -> list[Asked]:
    topics = field(request, "topics")
    if topics is None:
        return [(name, None) for name in request.topic_names]
    return [
        (one.name, None if one.topic_id in (None, _ZERO) else topic_id_text(one.topic_id)) for one in topics
    ]


def _refusal(context: RequestContext, services: Services) -> RefusedError | None:
    if services.config.topics.delete_topic_enable:
        return None
    known = context.api_version >= _DISABLED_SINCE
    code = ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request
    return RefusedError(code, "Topic deletion is disabled.")


def _deleted_topic(context: RequestContext, topic: Topic | None, asked: Asked, outcome: Outcome) -> Any:
    name, topic_id = asked
    if topic is not None and not outcome.is_error:
        name, topic_id = topic.name, topic.topic_id
    return make(
        context.types.DeletableTopicResult,
        name=name,
        topic_id=topic_id or _ZERO,
        error_code=outcome.code,
        error_message=outcome.message,
    )
