"""ElectLeaders."""

import pytest

import sparklog
from tests.server.api.controlling import elect, settled
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
