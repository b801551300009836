"""ListConfigResources (key 74), versions 0-1.

Does: names what has settings: topics, and brokers (those that are not fenced). There are no settings of
    groups, of client metrics, or of loggers, so that none of these is listed.
Does not: say what the settings are (DescribeConfigs).
Versions: 0 client metrics only (it was ListClientMetricsResources, KIP-714); 1 by type, or all of them
    (KIP-1142). Types that no version of it knows are UNSUPPORTED_VERSION, as Kafka answers.
"""

from collections.abc import Iterator
from typing import Any

from sparklog_server.admin.configs import ResourceType
from sparklog_server.api.nodes import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import in_slices

_LISTABLE = frozenset(ResourceType) - {ResourceType.UNKNOWN}


@api(ApiKey.LIST_CONFIG_RESOURCES, versions=range(2))
async def handle_list_config_resources(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image."""
    types = context.types
    wanted = frozenset(map(ResourceType, field(request, "resource_types", (ResourceType.CLIENT_METRICS,))))
    if not wanted <= _LISTABLE:
        return make(types.ListConfigResourcesResponse, error_code=ErrorCode.unsupported_version)
    await services.root.look()
    resources = (
        make(types.ConfigResource, resource_name=name, resource_type=kind)
        for kind, name in _resources(wanted or _LISTABLE, context, services)
    )
    return make(
        types.ListConfigResourcesResponse,
        error_code=ErrorCode.none,
        config_resources=await in_slices(resources),
    )


def _resources(
    wanted: frozenset[ResourceType], context: RequestContext, services: Services
) -> Iterator[tuple[ResourceType, str]]:
    if ResourceType.BROKER in wanted:
        for node in nodes_of(services, context.listener):
            yield ResourceType.BROKER, str(node.node_id)
    if ResourceType.TOPIC in wanted:
        for name in services.root.image.topics:
            yield ResourceType.TOPIC, name
