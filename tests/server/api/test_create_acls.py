"""CreateAcls in every version: legal ones are added in one commit, illegal ones are refused alone."""

import pytest
from kio.schema.errors import ErrorCode

from sparklog.metadata import Acl
from sparklog_server.protocol.apis import ApiKey
from tests.server.api.acl_requests import ANY, CLUSTER, WITH_AUTHORIZER, creation
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = WITH_AUTHORIZER
ORDERS = Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_added_once(client: WireClient, running_broker: RunningBroker, version: int) -> None:
    for _ in range(2):
        asked = [creation(), creation("pay", resource_pattern_type=4), creation()]
        results = client.ask(ApiKey.CREATE_ACLS, version, creations=asked).results
        assert [one.error_code for one in results] == [ErrorCode.none] * 3
    prefixed = ORDERS._replace(name="pay", pattern_type="PREFIXED")
    assert running_broker.beside().image.acls == {ORDERS, prefixed}


def test_illegal_acls_are_refused_alone(client: WireClient, running_broker: RunningBroker) -> None:
    asked = [
        creation(resource_type=ANY),
        creation(resource_type=CLUSTER),
        creation(resource_pattern_type=2),
        creation(operation=ANY),
        creation(permission_type=0),
        creation(""),
        creation(principal="alice"),
        creation(),
    ]
    results = client.ask(ApiKey.CREATE_ACLS, 3, creations=asked).results
    assert [one.error_code for one in results] == [ErrorCode.invalid_request] * 7 + [ErrorCode.none]
    assert results[1].error_message == "The only valid name for the CLUSTER resource is kafka-cluster"
    assert running_broker.beside().image.acls == {ORDERS}


def test_without_an_authorizer_there_are_none(start_broker: object, connect: object) -> None:
    running = start_broker({}, root=None)  # type: ignore[operator]
    results = connect(running).ask(ApiKey.CREATE_ACLS, 3, creations=[creation()]).results  # type: ignore[operator]
    assert [one.error_code for one in results] == [ErrorCode.security_disabled]
    assert results[0].error_message == "No Authorizer is configured."
