"""ApiVersions (key 18), versions 0-4.

Does: lists exactly the APIs and versions that are registered; a request of a version that is not known gets
    the list in version 0's form with UNSUPPORTED_VERSION, so that the client can ask again.
    Two features. One under the name of the root's setting: up to which version of the metadata documents this
    broker reads, and the one that the root's owner agreed to. It is no metadata.version of Kafka's, which
    would promise records that do not exist here. The other is Kafka's transaction.version, as the root's
    sparklog.transaction.version has it: by 2 Java's producers and franz-go's speak the second protocol
    (KIP-890). It is not finalized in a root whose owner has not agreed to transactions.
Does not: change features (UpdateFeatures; the root's settings are changed instead); check the client's name
    and version.
Versions: 3 flexible, client software name (KIP-482, KIP-511), features; 4 those from version 0 (KIP-1022).
Produce is listed from 0 although it is served from 3: librdkafka before 2.11 otherwise stops compressing
    without a word (kafka #18727). A client that really sends Produce 0-2 is disconnected.
"""

from typing import Any

from sparklog.log.root_config import NEWEST_TRANSACTION_VERSION, TRANSACTION_VERSION_KEY
from sparklog.metadata import METADATA_VERSION_KEY, TRANSACTIONS_VERSION, VERSION, agreed_version
from sparklog_server.api.registry import api, declared_apis
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode

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
    agreed = agreed_version(image.configs)
    finalized = {METADATA_VERSION_KEY: agreed}
    if agreed >= TRANSACTIONS_VERSION:
        # Without an answer to this no client gets as far as asking for anything.
        of_transactions = services.root.root_config_of([TRANSACTION_VERSION_KEY], image)
        finalized[TRANSACTION_VERSION] = of_transactions.transaction_version
    supported = {METADATA_VERSION_KEY: VERSION, TRANSACTION_VERSION: NEWEST_TRANSACTION_VERSION}
    return {
        "supported_features": [
            make(types.SupportedFeatureKey, name=name, min_version=1, max_version=version)
            for name, version in supported.items()
        ],
        "finalized_features": [
            make(types.FinalizedFeatureKey, name=name, min_version_level=1, max_version_level=version)
            for name, version in finalized.items()
        ],
        "finalized_features_epoch": max(0, image.commit),
    }
