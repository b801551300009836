"""DescribeAcls (key 29), versions 1-3.

Does: answer as a Kafka broker without an authorizer does, with SECURITY_DISABLED: there are no ACLs here.
    MirrorMaker copies those of topics unless told otherwise (sync.topic.acls.enabled); of this answer it
    makes a line in its log, once, and of a broker that does not know the question an error with a stack at
    each round.
Does not: CreateAcls, DeleteAcls.
Versions: 1 prefixed patterns (KIP-290); 2 flexible; 3 user principals of delegation tokens.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make


@api(ApiKey.DESCRIBE_ACLS, versions=range(1, 4))
async def handle_describe_acls(_request: Any, context: RequestContext, _services: Services) -> Any:
    return make(
        context.types.DescribeAclsResponse,
        error_code=ErrorCode.security_disabled,
        error_message="No Authorizer is configured.",
        resources=(),
    )
