"""IncrementalAlterConfigs (key 44), versions 0-1.

Does: set, delete, append to and subtract from overrides of topics, and settings of the whole cluster
    (broker ''); all of a resource or nothing. Appending to what is not set starts from the value in force.
    Validate only.
Does not: settings of one broker (server.properties); loggers.
Versions: 1 flexible.
"""

from typing import TYPE_CHECKING, Any

from sparklog.metadata import Image
from sparklog_server.admin.config_changes import (
    ConfigChange,
    ResourceType,
    Target,
    alter_resources,
    increments,
)
from sparklog_server.admin.config_entries import ConfigEntry, ConfigType, broker_entries, topic_entries
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker


@api(key=44, versions=range(2))
async def handle_incremental_alter_configs(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Plan every resource by itself; one commit for all that can be."""

    def target(resource: Any) -> Target:
        return _target(broker, resource)

    outcomes = await alter_resources(broker, request.resources, target, validate_only=request.validate_only)
    return make(
        context.types.IncrementalAlterConfigsResponse,
        responses=[
            make(
                context.types.AlterConfigsResourceResponse,
                error_code=outcome.code,
                error_message=outcome.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, outcome in zip(request.resources, outcomes, strict=True)
        ],
    )


def _target(broker: "Broker", resource: Any) -> Target:
    is_topic = resource.resource_type == ResourceType.TOPIC

    def entries(image: Image) -> dict[str, ConfigEntry]:
        config = broker.config
        found = topic_entries(config, image, {}) if is_topic else broker_entries(config, image)
        return {entry.name: entry for entry in found}

    types = {entry.name: entry.config_type for entry in entries(broker.image).values()}
    return increments(
        [ConfigChange(one.name, one.config_operation, one.value) for one in resource.configs],
        in_force=lambda image, key: entries(image)[key].value,
        is_list=lambda key: types.get(key) is ConfigType.LIST,
    )
