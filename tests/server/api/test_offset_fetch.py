"""OffsetFetch in every version: what was committed, and what was not."""

import pytest
from kio.schema.errors import ErrorCode

from tests.server.api.group_requests import FETCH, GROUP_SETTINGS, GROUP_TOPICS, commit, fetch
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_in_every_version(asker: WireClient, version: int) -> None:
    assert fetch(asker, {"orders": [0]}) == {("orders", 0): (-1, "", "none")}
    ok = {("orders", 0): "none", ("returns", 0): "none"}
    assert commit(asker, {("orders", 0): 5, ("returns", 0): 6}, version) == ok
    asked = {"orders": [0, 1], "unknown": [0]}
    expected = {
        ("orders", 0): (5, "note", "none"),
        ("orders", 1): (-1, "", "none"),
        ("unknown", 0): (-1, "", "none"),
    }
    for fetch_version in range(1, 10):
        assert fetch(asker, asked, fetch_version) == expected
        assert fetch(asker, {}, fetch_version) == {}
        if fetch_version >= 2:
            assert fetch(asker, None, fetch_version) == {
                ("orders", 0): (5, "note", "none"),
                ("returns", 0): (6, "note", "none"),
            }


def test_leader_epochs_come_back(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 5})
    topics = [{"_": "OffsetFetchRequestTopic", "name": "orders", "partition_indexes": (0, 1)}]
    (topic,) = asker.ask(FETCH, 5, group_id="g", topics=topics).topics
    assert [one.committed_leader_epoch for one in topic.partitions] == [3, -1]


@pytest.mark.parametrize("version", range(1, 10))
def test_while_offsets_are_loaded_every_partition_says_so(
    asker: WireClient, running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    loading = ErrorCode.coordinator_load_in_progress
    monkeypatch.setattr(running_broker.broker.groups, "fetch_all", lambda _: iter([(loading, {})]))
    suffix = "Topics" if version >= 8 else "Topic"
    topics = [{"_": f"OffsetFetchRequest{suffix}", "name": "orders", "partition_indexes": (0, 1)}]
    if version >= 8:
        group = {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": topics}
        (answer,) = asker.ask(FETCH, version, groups=[group]).groups
    else:
        answer = asker.ask(FETCH, version, group_id="g", topics=topics)
    assert version < 2 or answer.error_code == loading
    (topic,) = answer.topics
    assert [(one.committed_offset, one.error_code) for one in topic.partitions] == [(-1, loading)] * 2


def test_several_groups_at_once(asker: WireClient) -> None:
    commit(asker, {("orders", 0): 5})
    groups = [
        {"_": "OffsetFetchRequestGroup", "group_id": "g", "topics": None},
        {"_": "OffsetFetchRequestGroup", "group_id": "other", "topics": None},
    ]
    answer = asker.ask(FETCH, 8, groups=groups)
    assert [(one.group_id, len(one.topics)) for one in answer.groups] == [("g", 1), ("other", 0)]
