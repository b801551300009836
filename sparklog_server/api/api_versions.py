"""ApiVersions (key 18), versions 0-4.

Does: lists exactly the APIs and versions that are registered; a request of a version that is not known gets
    the list in version 0's form with UNSUPPORTED_VERSION, so that the client can ask again.
Does not: features (there are none to finalize); check the client's name and version.
Versions: 3 flexible, client software name (KIP-482, KIP-511); 4 features from version 0 (KIP-1022).
Produce is listed from 0 although it is served from 3: librdkafka before 2.11 otherwise stops compressing
    without a word (kafka #18727). A client that really sends Produce 0-2 is disconnected.
"""

from typing import Any

from sparklog_server.api.registry import api, declared_apis
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode


@api(ApiKey.API_VERSIONS, versions=range(5))
async def handle_api_versions(request: Any, context: RequestContext, _services: Services) -> Any:
    """Answer from the registry; `request` is None when its version is unknown."""
    types = context.types
    listed = [
        make(
            types.ApiVersion,
            api_key=entry.key,
            min_version=0 if entry.key == ApiKey.PRODUCE else entry.versions.start,
            max_version=entry.versions.stop - 1,
        )
        for entry in declared_apis().values()
    ]
    code = ErrorCode.unsupported_version if request is None else ErrorCode.none
    return make(types.ApiVersionsResponse, error_code=code, api_keys=listed)
