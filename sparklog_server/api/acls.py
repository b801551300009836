"""ACLs: who may do what.

Not here: rules of an ACL (sparklog/metadata/model/access.py), verdicts (security/access.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sparklog.client.authorizer import AclFilter
from sparklog.metadata import (
    Acl,
    AclOperation,
    Action,
    Image,
    PatternType,
    Permission,
    ResourceType,
    plan_change_acls,
    why_illegal_acl,
)
from sparklog_server.admin.changes import Part, RefusedError
from sparklog_server.admin.configs import invalid_request
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import in_slices

# --- codes -------------------------------------------------------------------------------------------
#
# Kafka's numbers of what an ACL says; 0 is UNKNOWN, 1 is ANY.

T = TypeVar("T", bound=str)
_ANY, _MATCH, _LITERAL = 1, 2, 3
MAX_BROAD_FILTERS: Final = 100
_ACL_BYTES: Final = 500  # while an answer is made


def _codes(names: Iterable[T], first: int = 2) -> Mapping[int, T]:
    return dict(enumerate(names, first))


RESOURCE_TYPES, OPERATIONS, PERMISSIONS = _codes(ResourceType), _codes(AclOperation), _codes(Permission)
PATTERN_TYPES = _codes(PatternType, _LITERAL)
_RESOURCE_CODES = {name: code for code, name in RESOURCE_TYPES.items()}
_OPERATION_CODES = {name: code for code, name in OPERATIONS.items()}
_PERMISSION_CODES = {name: code for code, name in PERMISSIONS.items()}
_PATTERN_CODES = {name: code for code, name in PATTERN_TYPES.items()}
_NO_AUTHORIZER = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No Authorizer is configured.",
}


def _filter(asked: Any) -> AclFilter:
    """Return the filter of a request; RefusedError for one with an UNKNOWN element."""
    pattern = asked.pattern_type_filter
    return AclFilter(
        resource_type=_named(asked.resource_type_filter, RESOURCE_TYPES),
        name=asked.resource_name_filter,
        pattern_type=None if pattern == _MATCH else _named(pattern, PATTERN_TYPES),
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_named(asked.operation, OPERATIONS),
        permission=_named(asked.permission_type, PERMISSIONS),
        matches=pattern == _MATCH,
    )


def _named(code: int, names: Mapping[int, T]) -> T | None:
    if code == _ANY:
        return None
    if code not in names:
        raise invalid_request("The AclBindingFilter must not contain UNKNOWN elements.")
    return names[code]


def _described(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": _OPERATION_CODES[AclOperation(acl.operation)],
        "permission_type": _PERMISSION_CODES[Permission(acl.permission)],
    }


def _resource(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": _RESOURCE_CODES[ResourceType(acl.resource_type)],
        "resource_name": acl.name,
        "pattern_type": _PATTERN_CODES[PatternType(acl.pattern_type)],
    }


# --- DescribeAcls ------------------------------------------------------------------------------------


@api(ApiKey.DESCRIBE_ACLS, versions=range(1, 4))
async def handle_describe_acls(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeAcls (key 29), versions 1-3.

    Does: the ACLs that a filter takes, by resource; pattern types ANY and MATCH, too. Without an authorizer
        SECURITY_DISABLED, as a Kafka broker: MirrorMaker, which copies ACLs of topics by default, logs that
        once.
    Versions: 1 prefixed patterns (KIP-290); 2 flexible; 3 user principals of delegation tokens.
    """
    types = context.types
    if not services.access.is_on:
        return make(types.DescribeAclsResponse, **_NO_AUTHORIZER, resources=())
    wanted = _refusal_or(request)
    if isinstance(wanted, str):
        code = ErrorCode.invalid_request
        return make(types.DescribeAclsResponse, error_code=code, error_message=wanted, resources=())
    await services.root.look()
    found = await services.root.run(wanted.found_in, services.root.image.acls)
    await context.answer.hold(_ACL_BYTES * len(found))
    by_resource: dict[tuple[str, str, str], list[Acl]] = {}
    for acl in found:
        by_resource.setdefault(acl[:3], []).append(acl)
    resources = (
        make(
            types.DescribeAclsResource,
            **_resource(acls[0]),
            acls=[make(types.AclDescription, **_described(acl)) for acl in acls],
        )
        for acls in by_resource.values()
    )
    return make(types.DescribeAclsResponse, error_code=ErrorCode.none, resources=await in_slices(resources))


def _refusal_or(asked: Any) -> AclFilter | str:
    """Return the filter, or why there is none."""
    try:
        return _filter(asked)
    except RefusedError as error:
        return str(error)


# --- CreateAcls --------------------------------------------------------------------------------------


@api(ApiKey.CREATE_ACLS, versions=range(1, 4))
async def handle_create_acls(request: Any, context: RequestContext, services: Services) -> Any:
    """CreateAcls (key 30), versions 1-3.

    Does: add ACLs to the root, all legal ones in one commit; one that exists is no error. Any broker does it,
        and every broker follows it. Without an authorizer SECURITY_DISABLED.
    Does not: keep more than 20,000 ACLs (INVALID_REQUEST).
    Versions: 1 prefixed patterns (KIP-290); 2 flexible; 3 user principals of delegation tokens.
    """
    types = context.types
    if not services.access.is_on:
        results = [make(types.AclCreationResult, **_NO_AUTHORIZER) for _ in request.creations]
        return make(types.CreateAclsResponse, results=results)
    adding = _Adding(request.creations)
    outcomes = await services.changes.make(adding.parts, completing=adding.plan)
    return make(
        types.CreateAclsResponse,
        results=[
            make(types.AclCreationResult, error_code=outcome.code, error_message=outcome.message)
            for outcome in outcomes.values()
        ],
    )


class _Adding:
    """The ACLs of a request; illegal ones are left out."""

    def __init__(self, creations: Sequence[Any]) -> None:
        self._acls = [_acl(one) for one in creations]
        self.parts: dict[int, Part] = {number: _valid(acl) for number, acl in enumerate(self._acls)}

    def plan(self, image: Image, _actions: Sequence[Action]) -> Sequence[Action]:
        return plan_change_acls(image, added=[acl for acl in self._acls if not why_illegal_acl(acl)])


def _valid(acl: Acl) -> Part:
    def part(_: Image) -> None:
        if reason := why_illegal_acl(acl):
            raise invalid_request(reason)

    return part


def _acl(one: Any) -> Acl:
    """Return the ACL of a creation; codes that no ACL can have stay numbers, which are refused."""
    return Acl(
        RESOURCE_TYPES.get(one.resource_type, str(one.resource_type)),
        one.resource_name,
        PATTERN_TYPES.get(one.resource_pattern_type, str(one.resource_pattern_type)),
        one.principal,
        one.host,
        OPERATIONS.get(one.operation, str(one.operation)),
        PERMISSIONS.get(one.permission_type, str(one.permission_type)),
    )


# --- DeleteAcls --------------------------------------------------------------------------------------


@api(ApiKey.DELETE_ACLS, versions=range(1, 4))
async def handle_delete_acls(request: Any, context: RequestContext, services: Services) -> Any:
    """DeleteAcls (key 31), versions 1-3.

    Does: remove the ACLs that any of the filters takes, in one commit, and answer which these were. Without
        an authorizer SECURITY_DISABLED.
    At most 100 of its filters may take several ACLs (INVALID_REQUEST for the others): each is compared with
    all.
    Versions: 1 prefixed patterns (KIP-290); 2 flexible; 3 user principals of delegation tokens.
    """
    types = context.types
    if not services.access.is_on:
        results = [make(types.DeleteAclsFilterResult, **_NO_AUTHORIZER) for _ in request.filters]
        return make(types.DeleteAclsResponse, filter_results=results)
    removing = _Removing(request.filters)
    outcomes = await services.changes.make(removing.parts, completing=removing.plan)
    found = removing.found
    await context.answer.hold(_ACL_BYTES * sum(map(len, found.values())))
    results = await in_slices(
        make(
            types.DeleteAclsFilterResult,
            error_code=outcome.code,
            error_message=outcome.message,
            matching_acls=[] if outcome.is_error else list(_removed(types, found.get(number, ()))),
        )
        for number, outcome in outcomes.items()
    )
    return make(types.DeleteAclsResponse, filter_results=results)


class _Removing:
    """The ACLs that a request's filters take; `found`, by filter, of the last plan."""

    def __init__(self, filters: Sequence[Any]) -> None:
        self._wanted = [_refusal_or(one) for one in filters]
        broad = 0
        for number, wanted in enumerate(self._wanted):
            if isinstance(wanted, AclFilter) and wanted.exact is None:
                broad += 1
                if broad > MAX_BROAD_FILTERS:
                    self._wanted[number] = f"more than {MAX_BROAD_FILTERS} filters that take several ACLs"
        self.parts: dict[int, Part] = {number: _known(one) for number, one in enumerate(self._wanted)}
        self.found: dict[int, list[Acl]] = {}

    def plan(self, image: Image, _actions: Sequence[Action]) -> Sequence[Action]:
        self.found = {
            number: wanted.found_in(image.acls)
            for number, wanted in enumerate(self._wanted)
            if isinstance(wanted, AclFilter)
        }
        return plan_change_acls(image, removed=[acl for acls in self.found.values() for acl in acls])


def _known(wanted: AclFilter | str) -> Part:
    def part(_: Image) -> None:
        if isinstance(wanted, str):
            raise invalid_request(wanted)

    return part


def _removed(types: Any, acls: Iterable[Acl]) -> Iterator[Any]:
    return (
        make(types.DeleteAclsMatchingAcl, error_code=ErrorCode.none, **_resource(acl), **_described(acl))
        for acl in acls
    )
