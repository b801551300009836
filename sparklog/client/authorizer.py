"""The verdicts of ACLs: may a principal at a host do an operation on a resource?

    1. A super user may do everything.
    2. The ACLs of a resource are those of its name, of prefixes of it, and of the wildcard `*`. Of these, the
       ones of the principal or `User:*`, at the host or `*`, and of the operation or ALL, match.
    3. A matching DENY denies. Else a matching ALLOW allows; for ALLOW alone, other operations imply DESCRIBE
       and DESCRIBE_CONFIGS. Else the resource is denied, or, without any ACL, as the default says.

Invariants: the verdicts of Kafka's StandardAuthorizer (tests/client/test_authorizer_golden.py has its
    answers). The time of a verdict depends on the length of a name, not on the number of ACLs; the memory of
    remembered verdicts is bounded.
Not here: which operations a request needs (sparklog_server/security/), the ACLs (metadata/model/access.py).
Concurrency: one thread at a time; an authorizer belongs to one set of ACLs.
Sources: Kafka StandardAuthorizerData (findAclRule, findResult), Authorizer.authorizeByResourceType.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sparklog.metadata import ANY_NAME, Acl, AclOperation, PatternType, Permission, ResourceType

ANY_USER = "User:*"
ANY_HOST = "*"
MAX_REMEMBERED: Final = 20_000  # verdicts
_LONG_NAME: Final = 1_000  # characters: the verdict is computed each time
_EXAMPLE = "hardcode"  # Kafka's name of a resource that only super users and wildcards reach

IMPLYING_DESCRIBE = frozenset(
    {
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    }
)
IMPLYING_DESCRIBE_CONFIGS = frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS})
_IMPLYING: Mapping[str, frozenset[str]] = {
    AclOperation.DESCRIBE: frozenset(map(str, IMPLYING_DESCRIBE)),
    AclOperation.DESCRIBE_CONFIGS: frozenset(map(str, IMPLYING_DESCRIBE_CONFIGS)),
}
# The operations that a resource has; ALL besides.
OPERATIONS: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.DESCRIBE,
        AclOperation.WRITE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}


class Verdict(NamedTuple):
    """A verdict, and the rule that it is based on, in Kafka's words."""

    is_allowed: bool
    rule: str


_SUPER_USER = Verdict(is_allowed=True, rule="SuperUser")
_DEFAULTS = {
    True: Verdict(is_allowed=True, rule="DefaultAllow"),
    False: Verdict(is_allowed=False, rule="DefaultDeny"),
}
_ByPrincipal = dict[str, list[Acl]]


class Authorizer:
    """The verdicts of one set of ACLs.

    Args:
        super_users: principals that may do everything.
        allows_by_default: of resources without any ACL.
    """

    def __init__(
        self,
        acls: Iterable[Acl],
        *,
        super_users: frozenset[str] = frozenset(),
        allows_by_default: bool = False,
    ) -> None:
        self._super_users = super_users
        self._default = _DEFAULTS[allows_by_default]
        self._literal: dict[tuple[str, str], _ByPrincipal] = {}
        self._prefixed: dict[str, dict[str, _ByPrincipal]] = {}
        for acl in acls:
            if acl.pattern_type == PatternType.LITERAL:
                of_resource = self._literal.setdefault((acl.resource_type, acl.name), {})
            else:
                of_resource = self._prefixed.setdefault(acl.resource_type, {}).setdefault(acl.name, {})
            of_resource.setdefault(acl.principal, []).append(acl)
        self._lengths = {kind: sorted(set(map(len, found))) for kind, found in self._prefixed.items()}
        self._remembered: dict[tuple[str, str, str, str, str | None], Verdict] = {}

    @property
    def remembered(self) -> int:
        """Return the number of remembered verdicts."""
        return len(self._remembered)

    def decide(self, principal: str, host: str, operation: str, resource_type: str, name: str) -> Verdict:
        """Return the verdict; `operation` is neither ALL nor unknown."""
        key = principal, host, operation, resource_type, name
        verdict = self._remembered.get(key)
        if verdict is None:
            verdict = self._decide(*key)
            if len(name) <= _LONG_NAME:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[key] = verdict
        return verdict

    def decide_any(self, principal: str, host: str, operation: str, resource_type: str) -> bool:
        """True if the operation is allowed on a resource of this type, whatever its name.

        Cost: all ACLs of the type, the first time.
        """
        key = principal, host, operation, resource_type, None  # not "": requests may name that, too
        verdict = self._remembered.get(key)
        if verdict is None:
            is_allowed = self._decide(principal, host, operation, resource_type, _EXAMPLE).is_allowed
            if not is_allowed:
                is_allowed = self._has_reachable(principal, host, operation, resource_type)
            verdict = self._remembered[key] = _DEFAULTS[is_allowed]
        return verdict.is_allowed

    def _decide(self, principal: str, host: str, operation: str, resource_type: str, name: str) -> Verdict:
        if principal in self._super_users:
            return _SUPER_USER
        implying = _IMPLYING.get(operation, frozenset((operation,)))
        allowing: Acl | None = None
        has_acls = False
        for of_resource in self._of_resource(resource_type, name):
            has_acls = True
            for who in (principal, ANY_USER):
                for acl in of_resource.get(who, ()):
                    if acl.host not in (ANY_HOST, host):
                        continue
                    is_of_all = acl.operation == AclOperation.ALL
                    if acl.permission == Permission.DENY:
                        if is_of_all or acl.operation == operation:
                            return Verdict(is_allowed=False, rule=_rule(acl))
                    elif is_of_all or acl.operation in implying:
                        allowing = acl
        if allowing is not None:
            return Verdict(is_allowed=True, rule=_rule(allowing))
        return _DEFAULTS[False] if has_acls else self._default

    def _of_resource(self, resource_type: str, name: str) -> Iterable[_ByPrincipal]:
        for one in dict.fromkeys((name, ANY_NAME)):
            found = self._literal.get((resource_type, one))
            if found is not None:
                yield found
        prefixed = self._prefixed.get(resource_type)
        if prefixed is None:
            return
        for length in self._lengths[resource_type]:
            if length > len(name):
                return
            found = prefixed.get(name[:length])
            if found is not None:
                yield found

    def _has_reachable(self, principal: str, host: str, operation: str, resource_type: str) -> bool:
        """True if an ALLOW of this very operation is not covered by a DENY."""
        allowed, denied = self._patterns(principal, host, operation, resource_type)
        if (PatternType.LITERAL, ANY_NAME) in denied:
            return False
        if (PatternType.LITERAL, ANY_NAME) in allowed:
            return True
        for kind, name in allowed:
            if kind == PatternType.LITERAL and (kind, name) in denied:
                continue
            prefixes = (name[:length] for length in range(1, len(name) + 1))
            if not any((PatternType.PREFIXED, prefix) in denied for prefix in prefixes):
                return True
        return False

    def _patterns(
        self, principal: str, host: str, operation: str, resource_type: str
    ) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """Return the patterns that are allowed, and denied; here no operation implies another."""
        literal = (found for (kind, _), found in self._literal.items() if kind == resource_type)
        found = {Permission.ALLOW: set[tuple[str, str]](), Permission.DENY: set[tuple[str, str]]()}
        for of_resource in (*literal, *self._prefixed.get(resource_type, {}).values()):
            for who in (principal, ANY_USER):
                for acl in of_resource.get(who, ()):
                    if acl.host in (ANY_HOST, host) and acl.operation in (operation, AclOperation.ALL):
                        found[Permission(acl.permission)].add((acl.pattern_type, acl.name))
        return found[Permission.ALLOW], found[Permission.DENY]


def _rule(acl: Acl) -> str:
    return (
        f"MatchingAcl(acl=StandardAcl(resourceType={acl.resource_type}, resourceName={acl.name}, "
        f"patternType={acl.pattern_type}, principal={acl.principal}, host={acl.host}, "
        f"operation={acl.operation}, permissionType={acl.permission}))"
    )


def parse_super_users(text: str) -> frozenset[str]:
    """Parse Kafka's super.users: `User:alice;User:CN=broker,O=x`. ValueError for a text without a type."""
    names = [part.strip() for part in text.split(";") if part.strip()]
    for name in names:
        kind, separator, rest = name.partition(":")
        if not (kind and separator and rest):
            raise ValueError(f"found {name[:100]!r}, expected principals such as User:alice")
    return frozenset(names)


# --- filters -----------------------------------------------------------------------------------------


class AclFilter(NamedTuple):
    """Which ACLs are meant; None: any.

    Fields:
        matches: of a named resource, all ACLs that would apply to it; `pattern_type` is None then.
    """

    resource_type: str | None = None
    name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None
    matches: bool = False

    @property
    def exact(self) -> Acl | None:
        """Return the only ACL that it can take; None if it may take several."""
        wanted = self[:7]
        return None if self.matches or None in wanted else Acl(*wanted)  # type: ignore[arg-type]

    def found_in(self, acls: frozenset[Acl]) -> list[Acl]:
        """Return the ACLs that it takes, in order. Cost: all of them, unless it is exact."""
        exact = self.exact
        if exact is not None:
            return [exact] if exact in acls else []
        return sorted(filter(self.takes, acls))

    def takes(self, acl: Acl) -> bool:
        """True if the ACL is meant."""
        wanted = (
            (self.resource_type, acl.resource_type),
            (self.pattern_type, acl.pattern_type),
            (self.principal, acl.principal),
            (self.host, acl.host),
            (self.operation, acl.operation),
            (self.permission, acl.permission),
        )
        if any(one is not None and one != found for one, found in wanted):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if not self.matches:
            return False
        if acl.pattern_type == PatternType.LITERAL:
            return acl.name == ANY_NAME
        return self.name.startswith(acl.name)
