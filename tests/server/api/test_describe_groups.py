"""DescribeGroups in every version."""

import pytest

from sparklog_server.security.access import NOT_ASKED_FOR
from tests.server.api.group_requests import (
    DESCRIBE,
    GROUP_SETTINGS,
    GROUP_TOPICS,
    SUBSCRIPTION,
    commit,
    join,
    sync,
)
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(6))
def test_describe_groups(asker: WireClient, version: int) -> None:
    joined = join(asker)
    sync(asker, joined)
    commit(asker, {("orders", 0): 1}, group_id="query")
    answer = asker.ask(DESCRIBE, version, groups=("g", "query", "nobody"))
    group, query, nobody = answer.groups
    assert (group.error_code.name, group.group_state, group.protocol_type, group.protocol_data) == (
        "none",
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "test",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (SUBSCRIPTION, b"all")
    assert (query.error_code.name, query.group_state, query.members) == ("none", "Empty", ())
    assert (nobody.error_code.name, nobody.group_state) == ("none", "Dead")
    if version >= 3:
        assert group.authorized_operations == NOT_ASKED_FOR
        (asked,) = asker.ask(DESCRIBE, version, groups=("g",), include_authorized_operations=True).groups
        assert asked.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
