"""DeleteGroups (key 42), versions 0-2.

Does: removes empty groups with all their offsets (KIP-229).
Versions: 2 flexible.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import make, maker
from sparklog_server.protocol.wire import in_slices


@api(ApiKey.DELETE_GROUPS, versions=range(3))
async def handle_delete_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the tombstones are durable."""
    await services.root.look()  # for what Spark has just committed
    types, names = context.types, list(dict.fromkeys(request.groups_names))
    errors = await services.groups.delete_groups(names)
    told = maker(types.DeletableGroupResult, "group_id", "error_code")
    return make(
        types.DeleteGroupsResponse, results=await in_slices(told(name, errors[name]) for name in names)
    )
