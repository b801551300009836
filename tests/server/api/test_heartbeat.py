"""Heartbeat in every version: who is a member, of which generation."""

import pytest

from tests.server.api.group_requests import GROUP_SETTINGS, GROUP_TOPICS, HEARTBEAT, join, sync
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_is_of_a_member_and_its_generation(asker: WireClient, version: int) -> None:
    joined = join(asker)
    sync(asker, joined)

    def beat(member_id: str = joined.member_id, generation: int = 1, group: str = "g") -> str:
        answer = asker.ask(HEARTBEAT, version, group_id=group, generation_id=generation, member_id=member_id)
        return str(answer.error_code.name)

    assert beat() == "none"
    assert beat(generation=2) == "illegal_generation"
    assert beat("stranger") == "unknown_member_id"
    assert beat(group="other") == "unknown_member_id"
