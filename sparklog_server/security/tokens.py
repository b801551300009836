"""OAUTHBEARER: tokens of an identity provider, checked with the keys that it publishes (JWKS).

Invariants: the algorithm is the key's, never the token's, so neither "none" nor a public key as the secret of
    an HMAC works. Keys come only from URLs on the allow list. A token needs exp and the claim of the user;
    audience, issuer and scope where they are set. An unknown key id has the keys read again, at most once in
    MIN_REFRESH_MS, so that made-up ids do not make the broker ask without end. Nothing of a token is logged.
Not here: TLS without which a token must not be sent (settings/security.py).
Concurrency: threads; one lock for reading keys, for which only tokens of unknown keys wait.
Sources: RFC 7515, 7517, 7519, 7628, 8725; Kafka BrokerJwtValidator, OAuthBearerSaslServer; KIP-768.
"""

import json
import logging
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jwt

from sparklog.clock import Clock
from sparklog_server.settings.security import ListenerSecurity

_log = logging.getLogger("sparklog_server.security")
MIN_REFRESH_MS: Final = 10_000
MAX_TOKEN_BYTES: Final = 64 * 1024
_MAX_KEYS_BYTES = 1 << 20
_TIMEOUT_SECONDS = 10
_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_INITIAL = re.compile(rb"n,(?:a=(?P<authorization>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_BEARER = re.compile(r"Bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


class AuthenticationError(Exception):
    """Not authenticated; the text is for the client."""


def invalid_credentials(mechanism: str) -> str:
    """Return Kafka's text, which says nothing of the user."""
    return (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        f"{mechanism}"
    )


class InvalidTokenError(Exception):
    """A token that is not accepted; the text has nothing of it."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect leads to a URL that is not on the allow list."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Tokens:
    """The tokens of one listener, and the keys for them."""

    def __init__(self, settings: ListenerSecurity, allowed_urls: frozenset[str], clock: Clock) -> None:
        assert settings.oauth_jwks_endpoint_url in allowed_urls
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_ms: int | None = None
        self._opener = urllib.request.build_opener(_NoRedirect)

    def exchange(self) -> "TokenExchange":
        """Return the server's side of an exchange."""
        return TokenExchange(self)

    def check(self, token: str) -> tuple[str, int]:
        """Return the user, and when the token expires, in Unix time. May read keys.

        Raises:
            InvalidTokenError: it is not accepted.
        """
        settings = self._settings
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._key(key_id)
            audience = [one.strip() for one in settings.oauth_expected_audience.split(",") if one.strip()]
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=audience or None,
                issuer=settings.oauth_expected_issuer or None,
                leeway=settings.oauth_clock_skew_seconds,
                options={
                    "require": ["exp", settings.oauth_sub_claim_name],
                    "verify_aud": bool(audience),
                    "verify_iss": bool(settings.oauth_expected_issuer),
                },
            )
        except jwt.PyJWTError as error:
            raise InvalidTokenError(type(error).__name__) from None
        user = claims[settings.oauth_sub_claim_name]
        if not isinstance(user, str) or not user.strip() or not user.isprintable():
            raise InvalidTokenError(f"the claim {settings.oauth_sub_claim_name} is no name")
        self._check_scope(claims)
        return user, int(claims["exp"]) * 1000

    def _check_scope(self, claims: Mapping[str, Any]) -> None:
        required = set(self._settings.oauth_required_scope.split())
        found = claims.get(self._settings.oauth_scope_claim_name, ())
        scopes = found.split() if isinstance(found, str) else found
        if required and not (isinstance(scopes, list) and required <= {str(one) for one in scopes}):
            raise InvalidTokenError("a scope is missing")

    def _key(self, key_id: object) -> jwt.PyJWK:
        # A token of a known key does not wait while others read the keys: the endpoint may be slow.
        if self._lock.acquire(blocking=key_id not in self._keys):
            try:
                self._refresh_for(key_id)
            finally:
                self._lock.release()
        keys = self._keys
        key = keys.get(key_id) if isinstance(key_id, str) else None
        if key is None and key_id is None and len(keys) == 1:
            (key,) = keys.values()
        if key is None:
            raise InvalidTokenError("no key of this id")
        return key

    def _refresh_for(self, key_id: object) -> None:
        """Read the keys if they are old, or this one is unknown; with the lock."""
        age_ms = None if self._read_ms is None else self._clock.monotonic_ms() - self._read_ms
        is_old = age_ms is None or age_ms >= self._settings.oauth_jwks_refresh_ms
        if is_old or (key_id not in self._keys and age_ms is not None and age_ms >= MIN_REFRESH_MS):
            self._refresh()

    def _refresh(self) -> None:
        """Read the keys; if that fails, those before stay."""
        url = self._settings.oauth_jwks_endpoint_url
        self._read_ms = self._clock.monotonic_ms()
        try:
            self._keys = _keys_of(json.loads(self._read(url)))
        except (OSError, ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            _log.error("cannot read keys from %s, those before stay in use: %s", url, reason)

    def _read(self, url: str) -> bytes:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "file":
            with Path(urllib.request.url2pathname(parts.path)).open("rb") as file:
                return file.read(_MAX_KEYS_BYTES)
        if parts.scheme not in {"http", "https"}:
            raise ValueError(parts.scheme)
        with self._opener.open(url, timeout=_TIMEOUT_SECONDS) as response:
            return bytes(response.read(_MAX_KEYS_BYTES))


def _keys_of(document: Any) -> dict[str, jwt.PyJWK]:
    """Return the keys for signatures, by id; keys of unknown kinds are left out."""
    found = {}
    for number, one in enumerate(document["keys"]):
        if one.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(one)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in _ALGORITHMS:
            found[str(one.get("kid", number))] = key
    return found


class TokenExchange:
    """One exchange: the token, or an error that the client acknowledges."""

    is_slow = True

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._has_failed = False
        self.user = ""
        self.is_done = False
        self.expires_at_ms: int | None = None

    def answer(self, message: bytes) -> bytes:
        """See Exchange."""
        if self._has_failed:
            raise AuthenticationError('{"status":"invalid_token"}')
        token = _token_of(message)
        if token is None:
            raise AuthenticationError(invalid_credentials("OAUTHBEARER"))
        authorization, text = token
        try:
            user, expires_at_ms = self._tokens.check(text)
        except InvalidTokenError as error:
            _log.warning("a token is refused: %s", error)
            self._has_failed = True
            return b'{"status":"invalid_token"}'
        if authorization not in {"", user}:
            raise AuthenticationError(invalid_credentials("OAUTHBEARER"))
        self.user, self.expires_at_ms, self.is_done = user, expires_at_ms, True
        return b""


def _token_of(message: bytes) -> tuple[str, str] | None:
    """Return authorization id and token of a client's first message; None: it is none."""
    if len(message) > MAX_TOKEN_BYTES:
        return None
    found = _INITIAL.fullmatch(message)
    if found is None:
        return None
    try:
        pairs = dict(pair.split("=", 1) for pair in found["pairs"].decode().rstrip("\x01").split("\x01"))
        authorization = (found["authorization"] or b"").decode()
    except UnicodeDecodeError:
        return None
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    return None if bearer is None else (authorization, bearer[1])
