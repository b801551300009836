"""ApiVersions in every version."""

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.api.registry import declared_apis
from tests.support.wire_client import WireClient

API_VERSIONS = 18


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_registered(asker: WireClient, version: int) -> None:
    response = asker.ask(API_VERSIONS, version)
    assert response.error_code is ErrorCode.none
    listed = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    served = {key: (entry.versions.start, entry.versions.stop - 1) for key, entry in declared_apis().items()}
    assert served[0][0] == 3
    assert listed == served | {0: (0, served[0][1])}
