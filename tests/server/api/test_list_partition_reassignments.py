"""ListPartitionReassignments."""

import sparklog
from tests.server.api.controlling import reassignments
from tests.support.wire_client import WireClient


def test_a_single_broker_reassigns_nothing(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("a", 2)
    assert reassignments(asker) == {}
    assert reassignments(asker, ("a", 0), ("none", 7)) == {}
