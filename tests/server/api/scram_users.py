"""Requests about users with SCRAM credentials."""

from typing import Any

from sparklog.client.scram import Mechanism, salted_password
from tests.support.wire_client import WireClient

DESCRIBE, ALTER = 50, 51
SALT = b"s" * 20
NONE, UNSUPPORTED_MECHANISM, NOT_FOUND, DUPLICATE, UNACCEPTABLE = 0, 33, 91, 92, 93


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, **fields: Any) -> dict[str, Any]:
    kind = Mechanism.SHA_512 if mechanism == 2 else Mechanism.SHA_256
    words = {"salt": SALT, "salted_password": salted_password(kind, "secret", SALT, iterations), **fields}
    return {
        "_": "ScramCredentialUpsertion",
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        **words,
    }


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"_": "ScramCredentialDeletion", "name": name, "mechanism": mechanism}


def alter(asker: WireClient, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
    answer = asker.ask(ALTER, 0, upsertions=upsertions, deletions=deletions)
    return {one.user: int(one.error_code) for one in answer.results}


def described(asker: WireClient, *names: str) -> dict[str, Any]:
    users = [{"_": "UserName", "name": name} for name in names] if names else None
    answer = asker.ask(DESCRIBE, 0, users=users)
    return {
        one.user: int(one.error_code) or {info.mechanism: info.iterations for info in one.credential_infos}
        for one in answer.results
    }
