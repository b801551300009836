"""AlterConfigs (key 33), versions 0-2.

Does: replace all overrides of topics, or all settings of the whole cluster (broker ''): what is not named
    goes back to its default. Validate only.
Does not: settings of one broker (server.properties); loggers.
Versions: 2 flexible.
"""

from typing import Any

from sparklog_server.admin.changes import duplicates
from sparklog_server.admin.config_changes import Target, alter_resources, invalid_request, replacement
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make


@api(ApiKey.ALTER_CONFIGS, versions=range(3))
async def handle_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every resource by itself; one commit for all that can be."""
    outcomes = await alter_resources(
        services.changes, services.node_id, request.resources, _target, validate_only=request.validate_only
    )
    return make(
        context.types.AlterConfigsResponse,
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


def _target(resource: Any) -> Target:
    if duplicates([one.name for one in resource.configs]):
        raise invalid_request("Error due to duplicate config keys")
    return replacement({one.name: one.value for one in resource.configs})
