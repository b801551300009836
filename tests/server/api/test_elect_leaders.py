"""ElectLeaders."""

from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from tests.server.api.controlling import elect, reassign, reassignments, settled, unregister
from tests.support.roots import for_one_broker
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("kind", [0, 1])
def test_the_only_broker_leads_everything(
    asker: WireClient, log: sparklog.SparkLog, version: int, kind: int
) -> None:
    log.create_topic("a", 2)
    commit = settled(log).commit
    asked = [("a", 0), ("a", 1), ("a", 2), ("none", 0)]
    assert elect(asker, *asked, version=version, kind=kind) == (
        "none",
        {
            ("a", 0): "election_not_needed",
            ("a", 1): "election_not_needed",
            ("a", 2): "unknown_topic_or_partition",
            ("none", 0): "unknown_topic_or_partition",
        },
    )
    assert elect(asker, version=version, kind=kind, everything=True) == ("none", {})
    assert log.refresh().commit == commit


@pytest.mark.parametrize("kind", [2, -1, 127])
def test_types_that_do_not_exist(asker: WireClient, kind: int) -> None:
    assert elect(asker, ("a", 0), kind=kind) == ("invalid_request", {})


def test_a_broker_that_is_alone_leads_everything(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient], tmp_path: Path
) -> None:
    broker = start_broker(root=for_one_broker(str(tmp_path / "older")))
    with sparklog.open(broker.root, create=False) as log:
        log.create_topic("a", 1)
        asker = connect(broker)
        told = {("a", 0): "election_not_needed", ("none", 0): "unknown_topic_or_partition"}
        assert elect(asker, ("a", 0), ("none", 0)) == ("none", told)
        assert elect(asker, everything=True) == ("none", {})
        targets = {("a", 0): (1,), ("none", 0): (1,)}
        told = {("a", 0): "none", ("none", 0): "unknown_topic_or_partition"}
        assert reassign(asker, targets) == ("none", told)
        assert reassign(asker, {("a", 0): (2,)})[1] == {("a", 0): "invalid_replica_assignment"}
        assert reassign(asker, {("a", 0): None})[1] == {("a", 0): "no_reassignment_in_progress"}
        assert reassignments(asker) == {}
        assert unregister(asker, 1)[0] == "invalid_request"
        assert unregister(asker, 2)[0] == "broker_id_not_registered"
