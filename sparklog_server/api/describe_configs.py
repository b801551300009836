"""DescribeConfigs (key 32), versions 1-4.

Does: all settings of a topic, of this broker, or those set for the whole cluster (broker ''), with the
    layer that each value comes from, all other layers (synonyms), type and documentation.
    Groups have none: kafka-configs describes those that it has listed.
Does not: other brokers, loggers, client metrics.
Versions: 3 type and documentation (KIP-569); 4 flexible.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.errors import SparklogError
from sparklog.metadata import Image
from sparklog_server.admin.changes import RefusedError, outcome_of
from sparklog_server.admin.config_changes import ResourceType, invalid_request, validate_broker_name
from sparklog_server.admin.config_entries import ConfigEntry, broker_entries, cluster_entries, topic_entries
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker


@api(key=32, versions=range(1, 5))
async def handle_describe_configs(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer from the newest image (others may just have changed it) and the broker's settings."""
    await broker.look()
    image = broker.image
    return make(
        context.types.DescribeConfigsResponse,
        results=[_describe(request, context.types, broker, image, one) for one in request.resources],
    )


def _describe(request: Any, types: Any, broker: "Broker", image: Image, resource: Any) -> Any:
    try:
        entries = _entries(broker, image, resource.resource_type, resource.resource_name)
    except (SparklogError, RefusedError) as error:
        outcome = outcome_of(error)
        return make(
            types.DescribeConfigsResult,
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    wanted = resource.configuration_keys
    return make(
        types.DescribeConfigsResult,
        error_code=ErrorCode.none,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _result(request, types, entry) for entry in entries if wanted is None or entry.name in wanted
        ],
    )


def _entries(broker: "Broker", image: Image, resource_type: int, name: str) -> Iterable[ConfigEntry]:
    match ResourceType(resource_type):
        case ResourceType.TOPIC:
            return topic_entries(broker.config, image, image.topic(name).configs)
        case ResourceType.BROKER:
            validate_broker_name(broker, name)
            return broker_entries(broker.config, image) if name else cluster_entries(image)
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
