"""Users with SCRAM credentials: DescribeUserScramCredentials, AlterUserScramCredentials.

Not here: how credentials are kept (sparklog/metadata/model/users.py), used (security/sasl.py), and made of
passwords: clients do that, and a password is in no request.
Sources: Kafka ScramControlManager, ScramImage; KIP-554.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sparklog.client.scram import MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, credential_of
from sparklog.metadata import (
    Action,
    Image,
    ScramCredential,
    plan_delete_scram_credential,
    plan_scram_feature,
    plan_set_scram_credential,
    why_illegal_user,
)
from sparklog_server.admin.changes import Outcome, Part, RefusedError, duplicates, outcome_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make

_BY_CODE = {one.code: one for one in Mechanism}
_KEY_BYTES = {Mechanism.SHA_256: 32, Mechanism.SHA_512: 64}

# --- DescribeUserScramCredentials --------------------------------------------------------------------


@api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=range(1))
async def handle_describe_user_scram_credentials(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """DescribeUserScramCredentials (key 50), version 0.

    Does: the mechanisms of users, with their iterations; of all without names.
    Does not: return salts, keys or passwords.
    Versions: 0 flexible.
    """
    await services.root.look()
    users, types = services.root.image.scram, context.types
    names = [one.name for one in request.users or ()]
    twice = duplicates(names)
    results = []
    for name in dict.fromkeys(names) if names else sorted(users.credentials):
        code, message, own = ErrorCode.none, None, users.credentials.get(name, {})
        if name in twice:
            code, own = ErrorCode.duplicate_resource, {}
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        elif not own:
            code = ErrorCode.resource_not_found
            message = f"Attempt to describe a user credential that does not exist: {name}"
        infos = [
            make(types.CredentialInfo, mechanism=one.code, iterations=own[one.value].iterations)
            for one in Mechanism
            if one.value in own
        ]
        results.append(
            make(
                types.DescribeUserScramCredentialsResult,
                user=name,
                error_code=code,
                error_message=message,
                credential_infos=infos,
            )
        )
    return make(
        types.DescribeUserScramCredentialsResponse,
        error_code=ErrorCode.none,
        error_message=None,
        results=results,
    )


# --- AlterUserScramCredentials -----------------------------------------------------------------------


@api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=range(1))
async def handle_alter_user_scram_credentials(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """AlterUserScramCredentials (key 51), version 0.

    Does: set and delete credentials, durably; a user's changes happen all or not at all. Clients send the
        salted password.
    Does not: end connections of users that are deleted (connections.max.reauth.ms does).
    Versions: 0 flexible.
    """
    changes: dict[str, dict[str, ScramCredential | None]] = {}
    refused: dict[str, Outcome] = {}
    for name, code, upsertion in [
        *((one.name, one.mechanism, None) for one in request.deletions),
        *((one.name, one.mechanism, one) for one in request.upsertions),
    ]:
        try:
            mechanism = _mechanism(name, code)
            own = changes.setdefault(name, {})
            _refuse_twice(mechanism, own)
            own[mechanism.value] = None if upsertion is None else _credential(mechanism, upsertion)
        except RefusedError as error:
            refused.setdefault(name, outcome_of(error))
    accepted = {name: own for name, own in changes.items() if name not in refused}
    done = await _make(services, accepted)
    return _answered(context.types, {**refused, **done}.items())


def _refuse_twice(mechanism: Mechanism, own: Mapping[str, Any]) -> None:
    if mechanism.value in own:
        raise RefusedError(
            ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
        )


async def _make(
    services: Services, changes: dict[str, dict[str, ScramCredential | None]]
) -> dict[str, Outcome]:
    """Carry the changes out; the outcome of each user, the first error of several."""
    await services.root.look()
    image = services.root.image
    missing = {
        name: Outcome(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
        for name, own in changes.items()
        if any(one is None and image.scram.find(name, kind) is None for kind, one in own.items())
    }
    parts: dict[tuple[str, str], Part] = {}
    for name, own in changes.items():
        if name not in missing:
            parts |= {(name, kind): _planned(name, kind, one) for kind, one in own.items()}
    if any(one is not None for name, own in changes.items() if name not in missing for one in own.values()):
        parts = {("", ""): plan_scram_feature, **parts}  # before what needs it
    outcomes = dict(missing)
    for (name, _), outcome in (await services.changes.make(parts)).items():
        if name and (name not in outcomes or outcome.is_error):
            outcomes[name] = Outcome(outcome.code, outcome.message)
    return outcomes


def _planned(name: str, mechanism: str, credential: ScramCredential | None) -> Part:
    def plan(image: Image) -> Action:
        if credential is not None:
            return plan_set_scram_credential(image, name, mechanism, credential)
        return plan_delete_scram_credential(image, name, mechanism)

    return plan


def _mechanism(name: str, code: int) -> Mechanism:
    if not name:
        raise RefusedError(ErrorCode.unacceptable_credential, "Username must not be empty")
    if (why := why_illegal_user(name)) is not None:
        raise RefusedError(ErrorCode.unacceptable_credential, f"Username: {why}")
    if code not in _BY_CODE:
        raise RefusedError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return _BY_CODE[code]


def _credential(mechanism: Mechanism, upsertion: Any) -> ScramCredential:
    if upsertion.iterations < MIN_ITERATIONS:
        raise RefusedError(ErrorCode.unacceptable_credential, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise RefusedError(ErrorCode.unacceptable_credential, "Too many iterations")
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    if not 0 < len(salt) <= 256 or len(salted) != _KEY_BYTES[mechanism]:
        raise RefusedError(ErrorCode.unacceptable_credential, "Salt or salted password of the wrong size")
    return credential_of(mechanism, salted, salt, upsertion.iterations)


def _answered(types: Any, outcomes: Iterable[tuple[str, Outcome]]) -> Any:
    return make(
        types.AlterUserScramCredentialsResponse,
        results=[
            make(
                types.AlterUserScramCredentialsResult,
                user=name,
                error_code=outcome.code,
                error_message=outcome.message,
            )
            for name, outcome in outcomes
        ],
    )
