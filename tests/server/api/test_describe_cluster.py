"""DescribeCluster in every version."""

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

DESCRIBE_CLUSTER = 60


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_this_broker(
    asker: WireClient, running_broker: RunningBroker, log: sparklog.SparkLog, version: int
) -> None:
    response = asker.ask(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.port) == (1, "127.0.0.1", running_broker.port)
    assert (response.cluster_id, response.controller_id) == (log.cluster_id, 1)
    assert response.cluster_authorized_operations == 8096
    assert broker.rack is None
    if version >= 2:
        assert not broker.is_fenced
        assert asker.ask(DESCRIBE_CLUSTER, 2, include_fenced_brokers=True).brokers == response.brokers


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, "mismatched_endpoint_type"), (9, "unsupported_endpoint_type")]
)
def test_only_brokers_can_be_described(asker: WireClient, endpoint_type: int, code: str) -> None:
    response = asker.ask(DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert response.error_code is ErrorCode[code]
    assert response.error_message
