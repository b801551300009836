"""Users who authenticate with SCRAM: set_scram_credential.

A credential is what a broker checks a proof against. No proof can be made of it without
the password, but who reads the root can try guesses on it. So it is in no output.
The first commit also has the *decoy key*: brokers make salts for unknown users from it, the same at every
broker and every time, so that an unknown user looks like a known one.

Invariants: a user has at most one credential for each mechanism. The root needs the feature `scram` before it
    has any. The decoy key never changes.
Not here: the exchange (client/scram.py), rules of Kafka's requests (the server's api/users.py).
Concurrency: pure functions.
Sources: FORMAT.md#users; RFC 5802; adr/0039; Kafka UserScramCredentialRecord.
"""

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Final, TypeVar

from sparklog.errors import HIDDEN, InvalidRequestError
from sparklog.metadata.model.action import ActionBase, refuse
from sparklog.metadata.model.image import Image, ScramCredential, ScramUsers
from sparklog.metadata.model.settings import RequireFeatures

if TYPE_CHECKING:
    from sparklog.metadata.model.draft import ImageDraft

A = TypeVar("A")
FEATURE: Final = "scram"
KEY_BYTES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
MAX_USERS: Final = 10_000
MAX_NAME_LENGTH: Final = 1000
_MAX_SALT_BYTES = 256
_MAX_ITERATIONS = 1_000_000
_DECOY_BYTES = 32


class SetScramCredential(ActionBase, tag="set_scram_credential", frozen=True, kw_only=True):
    """A user has this credential for the mechanism, or none (null).

    Fields:
        decoy_key: in Base64; of the first of these actions.
    """

    user: str
    mechanism: str
    credential: ScramCredential | None = None
    decoy_key: str = ""


def set_scram_credential(draft: "ImageDraft", action: SetScramCredential) -> None:
    """Apply."""
    users = draft.scram
    refuse(None if FEATURE in draft.reader_features else f"the feature {FEATURE} is missing", "users")
    refuse(why_illegal_user(action.user) or _why_illegal(action), "users")
    credentials = dict(users.credentials)
    own = dict(credentials.get(action.user, {}))
    if action.credential is None:
        own.pop(action.mechanism, None)
    else:
        own[action.mechanism] = action.credential
    credentials.pop(action.user, None)
    if own:
        credentials[action.user] = own
    if len(credentials) > MAX_USERS:
        refuse(f"more than {MAX_USERS} users", "users")
    draft.scram = ScramUsers(users.decoy_key or action.decoy_key, credentials)


def _why_illegal(action: SetScramCredential) -> str | None:
    key_bytes = KEY_BYTES.get(action.mechanism)
    if key_bytes is None:
        return f"mechanism {action.mechanism[:100]!r}, expected one of {', '.join(KEY_BYTES)}"
    if action.decoy_key and _size(action.decoy_key) != _DECOY_BYTES:
        return f"a decoy key that is not {_DECOY_BYTES} bytes in Base64"
    one = action.credential
    if one is None:
        return None
    if not 0 < _size(one.salt) <= _MAX_SALT_BYTES:
        return f"a salt that is not 1 to {_MAX_SALT_BYTES} bytes in Base64"
    if not _size(one.stored_key) == _size(one.server_key) == key_bytes:
        return f"keys that are not {key_bytes} bytes in Base64"
    if not 0 < one.iterations <= _MAX_ITERATIONS:
        return f"{one.iterations} iterations, expected 1 to {_MAX_ITERATIONS}"
    return None


def _size(text: str) -> int:
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return -1


def why_illegal_user(name: str) -> str | None:
    """Return the rule that a user's name breaks, or None."""
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed"
    if not name.isprintable():
        return "it has a character that cannot be printed"
    return None


def without_secrets(action: A) -> A | SetScramCredential:
    """Return an action as it may be shown: salts and keys are hidden."""
    if not isinstance(action, SetScramCredential):
        return action
    one = action.credential
    hidden = None if one is None else ScramCredential(HIDDEN, HIDDEN, HIDDEN, one.iterations)
    return SetScramCredential(
        user=action.user,
        mechanism=action.mechanism,
        credential=hidden,
        decoy_key=HIDDEN if action.decoy_key else "",
    )


def plan_scram_feature(image: Image) -> RequireFeatures | None:
    """Require the feature, before the first credential; None if the root needs it already."""
    return None if FEATURE in image.reader_features else RequireFeatures(readers=(FEATURE,))


def plan_set_scram_credential(
    image: Image, user: str, mechanism: str, credential: ScramCredential
) -> SetScramCredential:
    """Set the credential of a user; `plan_scram_feature` comes before it in the commit.

    Raises:
        InvalidRequestError: INVALID_USER.
    """
    if (why := why_illegal_user(user)) is not None:
        raise InvalidRequestError("INVALID_USER", f"user {user[:100]!r}: {why}", fix="choose another name")
    if len(image.scram.credentials) >= MAX_USERS and user not in image.scram.credentials:
        raise InvalidRequestError(
            "INVALID_USER",
            f"found {MAX_USERS} users, which is the most that a root may have",
            fix="delete users, or use OAUTHBEARER or certificates",
        )
    decoy_key = "" if image.scram.decoy_key else base64.b64encode(secrets.token_bytes(_DECOY_BYTES)).decode()
    return SetScramCredential(user=user, mechanism=mechanism, credential=credential, decoy_key=decoy_key)


def plan_delete_scram_credential(image: Image, user: str, mechanism: str) -> SetScramCredential:
    """Delete the credential of a user.

    Raises:
        InvalidRequestError: USER_MISSING.
    """
    if image.scram.find(user, mechanism) is None:
        raise InvalidRequestError(
            "USER_MISSING",
            f"user {user[:100]!r}: no credential for {mechanism}",
            fix="`sparklog users list` shows the users",
        )
    return SetScramCredential(user=user, mechanism=mechanism)
