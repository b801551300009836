"""ApiVersions (key 18), versions 0-4.

Does: lists exactly the APIs and versions that are registered; a request of a version that is not known gets
    the list in version 0's form with UNSUPPORTED_VERSION, so that the client can ask again.
    One feature, under the name of the root's setting: up to which version of the metadata documents this
    broker reads, and the one that the root's owner agreed to. It is no metadata.version of Kafka's, which
    would promise records that do not exist here; and there is no transaction.version, by which producers
    would begin transactions in another way.
Does not: change features (UpdateFeatures; the root's setting is changed instead); check the client's name
    and version.
Versions: 3 flexible, client software name (KIP-482, KIP-511), features; 4 those from version 0 (KIP-1022).
Produce is listed from 0 although it is served from 3: librdkafka before 2.11 otherwise stops compressing
    without a word (kafka #18727). A client that really sends Produce 0-2 is disconnected.
"""

from typing import Any

from sparklog.metadata import METADATA_VERSION_KEY, VERSION, agreed_version
from sparklog_server.api.registry import api, declared_apis
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode


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
    agreed = agreed_version(image.configs)
    return {
        "supported_features": [
            make(types.SupportedFeatureKey, name=METADATA_VERSION_KEY, min_version=1, max_version=VERSION)
        ],
        "finalized_features": [
            make(
                types.FinalizedFeatureKey,
                name=METADATA_VERSION_KEY,
                min_version_level=1,
                max_version_level=agreed,
            )
        ],
        "finalized_features_epoch": max(0, image.commit),
    }
