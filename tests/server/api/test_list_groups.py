"""ListGroups in every version, with its filters."""

import pytest

from tests.server.api.group_requests import GROUP_SETTINGS, GROUP_TOPICS, LIST, commit, join, sync
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(6))
def test_list_groups(asker: WireClient, version: int) -> None:
    sync(asker, join(asker))
    commit(asker, {("orders", 0): 1}, group_id="query")
    listed = asker.ask(LIST, version)
    assert listed.error_code.name == "none"
    assert {(one.group_id, one.protocol_type) for one in listed.groups} == {("g", "consumer"), ("query", "")}
    if version >= 4:
        assert {one.group_id: one.group_state for one in listed.groups} == {"g": "Stable", "query": "Empty"}
        stable = asker.ask(LIST, version, states_filter=("stable", "Dead"))
        assert [one.group_id for one in stable.groups] == ["g"]
    if version >= 5:
        assert {one.group_type for one in listed.groups} == {"classic"}
        assert asker.ask(LIST, version, types_filter=("consumer",)).groups == ()
        assert len(asker.ask(LIST, version, types_filter=("Classic",)).groups) == 2
