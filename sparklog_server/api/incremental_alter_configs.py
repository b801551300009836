"""IncrementalAlterConfigs (key 44), versions 0-1.

Does: set, delete, append to and subtract from overrides of topics, settings of this broker, and of the whole
    cluster (broker ''); all of a resource or nothing. Appending to what is not set starts from the value in
    force. Validate only.
Does not: settings that brokers read when they start (server.properties); loggers.
Versions: 1 flexible.
"""

import functools
from typing import Any

from sparklog_server.admin.configs import ConfigChange, ResourceChanges, alter_resources, increments
from sparklog_server.api.alter_configs import resource_responses
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import make


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=range(2))
async def handle_incremental_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every resource by itself; one commit for all that can be."""
    resources = [
        ResourceChanges(
            one.resource_type,
            one.resource_name,
            [ConfigChange(config.name, config.value, config.config_operation) for config in one.configs],
        )
        for one in request.resources
    ]
    outcomes = await alter_resources(
        services.changes,
        services.config,
        resources,
        functools.partial(increments, services.config),
        validate_only=request.validate_only,
    )
    return make(
        context.types.IncrementalAlterConfigsResponse,
        responses=resource_responses(context, resources, outcomes),
    )
