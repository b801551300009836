"""DescribeConfigs (key 32), versions 1-4.

Does: all settings of a topic, of this broker, or those set for the whole cluster (broker ''), with the
    layer that each value comes from, all other layers (synonyms), type and documentation.
    Groups have none: kafka-configs describes those that it has listed.
Does not: other brokers, loggers, client metrics.
Each resource is described once. What is beyond 32 MiB is refused (INVALID_REQUEST): 2,000 resources with
    documentation, 10,000 without.
Versions: 3 type and documentation (KIP-569); 4 flexible.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from sparklog.errors import SparklogError
from sparklog.metadata import Image
from sparklog_server.admin.broker_configs import validate_broker_name
from sparklog_server.admin.changes import RefusedError, outcome_of
from sparklog_server.admin.config_changes import ResourceType, invalid_request
from sparklog_server.admin.config_entries import ConfigEntry, broker_entries, cluster_entries, topic_entries
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode

_PLAIN_BYTES, _DOCUMENTED_BYTES = 3_000, 15_000  # of one resource's answer


@api(ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5))
async def handle_describe_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image (others may just have changed it) and the broker's settings."""
    await services.root.look()
    image = services.root.image
    resources = {(one.resource_type, one.resource_name): one for one in request.resources}
    documented = field(request, "include_documentation", False)
    size = _DOCUMENTED_BYTES if documented else _PLAIN_BYTES
    fitting = {key for key in resources if context.answer.fits(size)}
    await context.answer.reserve()
    known: _Known = {}
    results = await in_slices(
        _describe(request, context.types, services, image, one, known if key in fitting else None)
        for key, one in resources.items()
    )
    return make(context.types.DescribeConfigsResponse, results=results)


# Results of one request, by what they depend on: thousands of topics have the same settings.
_Known = dict[Hashable, tuple[Any, ...]]


def _describe(
    request: Any, types: Any, services: Services, image: Image, resource: Any, known: _Known | None
) -> Any:
    """One resource; `known` None: it would make the answer too large."""
    try:
        if known is None:
            raise invalid_request("Too many resources for one request.")
        configs = _results(request, types, services, image, resource, known)
    except (SparklogError, RefusedError) as error:
        outcome = outcome_of(error)
        return make(
            types.DescribeConfigsResult,
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return make(
        types.DescribeConfigsResult,
        error_code=ErrorCode.none,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _results(
    request: Any, types: Any, services: Services, image: Image, resource: Any, known: _Known
) -> tuple[Any, ...]:
    wanted = frozenset(resource.configuration_keys or ())  # none: all, as null
    depends_on: Hashable = resource.resource_name
    if ResourceType(resource.resource_type) is ResourceType.TOPIC:
        depends_on = tuple(sorted(image.topic(resource.resource_name).configs.items()))
    key = resource.resource_type, depends_on, wanted
    if key not in known:
        entries = _entries(services, image, resource.resource_type, resource.resource_name)
        known[key] = tuple(
            _result(request, types, entry) for entry in entries if not wanted or entry.name in wanted
        )
    return known[key]


def _entries(services: Services, image: Image, resource_type: int, name: str) -> Iterable[ConfigEntry]:
    match ResourceType(resource_type):
        case ResourceType.TOPIC:
            return topic_entries(services.config, image, image.topic(name).configs)
        case ResourceType.BROKER:
            validate_broker_name(services.node_id, name)
            return broker_entries(services.config, image) if name else cluster_entries(image)
        case ResourceType.GROUP:
            return ()  # Kafka's are those of protocols that are not served
        case unsupported:
            raise invalid_request(f"Unsupported resource type: {unsupported.name} ({resource_type})")


def _result(request: Any, types: Any, entry: ConfigEntry) -> Any:
    return make(
        types.DescribeConfigsResourceResult,
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=[
            make(types.DescribeConfigsSynonym, name=one.name, value=one.value, source=one.source)
            for one in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.config_type,
        documentation=entry.setting.doc if field(request, "include_documentation", False) else None,
    )
