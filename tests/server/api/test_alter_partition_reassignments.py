"""AlterPartitionReassignments."""

import pytest

import sparklog
from tests.server.api.controlling import reassign, settled
from tests.support.wire_client import WireClient


@pytest.mark.parametrize("version", range(2))
def test_the_only_broker_has_everything(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("a", 4)
    commit = settled(log).commit
    targets = {("a", 0): (1,), ("a", 1): (1, 2), ("a", 2): (), ("a", 3): None, ("a", 4): (1,)}
    assert reassign(asker, targets, version=version) == (
        "none",
        {
            ("a", 0): "none",
            ("a", 1): "invalid_replica_assignment",
            ("a", 2): "invalid_replica_assignment",
            ("a", 3): "no_reassignment_in_progress",
            ("a", 4): "unknown_topic_or_partition",
        },
    )
    assert log.refresh().commit == commit
