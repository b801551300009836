"""LeaveGroup in every version: one member, or several at once."""

import pytest

from tests.server.api.group_requests import DESCRIBE, GROUP_SETTINGS, GROUP_TOPICS, LEAVE, join, sync
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(6))
def test_the_last_member_leaves_an_empty_group(asker: WireClient, version: int) -> None:
    joined = join(asker)
    sync(asker, joined)
    if version < 3:
        left = asker.ask(LEAVE, version, group_id="g", member_id=joined.member_id)
    else:
        member = {"_": "MemberIdentity", "member_id": joined.member_id}
        left = asker.ask(LEAVE, version, group_id="g", members=[member])
        assert [(one.member_id, one.error_code.name) for one in left.members] == [(joined.member_id, "none")]
    assert left.error_code.name == "none"
    (group,) = asker.ask(DESCRIBE, 5, groups=("g",)).groups
    assert (group.group_state, group.members) == ("Empty", ())
