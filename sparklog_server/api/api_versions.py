"""ApiVersions (key 18), versions 0-4.

Does: lists exactly the APIs and versions that are registered; a request of a version that is not known gets
    the list in version 0's form with UNSUPPORTED_VERSION, so that the client can ask again.
    One feature, Kafka's transaction.version, as the root's sparklog.transaction.version has it: by 2 Java's
    producers and franz-go's speak the second protocol (KIP-890).
Does not: change features (UpdateFeatures; the root's settings are changed instead); check the client's name
    and version.
Versions: 3 flexible, client software name (KIP-482, KIP-511), features; 4 those from version 0 (KIP-1022).
Produce is listed from 0 although it is served from 3: librdkafka before 2.11 otherwise stops compressing
    without a word (kafka #18727). A client that really sends Produce 0-2 is disconnected.
"""

from typing import Any

from sparklog.log.config import NEWEST_TRANSACTION_VERSION, TRANSACTION_VERSION_KEY
from sparklog_server.api.registry import api, declared_apis
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make

TRANSACTION_VERSION = "transaction.version"


@api(ApiKey.API_VERSIONS, versions=range(5))
async def handle_api_versions(request: Any, context: RequestContext, services: Services) -> Any:
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
    return make(types.ApiVersionsResponse, error_code=code, api_keys=listed, **_features(types, services))


def _features(types: Any, services: Services) -> dict[str, Any]:
    if not hasattr(types, "SupportedFeatureKey"):  # since version 3
        return {}
    image = services.root.image
    # Of this key alone: another key with a bad value must not keep clients from connecting.
    finalized = services.root.root_config_of([TRANSACTION_VERSION_KEY], image).transaction_version
    return {
        "supported_features": [
            make(
                types.SupportedFeatureKey,
                name=TRANSACTION_VERSION,
                min_version=1,
                max_version=NEWEST_TRANSACTION_VERSION,
            )
        ],
        "finalized_features": [
            make(
                types.FinalizedFeatureKey,
                name=TRANSACTION_VERSION,
                min_version_level=1,
                max_version_level=finalized,
            )
        ],
        "finalized_features_epoch": max(0, image.commit),
    }
