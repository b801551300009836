"""Who may do what, and how much: ACLs and quotas of clients.

Invariants: an ACL is in the image once, or not at all; at most MAX_ACLS of them. A quota belongs to one
    entity: a user, a client id, both, or an address; at most MAX_QUOTAS entities have some. Both have
    Kafka's forms, so that Kafka's tools list what they have created.
Not here: what ACLs allow (client/authorizer.py), what quotas do (sparklog_server/quotas/).
Sources: FORMAT.md#metadata-log; adr/0040; Kafka AccessControlEntry, AclControlManager,
    ClientQuotaControlManager.
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Acl, Image, QuotaEntity
from sparklog.metadata.model.settings import RequireFeatures

# --- acls --------------------------------------------------------------------------------------------


MAX_ACLS: Final = 20_000
MAX_TEXT: Final = 1_000  # characters of a resource's name, a principal, or a host
ACLS_FEATURE, QUOTAS_FEATURE = "acls", "quotas"
CLUSTER_NAME = "kafka-cluster"
ANY_NAME = "*"  # a literal pattern of this name matches every resource of its type


class _Name(enum.StrEnum):
    """A name of Kafka's. It is hashed as text: an enum's own hash takes ten times as long."""

    __hash__ = str.__hash__


class ResourceType(_Name):
    """What an ACL is about."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"  # noqa: S105 - Kafka's name
    USER = "USER"


class PatternType(_Name):
    """How an ACL names its resources."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class AclOperation(_Name):
    """What is allowed or denied."""

    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    TWO_PHASE_COMMIT = "TWO_PHASE_COMMIT"


class Permission(_Name):
    """Allowed or denied."""

    DENY = "DENY"
    ALLOW = "ALLOW"


class ChangeAcls(ActionBase, tag="change_acls", frozen=True, kw_only=True):
    """These ACLs are new, and these are gone."""

    added: tuple[Acl, ...] = ()
    removed: tuple[Acl, ...] = ()


def change_acls(draft: ImageDraft, action: ChangeAcls) -> None:
    """Apply: what is removed is there, what is added is not."""
    added, removed = frozenset(action.added), frozenset(action.removed)
    if len(added) < len(action.added) or len(removed) < len(action.removed) or added & removed:
        raise ActionRefusedError("an ACL is named twice")
    for acl in action.added:
        refuse(why_illegal_acl(acl), f"ACL {acl}")
    if missing := removed - draft.acls:
        raise ActionRefusedError(f"ACL {next(iter(missing))} is removed, and does not exist")
    if known := added & draft.acls:
        raise ActionRefusedError(f"ACL {next(iter(known))} is added, and exists")
    acls = (draft.acls - removed) | added
    if len(acls) > MAX_ACLS:
        raise ActionRefusedError(f"{len(acls):,} ACLs, expected at most {MAX_ACLS:,}")
    draft.acls = acls


def why_illegal_acl(acl: Acl) -> str | None:
    """Return the rule that an ACL breaks, in Kafka's words where Kafka has some; or None."""
    kinds: Sequence[tuple[str, type[enum.StrEnum], str]] = (
        (acl.resource_type, ResourceType, "resourceType"),
        (acl.pattern_type, PatternType, "patternType"),
        (acl.operation, AclOperation, "operation"),
        (acl.permission, Permission, "permissionType"),
    )
    for found, kind, name in kinds:
        if found not in kind.__members__:
            return f"Invalid {name} {found}"
    if not acl.name:
        return "Resource name should not be empty"
    if acl.resource_type == ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    kind_of_principal, separator, name = acl.principal.partition(":")
    if not (kind_of_principal and separator and name):
        return (
            f"Could not parse principal from `{acl.principal[:100]}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if not acl.host:
        return "Host should not be empty"
    if longest := next((one for one in acl if len(one) > MAX_TEXT), None):
        return f"found a text of {len(longest)} characters, expected at most {MAX_TEXT}"
    return None


def validate_acl(acl: Acl) -> None:
    """Raise InvalidRequestError INVALID_ACL for an ACL that breaks a rule."""
    if reason := why_illegal_acl(acl):
        raise InvalidRequestError("INVALID_ACL", reason, fix="Fix the ACL; nothing was changed")


def plan_change_acls(
    image: Image, *, added: Iterable[Acl] = (), removed: Iterable[Acl] = ()
) -> list[RequireFeatures | ChangeAcls]:
    """Plan ACLs; those that exist already, or do not exist, are left out. Empty: nothing changes.

    Raises: InvalidRequestError INVALID_ACL, or TOO_MANY_ACLS.
    """
    new = tuple(dict.fromkeys(acl for acl in added if acl not in image.acls))
    old = tuple(dict.fromkeys(acl for acl in removed if acl in image.acls))
    for acl in new:
        validate_acl(acl)
    if len(image.acls) + len(new) - len(old) > MAX_ACLS:
        raise InvalidRequestError(
            "TOO_MANY_ACLS",
            f"found {len(image.acls):,} ACLs and {len(new):,} new ones, expected at most {MAX_ACLS:,}",
            fix="Use prefixed or wildcard patterns, or remove ACLs that no client needs",
        )
    if not new and not old:
        return []
    return [*_needed(image, ACLS_FEATURE), ChangeAcls(added=new, removed=old)]


def _needed(image: Image, feature: str) -> list[RequireFeatures]:
    """Older software would serve clients without these rules, so it must not open the root."""
    if feature in image.reader_features and feature in image.writer_features:
        return []
    return [RequireFeatures(readers=(feature,), writers=(feature,))]


# --- quotas ------------------------------------------------------------------------------------------


MAX_QUOTAS: Final = 10_000  # entities
USER, CLIENT_ID, IP = "user", "client-id", "ip"
BYTES, INTEGER, NUMBER = "bytes", "integer", "number"
# Kafka's keys: what each counts, and which entities have it.
OF_CLIENTS: Mapping[str, str] = {
    "producer_byte_rate": BYTES,
    "consumer_byte_rate": BYTES,
    "request_percentage": NUMBER,
    "controller_mutation_rate": NUMBER,
}
OF_ADDRESSES: Mapping[str, str] = {"connection_creation_rate": INTEGER}
_LARGEST = {BYTES: (1 << 63) - 1, INTEGER: (1 << 31) - 1, NUMBER: math.inf}


class SetQuotas(ActionBase, tag="set_quotas", frozen=True, kw_only=True):
    """Quotas of an entity; null removes one. An entity without quotas is forgotten."""

    entity: QuotaEntity
    quotas: dict[str, float | None]


def set_quotas(draft: ImageDraft, action: SetQuotas) -> None:
    """Apply: quotas that are not named do not change."""
    refuse(why_illegal_quotas(action.entity, action.quotas), f"quotas of {action.entity}")
    quotas = dict(draft.quotas)
    own = dict(quotas.pop(action.entity, {}))
    for key, value in action.quotas.items():
        if value is None:
            own.pop(key, None)
        else:
            own[key] = value
    if own:
        quotas[action.entity] = own
    if len(quotas) > MAX_QUOTAS:
        raise ActionRefusedError(f"{len(quotas):,} entities with quotas, expected at most {MAX_QUOTAS:,}")
    draft.quotas = quotas


def why_illegal_entity(entity: QuotaEntity) -> str | None:
    """Return the rule that an entity breaks, or None."""
    kinds = [kind for kind, _ in entity]
    if not kinds:
        return "Invalid empty client quota entity"
    if unknown := set(kinds) - {USER, CLIENT_ID, IP}:
        return f"Unhandled client quota entity type: {min(unknown)}"
    if kinds != sorted(set(kinds)):
        return "a type of entity is named twice, or their order is not that of the alphabet"
    if IP in kinds and len(kinds) > 1:
        return f"Invalid quota entity combination, {IP} is combined with {CLIENT_ID} or {USER}"
    if any(name is not None and not 0 < len(name) <= MAX_TEXT for _, name in entity):
        return f"a name is empty, or has more than {MAX_TEXT} characters"
    return None


def why_illegal_quotas(entity: QuotaEntity, quotas: Mapping[str, float | None]) -> str | None:
    """Return the rule that an entity, or its quotas, break, or None."""
    if reason := why_illegal_entity(entity):
        return reason
    known = OF_ADDRESSES if entity[0][0] == IP else OF_CLIENTS
    for key, value in quotas.items():
        if key not in known:
            return f"Invalid configuration key {key[:100]}"
        if value is None:
            continue
        if not value > 0 or math.isinf(value):
            return f"Quota {key} must be greater than 0"
        if known[key] != NUMBER and (value != int(value) or value > _LARGEST[known[key]]):
            return f"{key} must be a whole number, at most {_LARGEST[known[key]]}"
    return None


def plan_set_quotas(
    image: Image, wanted: Mapping[QuotaEntity, Mapping[str, float | None]]
) -> list[RequireFeatures | SetQuotas]:
    """Plan quotas of entities. Empty: nothing changes.

    Raises: InvalidRequestError INVALID_QUOTA, or TOO_MANY_QUOTAS.
    """
    actions = []
    for entity, quotas in wanted.items():
        if reason := why_illegal_quotas(entity, quotas):
            raise InvalidRequestError("INVALID_QUOTA", reason, fix="Fix the quota; nothing was changed")
        own = image.quotas.get(entity, {})
        changed = {key: value for key, value in quotas.items() if own.get(key) != value}
        if changed:
            actions.append(SetQuotas(entity=entity, quotas=changed))
    count = len({*image.quotas, *(one.entity for one in actions)})
    if count > MAX_QUOTAS and count > len(image.quotas):
        raise InvalidRequestError(
            "TOO_MANY_QUOTAS",
            f"{count:,} entities with quotas, expected at most {MAX_QUOTAS:,}",
            fix="Use defaults of users or client ids, or remove quotas that no client needs",
        )
    return [*_needed(image, QUOTAS_FEATURE), *actions] if actions else []


def checked_access(
    acls: Sequence[Acl], quotas: Sequence[tuple[QuotaEntity, Mapping[str, float]]]
) -> tuple[frozenset[Acl], Mapping[QuotaEntity, Mapping[str, float]]]:
    """Return the ACLs and quotas of a snapshot; ValueError if they break a rule."""
    found = frozenset(acls)
    by_entity = dict(quotas)
    reasons = [why_illegal_acl(acl) for acl in acls] + [why_illegal_quotas(*one) for one in quotas]
    if reason := next(filter(None, reasons), None):
        raise ValueError(reason)
    if len(found) < len(acls) or len(by_entity) < len(quotas):
        raise ValueError("an ACL, or an entity with quotas, is named twice")
    if len(found) > MAX_ACLS or len(by_entity) > MAX_QUOTAS:
        raise ValueError(f"{len(found):,} ACLs and {len(by_entity):,} entities with quotas")
    return found, by_entity
