"""ListGroups (key 16), versions 0-5.

Does: all groups, filtered by state and type; Spark queries with a group id are among them, as Empty.
Versions: 3 flexible; 4 states (KIP-518); 5 types (KIP-848): every group here is `classic`.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make

_TYPE = "classic"


@api(ApiKey.LIST_GROUPS, versions=range(6))
async def handle_list_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from memory."""
    states = {state.lower() for state in field(request, "states_filter", ())}
    kinds = {kind.lower() for kind in field(request, "types_filter", ())}
    error, listed = services.groups.list_groups()
    types = context.types
    return make(
        types.ListGroupsResponse,
        error_code=error,
        groups=[
            make(
                types.ListedGroup,
                group_id=one.group_id,
                protocol_type=one.protocol_type,
                group_state=one.state.value,
                group_type=_TYPE,
            )
            for one in listed
            if (not states or one.state.value.lower() in states) and (not kinds or _TYPE in kinds)
        ],
    )
