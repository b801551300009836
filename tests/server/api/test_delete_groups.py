"""DeleteGroups in every version."""

import pytest

from tests.server.api.group_requests import DELETE, GROUP_SETTINGS, GROUP_TOPICS, LIST, commit, join, sync
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(asker: WireClient, version: int) -> None:
    sync(asker, join(asker))
    commit(asker, {("orders", 0): 1}, group_id="query")
    answer = asker.ask(DELETE, version, groups_names=("g", "query", "nobody", "query"))
    assert {one.group_id: one.error_code.name for one in answer.results} == {
        "g": "non_empty_group",
        "query": "none",
        "nobody": "group_id_not_found",
    }
    assert [one.group_id for one in asker.ask(LIST, 4).groups] == ["g"]
