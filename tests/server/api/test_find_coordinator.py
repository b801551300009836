"""FindCoordinator in every version: groups are here (transactions: tests/server/transactions)."""

import pytest

import sparklog
from tests.server.api.group_requests import FIND, GROUP_SETTINGS, GROUP_TOPICS
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(asker: WireClient, running_broker: RunningBroker, version: int) -> None:
    if version < 4:
        found = [asker.ask(FIND, version, key="g")]
    else:
        found = list(asker.ask(FIND, version, key_type=0, coordinator_keys=("g", "h")).coordinators)
        assert [one.key for one in found] == ["g", "h"]
    for one in found:
        assert (one.error_code.name, one.node_id) == ("none", 1)
        assert (one.host, one.port) == (running_broker.host, running_broker.port)


def test_other_coordinators_are_unknown(asker: WireClient) -> None:
    (found,) = asker.ask(FIND, 4, key_type=3, coordinator_keys=("t",)).coordinators
    assert found.error_code.name == "invalid_request"


def test_the_leader_coordinates_a_share_group_in_a_partition(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    log.create_topic("shared", 1)
    topic_id = log.image.topic("shared").topic_id
    keys = (f"a:b:{topic_id}:0", f"g:{topic_id}:1", f"g:{topic_id}:x", "g:t:0", "")
    found = asker.ask(FIND, 6, key_type=2, coordinator_keys=keys).coordinators
    names = [one.error_code.name for one in found]
    assert names == ["none", *["coordinator_not_available"] * 4]
    assert found[0].node_id == 1
