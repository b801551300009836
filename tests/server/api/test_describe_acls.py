"""DescribeAcls in every version: there is no authorizer, as MirrorMaker and Kafka's tools know it."""

import pytest
from kio.schema.errors import ErrorCode

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
