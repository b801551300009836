"""UnregisterBroker."""

import sparklog
from tests.server.api.controlling import unregister
from tests.support.wire_client import WireClient


def test_a_broker_that_runs_is_not_unregistered(asker: WireClient, log: sparklog.SparkLog) -> None:
    commit = log.image.commit
    error, message = unregister(asker, 1)
    assert error == "invalid_request"
    assert "broker 1 is running: stop it" in message
    assert unregister(asker, 2)[0] == "broker_id_not_registered"
    assert log.refresh().commit == commit
