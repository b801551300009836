"""DeleteAcls in every version: which ACLs filters take, and that these are gone."""

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.api.acls import MAX_BROAD_FILTERS
from sparklog_server.protocol.apis import ApiKey
from tests.server.api.acl_requests import ALLOW, LITERAL, READ, TOPIC, WITH_AUTHORIZER, acl_filter, creation
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = WITH_AUTHORIZER


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_filters_take_is_removed(
    client: WireClient, running_broker: RunningBroker, version: int
) -> None:
    client.ask(ApiKey.CREATE_ACLS, 3, creations=[creation("a"), creation("b"), creation("c")])
    filters = [acl_filter("a"), acl_filter("x"), acl_filter(resource_type_filter=0), acl_filter("b")]
    found = client.ask(
        ApiKey.DELETE_ACLS, version, filters=[{"_": "DeleteAclsFilter", **one} for one in filters]
    ).filter_results
    assert [one.error_code for one in found] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]
    assert [[acl.resource_name for acl in one.matching_acls] for one in found] == [["a"], [], [], ["b"]]
    assert {acl.name for acl in running_broker.beside().image.acls} == {"c"}


def test_filters_that_are_compared_with_all_acls_are_bounded(client: WireClient) -> None:
    client.ask(ApiKey.CREATE_ACLS, 3, creations=[creation("a")])
    exact = acl_filter(
        "a",
        resource_type_filter=TOPIC,
        pattern_type_filter=LITERAL,
        principal_filter="User:alice",
        host_filter="*",
        operation=READ,
        permission_type=ALLOW,
    )
    filters = [acl_filter(f"x{number}") for number in range(MAX_BROAD_FILTERS + 1)] + [exact]
    found = client.ask(
        ApiKey.DELETE_ACLS, 3, filters=[{"_": "DeleteAclsFilter", **one} for one in filters]
    ).filter_results
    assert [one.error_code for one in found[-2:]] == [ErrorCode.invalid_request, ErrorCode.none]
    assert [len(one.matching_acls) for one in found[-3:]] == [0, 0, 1]
