"""SCRAM-SHA-256 and -512: the arithmetic, and both sides of the exchange, without I/O.

    client    n,,n=alice,r=CLIENT                 server    r=CLIENTSERVER,s=SALT,i=4096
    client    c=biws,r=CLIENTSERVER,p=PROOF       server    v=SIGNATURE

Invariants: the proof and the nonce are compared in constant time, and the nonce is the whole one of this
    exchange: an older exchange cannot be replayed. A server answers an unknown user as a known one, with a
    salt that is the same every time, and fails with the proof; both take the same time. Passwords are UTF-8,
    without SASLprep, as Kafka's clients and brokers take them. No channel binding, no authorization id.
Not here: where credentials are (metadata/model/users.py), requests of Kafka's protocol.
Concurrency: no shared state.
Sources: RFC 5802, RFC 7677; Kafka ScramFormatter, ScramMessages, ScramSaslServer.
"""

import base64
import binascii
import enum
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from sparklog.errors import InvalidRequestError
from sparklog.metadata import ScramCredential, ScramUsers

T = TypeVar("T")
DEFAULT_ITERATIONS: Final = 4096
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384  # what Kafka's brokers accept
_SALT_BYTES = 26  # as Kafka's clients make them
_NONCE_BYTES = 24
_HEADER = "n,,"
MAX_MESSAGE_BYTES: Final = 8192


class Mechanism(enum.Enum):
    """The mechanisms, by their names; `code` is their number in Kafka's requests."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def code(self) -> int:
        return 1 if self is Mechanism.SHA_256 else 2

    @property
    def hash_name(self) -> str:
        return "sha256" if self is Mechanism.SHA_256 else "sha512"


class ScramError(Exception):
    """The other side breaks the protocol, or does not know the password. The text has no secret."""


def random_text() -> str:
    """Return a nonce."""
    return secrets.token_urlsafe(_NONCE_BYTES)


# --- arithmetic --------------------------------------------------------------------------------------


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return Hi(password): milliseconds of CPU, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def _hmac(mechanism: Mechanism, key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, mechanism.hash_name)


def _hash(mechanism: Mechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return what a broker keeps of a salted password."""
    stored_key = _hash(mechanism, _hmac(mechanism, salted, b"Client Key"))
    server_key = _hmac(mechanism, salted, b"Server Key")
    return ScramCredential(_base64(salt), _base64(stored_key), _base64(server_key), iterations)


def new_credential(
    mechanism: Mechanism, password: str, iterations: int = DEFAULT_ITERATIONS
) -> ScramCredential:
    """Return a credential of a password, with a new salt.

    Raises:
        InvalidRequestError: INVALID_USER; an empty password, or iterations out of bounds.
    """
    if not password or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise InvalidRequestError(
            "INVALID_USER",
            f"found {f'{iterations} iterations' if password else 'no password'}, expected a password, and "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS} iterations",
            fix="give a password that is not empty",
        )
    salt = secrets.token_bytes(_SALT_BYTES)
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def decoy_credential(users: ScramUsers, user: str, mechanism: Mechanism) -> ScramCredential:
    """Return a credential that no password fits, for a user without one: always the same for a name.

    Its salt is as long, and its iterations are as many, as those of one of the users of this mechanism.
    """
    known = [one for of in users.credentials.values() if (one := of.get(mechanism.value)) is not None]
    seed = _decoy_seed(users, mechanism.value, user)
    return _decoy_like(mechanism, _one_of(known, seed), seed)


def password_credential(own: Mapping[str, ScramCredential]) -> tuple[Mechanism, ScramCredential] | None:
    """Return the credential of a user that a password is checked against; None: there is none."""
    return next(((one, own[one.value]) for one in Mechanism if one.value in own), None)


def password_decoy(users: ScramUsers, user: str) -> tuple[Mechanism, ScramCredential]:
    """Return a decoy that a password is checked against: of the mechanism, too, that one of the users has."""
    known = [one for of in users.credentials.values() if (one := password_credential(of)) is not None]
    seed = _decoy_seed(users, "PLAIN", user)
    mechanism, like = _one_of(known, seed) or (Mechanism.SHA_256, None)
    return mechanism, _decoy_like(mechanism, like, seed)


def _decoy_seed(users: ScramUsers, mechanism: str, user: str) -> bytes:
    return hmac.digest(base64.b64decode(users.decoy_key), f"{mechanism}\0{user}".encode(), "sha512")


def _one_of(known: Sequence[T], seed: bytes) -> T | None:
    return known[int.from_bytes(seed[:8]) % len(known)] if known else None


def _decoy_like(mechanism: Mechanism, like: ScramCredential | None, seed: bytes) -> ScramCredential:
    size = _SALT_BYTES if like is None else len(base64.b64decode(like.salt))
    iterations = DEFAULT_ITERATIONS if like is None else like.iterations
    salt = hashlib.shake_256(seed).digest(size)
    nothing = bytes(hashlib.new(mechanism.hash_name).digest_size)
    return ScramCredential(_base64(salt), _base64(nothing), _base64(nothing), iterations)


def is_password(mechanism: Mechanism, credential: ScramCredential, password: str) -> bool:
    """True if it is the credential's password. Milliseconds of CPU, whether it is or not."""
    salt = base64.b64decode(credential.salt)
    salted = salted_password(mechanism, password, salt, credential.iterations)
    found = credential_of(mechanism, salted, salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


# --- messages ----------------------------------------------------------------------------------------


def _attributes(text: str, *names: str) -> list[str]:
    """Return the values of attributes that stand in this order; extensions after them are ignored."""
    parts = text.split(",")
    if len(parts) < len(names):
        raise ScramError(f"found {len(parts)} attributes, expected {len(names)}")
    values = []
    for name, part in zip(names, parts, strict=False):
        if not part.startswith(f"{name}="):
            raise ScramError(f"expected the attribute {name}")
        values.append(part[2:])
    return values


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("found text that is no Base64") from None


def _text(data: bytes) -> str:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ScramError(f"found a message of {len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScramError("found a message that is no UTF-8") from None


def _user_of(name: str) -> str:
    """Undo the escapes of a name: =2C is a comma, =3D an equals sign."""
    plain = name.replace("=2C", ",").replace("=3D", "\0")
    if "=" in plain or "\0" in name or not name:
        raise ScramError("found an invalid user name")
    return plain.replace("\0", "=")


# --- server ------------------------------------------------------------------------------------------


class _Begun(NamedTuple):
    credential: ScramCredential
    is_known: bool
    nonce: str
    signed: str  # the first messages of both sides


class ScramServer:
    """One exchange: `answer` the client's first message, then its final one."""

    def __init__(
        self, mechanism: Mechanism, users: Callable[[], ScramUsers], nonce: Callable[[], str] = random_text
    ) -> None:
        self._mechanism = mechanism
        self._users = users
        self._nonce = nonce
        self._begun: _Begun | None = None
        self.user = ""  # the claimed one, until `is_done`
        self.is_done = False

    def answer(self, message: bytes) -> bytes:
        """Return the next message to the client.

        Raises:
            ScramError: the client is not who it says, or breaks the protocol.
        """
        if self.is_done:
            raise ScramError("found a message after the end of the exchange")
        text = _text(message)
        return (self._first(text) if self._begun is None else self._final(text, self._begun)).encode()

    def _first(self, text: str) -> str:
        flag, authorization, bare = [*text.split(",", 2), "", ""][:3]
        if flag not in {"n", "y"}:
            raise ScramError("channel binding is not supported")
        name, client_nonce = _attributes(bare, "n", "r")
        user = _user_of(name)
        if authorization and authorization != f"a={name}":
            raise ScramError("found an authorization id of another user")
        if not client_nonce:
            raise ScramError("found no nonce")
        users = self._users()
        decoy = decoy_credential(users, user, self._mechanism) if users.decoy_key else None
        known = users.find(user, self._mechanism.value)
        credential = known or decoy or decoy_credential(_NO_DECOYS, user, self._mechanism)
        nonce = client_nonce + self._nonce()
        answer = f"r={nonce},s={credential.salt},i={credential.iterations}"
        self.user = user
        header = _base64(f"{flag},{authorization},".encode())
        self._begun = _Begun(credential, known is not None, nonce, f"{bare},{answer}\0{header}")
        return answer

    def _final(self, text: str, begun: _Begun) -> str:
        signed, _, header = begun.signed.partition("\0")
        found_header, nonce = _attributes(text, "c", "r")
        without_proof, comma, proof_text = text.rpartition(",p=")
        if not comma or not hmac.compare_digest(nonce.encode(), begun.nonce.encode()):
            raise ScramError("found the nonce of another exchange")
        if found_header != header:
            raise ScramError("found another channel binding than before")
        mechanism = self._mechanism
        proof = _decoded(proof_text)
        stored_key = base64.b64decode(begun.credential.stored_key)
        message = f"{signed},{without_proof}".encode()
        signature = _hmac(mechanism, stored_key, message)
        if len(proof) != len(signature):
            raise ScramError("found a proof of the wrong size")
        found = _hash(mechanism, _xor(proof, signature))
        if not hmac.compare_digest(found, stored_key) or not begun.is_known:
            raise ScramError("the proof is wrong, or the user is unknown")
        self.is_done = True
        server_key = base64.b64decode(begun.credential.server_key)
        return f"v={_base64(_hmac(mechanism, server_key, message))}"


_NO_DECOYS = ScramUsers(_base64(secrets.token_bytes(32)))  # of a root without users


# --- client ------------------------------------------------------------------------------------------


class ScramClient:
    """The other side: `first`, then `final`, then `verify`."""

    def __init__(
        self, mechanism: Mechanism, user: str, password: str, nonce: Callable[[], str] = random_text
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce()
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_HEADER}{self._first}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the final message to the server's first one.

        Raises:
            ScramError: the server breaks the protocol.
        """
        text = _text(answer)
        nonce, salt_text, iterations_text = _attributes(text, "r", "s", "i")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("found the nonce of another exchange")
        iterations = int(iterations_text) if iterations_text.isdecimal() else 0
        if not MIN_ITERATIONS <= iterations <= 1_000_000:
            raise ScramError(f"found {iterations} iterations, expected at least {MIN_ITERATIONS}")
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, _decoded(salt_text), iterations)
        without_proof = f"c={_base64(_HEADER.encode())},r={nonce}"
        message = f"{self._first},{text},{without_proof}".encode()
        client_key = _hmac(mechanism, salted, b"Client Key")
        proof = _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), message))
        self._signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), message)
        return f"{without_proof},p={_base64(proof)}".encode()

    def verify(self, answer: bytes) -> None:
        """Raise ScramError if the server does not know the password either."""
        (signature,) = _attributes(_text(answer), "v")
        if not hmac.compare_digest(_decoded(signature), self._signature):
            raise ScramError("the server does not know the password: it may be another one")
