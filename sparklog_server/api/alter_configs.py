"""AlterConfigs (key 33), versions 0-2.

Does: replace all overrides of topics, all settings of this broker, or of the whole cluster (broker ''): what
    is not named goes back to its default. Validate only.
Does not: settings that brokers read when they start (server.properties); loggers.
Versions: 2 flexible.
"""

from collections.abc import Sequence
from typing import Any

from sparklog_server.admin.changes import Outcome
from sparklog_server.admin.configs import ConfigChange, ResourceChanges, alter_resources, replacement
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import make


@api(ApiKey.ALTER_CONFIGS, versions=range(3))
async def handle_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every resource by itself; one commit for all that can be."""
    resources = [
        ResourceChanges(
            one.resource_type,
            one.resource_name,
            [ConfigChange(config.name, config.value) for config in one.configs],
        )
        for one in request.resources
    ]
    outcomes = await alter_resources(
        services.changes, services.config, resources, replacement, validate_only=request.validate_only
    )
    return make(
        context.types.AlterConfigsResponse, responses=resource_responses(context, resources, outcomes)
    )


def resource_responses(
    context: RequestContext, resources: Sequence[ResourceChanges], outcomes: Sequence[Outcome]
) -> list[Any]:
    """What became of each; IncrementalAlterConfigs says it in the same words."""
    return [
        make(
            context.types.AlterConfigsResourceResponse,
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.name,
        )
        for resource, outcome in zip(resources, outcomes, strict=True)
    ]
