"""IncrementalAlterConfigs (key 44), versions 0-1.

Does: set, delete, append to and subtract from overrides of topics, and settings of the whole cluster
    (broker ''); all of a resource or nothing. Appending to what is not set starts from the value in force.
    Validate only.
Does not: settings of one broker (server.properties); loggers.
Versions: 1 flexible.
"""

import functools
from typing import Any

from sparklog.log.config import TopicConfig
from sparklog.log.setting import Setting, declared_settings
from sparklog.metadata import Image
from sparklog_server.admin.config_changes import (
    ConfigChange,
    ResourceType,
    Target,
    alter_resources,
    increments,
)
from sparklog_server.admin.config_entries import ConfigType, broker_entries, topic_default, type_of
from sparklog_server.admin.setting_names import ROOT_KEYS, root_setting
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.settings.config import SETTINGS


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=range(2))
async def handle_incremental_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every resource by itself; one commit for all that can be."""

    def target(resource: Any) -> Target:
        return _target(services, resource)

    outcomes = await alter_resources(
        services.changes, services.node_id, request.resources, target, validate_only=request.validate_only
    )
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


def _target(services: Services, resource: Any) -> Target:
    """Without a look at all settings for each of thousands of topics: those that are named are enough."""
    config = services.config
    is_topic = resource.resource_type == ResourceType.TOPIC

    def in_force(image: Image, name: str) -> str:
        if is_topic:
            return topic_default(config, image, name)
        return next(entry.value for entry in broker_entries(config, image) if entry.name == name)

    def is_list(name: str) -> bool:
        declared = declared_settings(TopicConfig) if is_topic else _declared_for_brokers()
        return name in declared and type_of(declared[name][1]) is ConfigType.LIST

    return increments(
        [ConfigChange(one.name, one.config_operation, one.value) for one in resource.configs],
        in_force=in_force,
        is_list=is_list,
    )


@functools.cache
def _declared_for_brokers() -> dict[str, tuple[str, Setting]]:
    roots = {name: (key, root_setting(key)) for name, key in ROOT_KEYS.items()}
    return {**SETTINGS, **roots}
