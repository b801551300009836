"""Is there room for what a member brings: in memory, and in the one record that says all of a group?

Invariants: who is there may go on as before, but not grow.
Not here: how many groups and offsets there may be (table.py).
Concurrency: event loop only.
Sources: Kafka GroupMetadataManager.storeGroup, which answers UNKNOWN_SERVER_ERROR where a group's record is
    longer than message.max.bytes, once all its members have come.
"""

from sparklog_server.groups.messages import JoinRequest, SyncRequest
from sparklog_server.groups.roster import Roster, protocols_bytes, record_bytes
from sparklog_server.groups.table import GroupTable, Handle
from sparklog_server.settings.groups import GroupSettings


class Room:
    """See the module's docstring."""

    def __init__(self, settings: GroupSettings, table: GroupTable) -> None:
        self._settings = settings
        self._table = table

    def is_there_for(self, request: JoinRequest, handle: Handle | None) -> bool:
        """For a member, new or not, of a group that there is or not."""
        names = (request.member_id or request.new_member_id, request.instance_id)
        growth = protocols_bytes(request.protocols)
        of_record = record_bytes((*names, request.client_id, request.client_host), request.protocols)
        if handle is not None and _is_refused_anyway(handle.group.roster, request):
            return True
        place = "" if handle is None else handle.group.roster.place_of(request.member_id, request.instance_id)
        member = None if handle is None else handle.group.roster.get(place)
        if member is not None:
            growth -= member.held_bytes
            of_record -= member.record_bytes
        if growth > 0 and self._table.held_bytes + growth > self._settings.group_max_bytes:
            return False
        if handle is not None and of_record > 0:
            of_record += handle.group.roster.record_bytes + handle.group.roster.assignment_bytes
        return of_record <= self._settings.group_max_record_bytes

    def is_there_to_assign(self, request: SyncRequest, handle: Handle) -> bool:
        """For what a leader assigns; of others it is not kept."""
        growth = sum(len(data) for _, data in request.assignments)
        if not growth or handle.group.roster.leader != request.member_id:
            return True
        of_record = handle.group.roster.record_bytes + growth
        return (
            self._table.held_bytes + growth <= self._settings.group_max_bytes
            and of_record <= self._settings.group_max_record_bytes
        )


def _is_refused_anyway(roster: Roster, request: JoinRequest) -> bool:
    """Is it told that it is nobody, or not the one that it says it is? Nothing of it is kept."""
    member_id = request.member_id
    is_known = not member_id or member_id in roster.pending
    return not is_known and bool(roster.identity_error(member_id, request.instance_id))
