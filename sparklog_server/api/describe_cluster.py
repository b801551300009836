"""DescribeCluster (key 60), versions 0-2.

Does: names the brokers with their racks, those that are fenced too if asked so; the controller, the cluster
    id, and what a client may do.
Does not: controllers: no broker is one to be talked to as such.
Versions: 1 endpoint type (KIP-919); 2 fenced brokers (KIP-1073).
"""

from collections.abc import Iterable
from typing import Any

from sparklog_server.api.nodes import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.metadata_response import Node
from sparklog_server.protocol.responses import field, make
from sparklog_server.security.access import NOT_ASKED_FOR

_BROKERS = 1
_CONTROLLERS = 2


@api(ApiKey.DESCRIBE_CLUSTER, versions=range(3))
async def handle_describe_cluster(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image."""
    types = context.types
    endpoint_type = field(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        known = endpoint_type == _CONTROLLERS
        return make(
            types.DescribeClusterResponse,
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message="this is a broker" if known else f"unknown endpoint type {endpoint_type}",
            endpoint_type=endpoint_type,
        )
    await services.root.look()
    brokers = _brokers(types, nodes_of(services, context.listener), is_fenced=False)
    if field(request, "include_fenced_brokers", False):
        brokers += _brokers(types, nodes_of(services, context.listener, fenced=True), is_fenced=True)
    asked_for = request.include_cluster_authorized_operations
    return make(
        types.DescribeClusterResponse,
        error_code=ErrorCode.none,
        endpoint_type=_BROKERS,
        cluster_id=services.root.cluster_id,
        cluster_authorized_operations=services.access.cluster_operations if asked_for else NOT_ASKED_FOR,
        controller_id=services.leadership.controller_id,
        brokers=sorted(brokers, key=lambda one: int(one.broker_id)),
    )


def _brokers(types: Any, nodes: Iterable[Node], *, is_fenced: bool) -> list[Any]:
    return [
        make(
            types.DescribeClusterBroker,
            broker_id=node.node_id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            is_fenced=is_fenced,
        )
        for node in nodes
    ]
