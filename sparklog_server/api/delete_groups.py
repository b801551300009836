"""DeleteGroups (key 42), versions 0-2.

Does: removes empty groups with all their offsets (KIP-229).
Versions: 2 flexible.
"""

from typing import TYPE_CHECKING, Any

from sparklog_server.protocol.entities import make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker


@api(key=42, versions=range(3))
async def handle_delete_groups(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer when the tombstones are durable."""
    types = context.types
    errors = {
        group_id: await broker.groups.delete_group(group_id)
        for group_id in dict.fromkeys(request.groups_names)
    }
    return make(
        types.DeleteGroupsResponse,
        results=[
            make(types.DeletableGroupResult, group_id=group_id, error_code=error)
            for group_id, error in errors.items()
        ],
    )
