"""Quotas of users, client ids and addresses: describe and alter.

Not here: what they do (sparklog_server/quotas/), their rules (sparklog/metadata/model/access.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sparklog.metadata import (
    CLIENT_ID,
    IP,
    USER,
    Action,
    Image,
    QuotaEntity,
    plan_set_quotas,
    why_illegal_quotas,
)
from sparklog_server.admin.changes import Part, RefusedError
from sparklog_server.admin.configs import invalid_request
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import in_slices

_EXACT, _DEFAULT, _SPECIFIED = range(3)
_ENTRY_BYTES: Final = 1_000  # while an answer is made

# --- DescribeClientQuotas ----------------------------------------------------------------------------


@api(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=range(2))
async def handle_describe_client_quotas(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeClientQuotas (key 48), versions 0-1.

    Does: the quotas of the entities that a filter takes, each with its own values; strict filters, too.
    Does not: which quota is in force for a client: the most specific one (docs/quotas.md).
    Versions: 1 flexible.
    """
    types = context.types
    try:
        wanted = _wanted(request.components)
    except RefusedError as error:
        return make(
            types.DescribeClientQuotasResponse,
            error_code=error.code,
            error_message=str(error),
            entries=None,
        )
    await services.root.look()
    quotas = services.root.image.quotas
    found = [entity for entity in quotas if _takes(wanted, entity, strict=request.strict)]
    await context.answer.hold(_ENTRY_BYTES * len(found))
    entries = (
        make(
            types.EntryData,
            entity=[make(types.EntityData, entity_type=kind, entity_name=name) for kind, name in entity],
            values=[make(types.ValueData, key=key, value=value) for key, value in quotas[entity].items()],
        )
        for entity in found
    )
    return make(
        types.DescribeClientQuotasResponse, error_code=ErrorCode.none, entries=await in_slices(entries)
    )


def _wanted(components: Sequence[Any]) -> dict[str, tuple[int, str | None]]:
    """Return how each kind of a filter is matched."""
    wanted: dict[str, tuple[int, str | None]] = {}
    for one in components:
        kind = one.entity_type
        if not kind:
            raise invalid_request("Unexpected empty filter component entity type")
        if kind not in {USER, CLIENT_ID, IP}:
            raise RefusedError(
                ErrorCode.unsupported_version, f"Custom entity type '{kind[:100]}' not supported"
            )
        if kind in wanted:
            raise invalid_request(f"Duplicate {kind} filter component entity type")
        if one.match_type not in {_EXACT, _DEFAULT, _SPECIFIED}:
            raise invalid_request(f"Unexpected match type: {one.match_type}")
        if (one.match is None) is (one.match_type == _EXACT):
            raise invalid_request("Request specifies an exact match without a name, or a name without one")
        wanted[kind] = one.match_type, one.match
    if IP in wanted and len(wanted) > 1:
        raise invalid_request(
            "Invalid entity filter component combination, IP filter component should not be used with user "
            "or clientId filter component."
        )
    return wanted


def _takes(wanted: Mapping[str, tuple[int, str | None]], entity: QuotaEntity, *, strict: bool) -> bool:
    names = dict(entity)
    if strict and len(names) != len(wanted):
        return False
    for kind, (how, name) in wanted.items():
        if kind not in names or (how != _SPECIFIED and names[kind] != name):
            return False
    return True


# --- AlterClientQuotas -------------------------------------------------------------------------------


@api(ApiKey.ALTER_CLIENT_QUOTAS, versions=range(2))
async def handle_alter_client_quotas(request: Any, context: RequestContext, services: Services) -> Any:
    """AlterClientQuotas (key 49), versions 0-1.

    Does: set and remove quotas of entities, all legal ones in one commit; validate only. Any broker does it,
        and every broker follows it.
    Does not: keep quotas of more than 10,000 entities (INVALID_REQUEST).
    Versions: 1 flexible.
    """
    types = context.types
    entities = [
        tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=_kind))
        for entry in request.entries
    ]
    setting = _Setting(list(zip(entities, request.entries, strict=True)))
    outcomes = await services.changes.make(
        setting.parts, validate_only=request.validate_only, completing=setting.plan
    )
    return make(
        types.AlterClientQuotasResponse,
        entries=[
            make(
                types.EntryData,
                error_code=outcomes[number].code,
                error_message=outcomes[number].message,
                entity=[
                    make(types.EntityData, entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for number, entry in enumerate(request.entries)
        ],
    )


def _kind(part: tuple[str, str | None]) -> str:
    return part[0]


class _Setting:
    """The quotas of a request; illegal ones are left out."""

    def __init__(self, entries: Sequence[tuple[QuotaEntity, Any]]) -> None:
        self._wanted: dict[QuotaEntity, dict[str, float | None]] = {}
        self.parts: dict[int, Part] = {}
        for number, (entity, entry) in enumerate(entries):
            quotas = {one.key: None if one.remove else one.value for one in entry.ops}
            reason = why_illegal_quotas(entity, quotas)
            if reason is None and len(quotas) < len(entry.ops):
                reason = "A quota is named twice"
            if reason is None:
                self._wanted.setdefault(entity, {}).update(quotas)
            self.parts[number] = _refusing(reason)

    def plan(self, image: Image, _actions: Sequence[Action]) -> Sequence[Action]:
        return plan_set_quotas(image, self._wanted)


def _refusing(reason: str | None) -> Part:
    def part(_: Image) -> None:
        if reason is not None:
            raise invalid_request(reason)

    return part
