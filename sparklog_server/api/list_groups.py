"""ListGroups (key 16), versions 0-5.

Does: all groups, filtered by state and type; Spark queries with a group id are among them, as Empty.
Beyond some 32 MB (150,000 groups of ordinary names): UNKNOWN_SERVER_ERROR; describe them by name.
Versions: 3 flexible; 4 states (KIP-518); 5 types (KIP-848): every group here is `classic`.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import in_slices, text_bytes

_TYPE = "classic"
_GROUP_BYTES = 160  # while the answer is made, beside the name


@api(ApiKey.LIST_GROUPS, versions=range(6))
async def handle_list_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from memory, with turns for others: there may be a hundred thousand groups."""
    states = {state.lower() for state in field(request, "states_filter", ())}
    kinds = {kind.lower() for kind in field(request, "types_filter", ())}
    error, found = services.groups.group_ids()
    if not context.answer.fits(sum(_GROUP_BYTES + 2 * text_bytes(group_id) for group_id in found)):
        error, found = ErrorCode.unknown_server_error, []
    await context.answer.reserve()
    types = context.types

    def told(group_id: str) -> Any:
        """None: it was not asked for."""
        one = services.groups.listed(group_id)
        if (states and one.state.value.lower() not in states) or (kinds and _TYPE not in kinds):
            return None
        return make(
            types.ListedGroup,
            group_id=one.group_id,
            protocol_type=one.protocol_type,
            group_state=one.state.value,
            group_type=_TYPE,
        )

    listed = await in_slices(map(told, found))
    groups = [one for one in listed if one is not None]
    return make(types.ListGroupsResponse, error_code=error, groups=groups)
