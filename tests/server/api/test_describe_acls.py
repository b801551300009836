"""DescribeAcls in every version: filters as in Kafka; without an authorizer SECURITY_DISABLED."""

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.protocol.apis import ApiKey
from tests.server.api.acl_requests import LITERAL, MATCH, PREFIXED, WITH_AUTHORIZER, acl_filter, creation
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = WITH_AUTHORIZER


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_is_no_authorizer(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient], version: int
) -> None:
    response = connect(start_broker()).ask(ApiKey.DESCRIBE_ACLS, version, **acl_filter())
    assert response.error_code is ErrorCode.security_disabled
    assert response.error_message == "No Authorizer is configured."
    assert response.resources == ()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_by_resource(client: WireClient, version: int) -> None:
    acls = [
        creation("orders"),
        creation("orders", principal="User:bob", host="10.0.0.1"),
        creation("ord", resource_pattern_type=PREFIXED),
        creation("*"),
    ]
    client.ask(ApiKey.CREATE_ACLS, 3, creations=acls)

    def names(**fields: object) -> list[str]:
        found = client.ask(ApiKey.DESCRIBE_ACLS, version, **acl_filter(**fields))  # type: ignore[arg-type]
        assert found.error_code is ErrorCode.none
        return [one.resource_name for one in found.resources for _ in one.acls]

    assert names() == ["*", "ord", "orders", "orders"]
    assert names(name="orders") == ["orders", "orders"]
    assert names(name="orders", pattern_type_filter=MATCH) == ["*", "ord", "orders", "orders"]
    assert names(name="orders", pattern_type_filter=PREFIXED) == []
    assert names(name="ord", pattern_type_filter=LITERAL) == []
    assert names(principal_filter="User:bob") == ["orders"]
    assert names(host_filter="10.0.0.1", operation=3) == ["orders"]
    assert names(permission_type=2) == []


def test_a_filter_with_an_unknown_element_is_refused(client: WireClient) -> None:
    found = client.ask(ApiKey.DESCRIBE_ACLS, 3, **acl_filter(operation=0))
    assert found.error_code is ErrorCode.invalid_request
    assert found.error_message == "The AclBindingFilter must not contain UNKNOWN elements."
