"""DeleteGroups (key 42), versions 0-2.

Does: removes empty groups with all their offsets (KIP-229).
Versions: 2 flexible.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make


@api(ApiKey.DELETE_GROUPS, versions=range(3))
async def handle_delete_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the tombstones are durable."""
    types = context.types
    errors = {
        group_id: await services.groups.delete_group(group_id)
        for group_id in dict.fromkeys(request.groups_names)
    }
    return make(
        types.DeleteGroupsResponse,
        results=[
            make(types.DeletableGroupResult, group_id=group_id, error_code=error)
            for group_id, error in errors.items()
        ],
    )
