"""DescribeAcls in every version: there is no authorizer, as MirrorMaker and Kafka's tools know it."""

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

DESCRIBE_ACLS = 29
ANY = 1


@pytest.mark.parametrize("version", [1, 2, 3])
def test_there_is_no_authorizer(client: WireClient, version: int) -> None:
    response = client.ask(
        DESCRIBE_ACLS,
        version,
        resource_type_filter=2,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    assert response.error_code is ErrorCode.security_disabled
    assert response.error_message == "No Authorizer is configured."
    assert response.resources == ()


def test_librdkafka_takes_it_for_none(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    every = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(every, request_timeout=60).result() == []
